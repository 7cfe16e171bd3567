"""Functions of variables, each from a row: its name, inputs, options with their defaults, and its help."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from ...engine.ops.signature import make_function
from .program import Variable, add_value

Function = Callable[..., Variable]


def define(row: str, text: str, build: Function | str = "", **options: Any) -> Function:
    """Return a function that adds a result to the default main program.

    row: its name, and those of its inputs, as "where condition x y". text: what it returns. build: makes the
    result of all arguments, or is an operation, by default that of the same name, with the options as its
    attributes. An option is of the kind of its default; None is any.
    """
    own, *inputs = row.split()

    def call(name: str | None, **found: Any) -> Variable:
        for option, usual in options.items():
            found[option] = _read_option(found[option], usual)
        if callable(build):
            return build(**found)
        return add_value(build or own, [found.pop(one) for one in inputs], found)

    return make_function(own, inputs, {**options, "name": None}, call, text)


def _read_option(value: Any, usual: Any) -> Any:
    if isinstance(usual, bool | float):
        return type(usual)(value)
    if isinstance(usual, int):
        return operator.index(value)
    return tuple(value) if isinstance(value, list) else value
