"""Input types by their v2 names, for data layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ..engine.ops.signature import make_function
from ..engine.param_config import ANY_ID

__all__ = [
    "InputType", "dense_vector", "dense_vector_sequence", "integer_value", "integer_value_sequence",
    "sparse_binary_vector", "sparse_float_vector", "sparse_vector", "string_sequence", "string_value",
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


def _define(row: str, text: str, kind: DataKind, *, is_sequence: bool = False) -> Callable[..., InputType]:
    def call(**size: Any) -> InputType:
        return InputType(int(*size.values()), kind, is_sequence)

    return make_function(f"data_type.{row}", text, call)


integer_value = _define("integer_value value_range", "the type of an id from 0: a word, a class", "integer")
integer_value_sequence = _define("integer_value_sequence value_range", "the type of a list of such ids",
                                 "integer", is_sequence=True)  # fmt: skip
dense_vector = _define("dense_vector dim", "the type of a vector of `dim` numbers", "dense")
dense_vector_sequence = _define("dense_vector_sequence dim", "the type of a list of such vectors",
                                "dense", is_sequence=True)  # fmt: skip
sparse_binary_vector = _define("sparse_binary_vector dim", "the type of a vector of 0 and 1, given as a list "
                               "of the places that are 1", "sparse")  # fmt: skip
sparse_float_vector = _define("sparse_float_vector dim", "the type of a vector, given as a list of pairs: a "
                              "place and its number", "sparse_float")  # fmt: skip
sparse_vector = sparse_float_vector
string_value = make_function("data_type.string_value | salt",
                             "the type of a text, whose id may be any: a user, a word of a table without a "
                             "dictionary. The id is hashing.hash_text() with `salt`, by default the layer's "
                             "name: layers with equal salts have equal ids of equal texts",
                             lambda salt: InputType(ANY_ID, "integer", is_text=True, salt=salt))  # fmt: skip
string_sequence = make_function(
    "data_type.string_sequence | salt",
    "the type of a list of texts; `salt` as in string_value()",
    lambda salt: InputType(ANY_ID, "integer", is_sequence=True, is_text=True, salt=salt),
)
