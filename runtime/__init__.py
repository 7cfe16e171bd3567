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
    "pooling",
    "reader",
    "trainer",
)
_NAMES = {
    "init": "pslaunch.runtime.settings",
    "batch": "pslaunch.runtime.reader",
    "infer": "pslaunch.runtime.inference",
}
# PaddlePaddle 2's, of static mode
_FLEET_MODULES = ("core", "distributed", "fleet", "io", "nn", "regularizer", "static")
_TENSOR_FUNCTIONS = (
    "abs",
    "add",
    "add_n",
    "cast",
    "clip",
    "concat",
    "divide",
    "exp",
    "flatten",
    "full",
    "log",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "multiply",
    "ones",
    "pow",
    "reshape",
    "rsqrt",
    "scale",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "subtract",
    "sum",
    "tanh",
    "transpose",
    "unsqueeze",
    "zeros",
)
_NAMES.update(dict.fromkeys(_TENSOR_FUNCTIONS, "pslaunch.runtime.static.tensor"))
_NAMES.update(
    {
        "CPUPlace": "pslaunch.runtime.static.executor",
        "ParamAttr": "pslaunch.runtime.static.attr",
        "create_parameter": "pslaunch.runtime.nn.layers",
        "disable_static": "pslaunch.runtime.static.mode",
        "enable_static": "pslaunch.runtime.static.mode",
        "get_device": "pslaunch.runtime.static.mode",
        "in_dynamic_mode": "pslaunch.runtime.static.mode",
        "is_compiled_with_cuda": "pslaunch.runtime.static.mode",
        "seed": "pslaunch.runtime.static.mode",
        "set_device": "pslaunch.runtime.static.mode",
    }
)
__version__ = "2.6.2"  # of PaddlePaddle, whose names these are: programs compare it with theirs
__all__ = [*_MODULES, *_NAMES, *_FLEET_MODULES, "__version__"]


def make_name_error(module: str, name: str, names: Iterable[str]) -> AttributeError:
    """Return the error for a name of PaddlePaddle that this runtime lacks; it has the nearest, or all."""
    from difflib import get_close_matches  # rarely needed

    place, known = module.replace("pslaunch.runtime", "paddle"), sorted(names)
    near = get_close_matches(name, known, 1, cutoff=0.75)  # below, it is another word: save, scale
    hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}"
    # Without an object Python does not add a hint of its own.
    return AttributeError(f"{place}.{name} is not in this runtime; {hint}", name=name, obj=None)


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
