"""The bundled runtime: `import pslaunch.runtime as paddle` is enough for a v2 cluster program.

Importing it costs no numpy: each name is loaded on first use, so that the launcher and a pserver,
which need only a part, stay small. Never imports launcher code.
"""

from __future__ import annotations

import importlib
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
__all__ = [*_MODULES, *_NAMES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"pslaunch.runtime.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'pslaunch.runtime' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
