"""The bundled runtime: `import pslaunch.runtime as paddle` is enough for a v2 or a Fleet program.

Importing it does not load numpy: each name is loaded on first use, so that the launcher and a pserver,
which need only a part, stay small. Never imports launcher code.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from typing import Any

if __name__ != "pslaunch.runtime":  # run from a checkout, `import runtime` would make second copies
    raise ImportError("this folder is imported as 'pslaunch.runtime'; install the project (make dev) first")

_MODULES = (
    "activation",
    "attr",
    "data_type",
    "dataset",
    "event",
    "layer",
    "optimizer",
    "parameters",
    "reader",
    "trainer",
)
_NAMES = {
    "init": "pslaunch.runtime.settings",
    "batch": "pslaunch.runtime.reader",
    "infer": "pslaunch.runtime.inference",
}
_FLEET_MODULES = ("fleet",)
__all__ = [*_MODULES, *_NAMES, *_FLEET_MODULES]


def make_name_error(module: str, name: str, names: Iterable[str]) -> AttributeError:
    """Return the error for a v2 name that this runtime lacks."""
    place = module.replace("pslaunch.runtime", "paddle")
    return AttributeError(f"{place}.{name} is not in this runtime; it has {', '.join(sorted(names))}")


def publish(module: str, names: Iterable[str]) -> None:
    """Let `dir()` of a module show only these names, and an access to another name list them."""

    def raise_name_error(name: str) -> Any:
        raise make_name_error(module, name, names)

    # Set at run time: with definitions in the module, type checkers would accept any name.
    vars(sys.modules[module]).update(__getattr__=raise_name_error, __dir__=lambda: sorted(names))


def __getattr__(name: str) -> Any:
    if name in (*_MODULES, *_FLEET_MODULES):
        return importlib.import_module(f"pslaunch.runtime.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise make_name_error(__name__, name, __all__)


def __dir__() -> list[str]:
    return sorted(__all__)
