"""Functions that are made of rows: a name, arguments, and what is computed of them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

R = TypeVar("R")


def read_row(row: str) -> tuple[str, list[str], dict[str, Any]]:
    """Return the name, the needed arguments and the options of "NAME argument | option option=value".

    An option without a value is None.
    """
    (name, *needed), options = (part.split() for part in row.partition("|")[::2])
    pairs = (one.partition("=") for one in options)
    return name, needed, {option: ast.literal_eval(value) if value else None for option, _, value in pairs}


def make_function(row: str, text: str, call: Callable[..., R]) -> Callable[..., R]:
    """Return a function, with its arguments from a row, that gives all of them by name to `call`."""
    name, needed, options = read_row(row)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(one, kind) for one in needed]
    parameters += [inspect.Parameter(one, kind, default=value) for one, value in options.items()]
    signature = inspect.Signature(parameters)

    def function(*args: Any, **given: Any) -> R:
        try:
            bound = signature.bind(*args, **given)
        except TypeError as e:
            raise TypeError(f"{name}: {e}") from None
        bound.apply_defaults()
        return call(**bound.arguments)

    function.__name__ = function.__qualname__ = name.rpartition(".")[2]
    function.__doc__ = f"Return {text}."
    vars(function)["__signature__"] = signature
    return function
