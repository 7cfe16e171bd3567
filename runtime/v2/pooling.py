"""Poolings of sequences by their v2 names; ops/sequence.py computes them."""

from __future__ import annotations

__all__ = ["Avg", "BasePoolingType", "Max", "Sum"]


class BasePoolingType:
    """One vector of all items of a sequence; `Sum()` and the class `Sum` are both accepted."""

    name = ""

    def __init_subclass__(cls, by: str) -> None:
        cls.name = by

    def __repr__(self) -> str:
        return f"pooling.{type(self).__name__}()"


class Max(BasePoolingType, by="max"):
    """The highest of each column."""


class Avg(BasePoolingType, by="average"):
    """The mean."""


class Sum(BasePoolingType, by="sum"):
    """The sum."""


def get_pooling_name(pooling: object) -> str:
    """Return the name of a pooling; raises TypeError if it is none, or has none."""
    one = pooling() if isinstance(pooling, type) else pooling
    if not isinstance(one, BasePoolingType) or not one.name:
        raise TypeError(f"pooling_type={pooling!r}, expected one of pooling, such as pooling.Sum()")
    return one.name
