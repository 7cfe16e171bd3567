"""Keys of 64 bits for text, and how many of them are equal by chance."""

from __future__ import annotations

import math

from .. import _core

__all__ = ["estimate_collisions", "hash_text"]


def hash_text(text: str, salt: str = "") -> int:
    """Return the key of a text, from 0 to 2**64 - 1, as a slot of text with this salt has it.

    It is the 64-bit FNV-1a hash of the bytes of `salt`, a zero, and `text`, in UTF-8 (Fowler, Noll and Vo,
    draft-eastlake-fnv).
    """
    return _core.hash_name(f"{salt}\0{text}")


def estimate_collisions(texts: float, keys: float = 2.0**64) -> float:
    """Return how many of so many different texts have the key of an earlier one, if keys are even by chance.

    n - m (1 - (1 - 1/m)^n) for n texts and m keys; nearly n^2 / 2m as long as that is far below n.
    """
    share = texts / keys
    return texts * share / 2 if share < 1e-6 else texts + keys * math.expm1(texts * math.log1p(-1 / keys))
