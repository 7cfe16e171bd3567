"""Functions that are made of rows: a name, arguments, and what is computed of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

R = TypeVar("R")


def make_function(
    name: str, needed: Iterable[str], usual: Mapping[str, Any], call: Callable[..., R], text: str
) -> Callable[..., R]:
    """Return a function that gives all its arguments by name to `call`; `usual`: of those behind `needed`."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(one, kind) for one in needed]
    parameters += [inspect.Parameter(one, kind, default=value) for one, value in usual.items()]
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
