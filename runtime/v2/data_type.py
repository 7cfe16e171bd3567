"""Input types by their v2 names, for data layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..engine.param_config import ANY_ID

__all__ = [
    "InputType", "dense_vector", "dense_vector_sequence", "integer_value", "integer_value_sequence",
    "sparse_binary_vector", "sparse_float_vector", "string_sequence", "string_value",
]  # fmt: skip

DataKind = Literal["integer", "dense", "sparse", "sparse_float"]


@dataclass(frozen=True, slots=True)
class InputType:
    """One input: `integer`, an id from 0 to dim - 1; or a vector of `dim` numbers, `dense` or sparse.

    A `sparse` one has numbers of 0 and 1, and is given as the places of those that are 1. A `sparse_float`
    one is given as pairs of a place and its number, and has 0 elsewhere.
    `is_text`: given as text, whose id is hashing.hash_text() with `salt`; None: the layer's name.
    `is_sequence`: a list of these for each sample, of any length.
    """

    dim: int
    kind: DataKind
    is_sequence: bool = False
    is_text: bool = False
    salt: str | None = None

    def __post_init__(self) -> None:
        if self.dim < 1:
            raise ValueError(f"data_type: a dimension of {self.dim} is below 1")


def integer_value(value_range: int) -> InputType:
    """Return the type of an id from 0 to `value_range` - 1: a word, a class."""
    return InputType(int(value_range), "integer")


def string_value(salt: str | None = None) -> InputType:
    """Return the type of a text, whose id may be any: a user, a word of a table without a dictionary.

    The id is hashing.hash_text() with `salt`, by default the layer's name: layers with equal salts have equal
    ids of equal texts.
    """
    return InputType(ANY_ID, "integer", is_text=True, salt=salt)


def dense_vector(dim: int) -> InputType:
    """Return the type of a vector of `dim` numbers."""
    return InputType(int(dim), "dense")


def integer_value_sequence(value_range: int) -> InputType:
    """Return the type of a list of ids from 0 to `value_range` - 1: the words of a text."""
    return InputType(int(value_range), "integer", is_sequence=True)


def string_sequence(salt: str | None = None) -> InputType:
    """Return the type of a list of texts; `salt` as in string_value()."""
    return InputType(ANY_ID, "integer", is_sequence=True, is_text=True, salt=salt)


def dense_vector_sequence(dim: int) -> InputType:
    """Return the type of a list of vectors of `dim` numbers."""
    return InputType(int(dim), "dense", is_sequence=True)


def sparse_binary_vector(dim: int) -> InputType:
    """Return the type of a vector of `dim` numbers, given as a list of the places that are 1."""
    return InputType(int(dim), "sparse")


def sparse_float_vector(dim: int) -> InputType:
    """Return the type of a vector of `dim` numbers, given as a list of pairs: a place and its number."""
    return InputType(int(dim), "sparse_float")
