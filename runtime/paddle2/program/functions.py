"""Functions of variables, each from a row: its name, inputs, options with their defaults, and its help."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

from .program import Variable, add_value

Function = Callable[..., Variable]


def define(row: str, text: str, build: Function | str = "", **options: Any) -> Function:
    """Return a function that adds a result to the default main program.

    row: its name, and those of its inputs, as "where condition x y". text: what it returns. build: makes the
    result of all arguments, or is an operation, by default that of the same name, with the options as its
    attributes. An option is of the kind of its default; None is any.
    """
    own, *inputs = row.split()
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(one, kind) for one in inputs]
    parameters += [inspect.Parameter(k, kind, default=v) for k, v in {**options, "name": None}.items()]
    signature = inspect.Signature(parameters)

    def function(*args: Any, **given: Any) -> Variable:
        try:
            bound = signature.bind(*args, **given)
        except TypeError as e:
            raise TypeError(f"{own}: {e}") from None
        bound.apply_defaults()
        found = dict(bound.arguments)
        del found["name"]
        for name, usual in options.items():
            found[name] = _read_option(found[name], usual)
        if callable(build):
            return build(**found)
        return add_value(build or own, [found.pop(one) for one in inputs], found)

    function.__name__ = function.__qualname__ = own
    function.__doc__ = f"Return {text}."
    vars(function)["__signature__"] = signature
    return function


def _read_option(value: Any, usual: Any) -> Any:
    if isinstance(usual, bool | float):
        return type(usual)(value)
    if isinstance(usual, int):
        return operator.index(value)
    return tuple(value) if isinstance(value, list) else value
