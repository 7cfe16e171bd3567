"""The bundled runtime: `import pslaunch.runtime as paddle` is enough for a v2 or a Fleet program.

Importing it does not load numpy: each name is loaded on first use, so that the launcher and a pserver,
which need only a part, stay small. Never imports launcher code.

Programs import by the names of PaddlePaddle, whose modules lie in rooms here: PUBLIC says where.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

if __name__ != "pslaunch.runtime":  # run from a checkout, `import runtime` would make second copies
    raise ImportError("this folder is imported as 'pslaunch.runtime'; install the project (make dev) first")

_OWN_V2 = (
    "activation", "data_type", "dataset", "evaluator", "event", "layer", "networks", "parameters",
    "pooling", "reader", "trainer",
)  # fmt: skip
_V2 = {
    **{name: f"v2.{name}" for name in _OWN_V2},
    "attr": "engine.attr",
    "optimizer": "engine.optimizer",
}
_PADDLE2 = {  # of static mode and Fleet
    **{name: f"paddle2.{name}" for name in ("core", "distributed", "fleet", "io", "nn", "static")},
    "base": "paddle2.lod_tensor",
    "regularizer": "engine.regularizer",
}
_FLEET = {
    "fleet.base": "paddle2.base",
    "fleet.base.role_maker": "paddle2.base.role_maker",
    "fleet.data_generator": "paddle2.fleet.data_generator",
    "fleet.metrics": "paddle2.fleet.metrics",
}
# Each module that a program may import, and where it is in this package; it shows the names of its __all__.
PUBLIC = {
    **_V2,
    **_PADDLE2,
    **_FLEET,
    **{f"dataset.{name}": f"v2.dataset.{name}" for name in ("imdb", "imikolov", "movielens", "uci_housing")},
    "distributed.fleet": "paddle2.fleet",
    **{f"distributed.{name}": place for name, place in _FLEET.items()},
    "nn.functional": "paddle2.nn.functional",
    "nn.initializer": "paddle2.program.initializer",
    "optimizer.lr": "engine.lr",
    "reader.creator": "v2.creator",
    "reader.decorator": "v2.reader",
    "static.nn": "paddle2.static.nn",
    # beside those of PaddlePaddle
    "arrays": "engine.arrays",
    "entry": "engine.entry",
    "hashing": "engine.hashing",
    "inference": "v2.inference",
    "serving": "files.serving",
    "strategy": "engine.strategy",
}
_MODE_FUNCTIONS = (
    "disable_static", "enable_static", "get_device", "in_dynamic_mode", "is_compiled_with_cuda", "seed",
    "set_device",
)  # fmt: skip
_TENSOR_FUNCTIONS = (
    "abs", "add", "add_n", "argmax", "argmin", "argsort", "bmm", "cast", "clip", "concat", "cumsum",
    "divide", "dot", "equal", "erf", "exp", "expand", "expand_as", "flatten", "floor", "full",
    "full_like", "gather", "greater_equal", "greater_than", "index_select", "less_equal", "less_than",
    "log", "logical_and", "logical_not", "logical_or", "matmul", "max", "maximum", "mean", "min",
    "minimum", "mm", "multiply", "not_equal", "ones", "ones_like", "pow", "reshape", "rsqrt", "scale",
    "shape", "sign", "slice", "split", "sqrt", "square", "squeeze", "stack", "subtract", "sum",
    "take_along_axis", "tanh", "tile", "topk", "transpose", "unsqueeze", "where", "zeros", "zeros_like",
)  # fmt: skip
# Each function and class of this package itself, and where it is.
_NAMES = {
    **dict.fromkeys(_MODE_FUNCTIONS, "paddle2.static.mode"),
    **dict.fromkeys(_TENSOR_FUNCTIONS, "paddle2.program.tensor"),
    "CPUPlace": "paddle2.static.executor",
    "ParamAttr": "paddle2.program.param_attr",
    "batch": "v2.reader",
    "create_parameter": "paddle2.nn.layers",
    "infer": "v2.inference",
    "init": "process.settings",
}
__version__ = "2.6.2"  # of PaddlePaddle, whose names these are: programs compare it with theirs
__all__ = [*_V2, *_PADDLE2, *_NAMES, "__version__"]
_NAMES["Client"] = "client.client"  # beside those of PaddlePaddle
_PREFIX = f"{__name__}."


# Names of PaddlePaddle that this runtime lacks, and what there is for their work.
_INSTEAD = {
    "Model": "static.Program and static.Executor",
    "load": "static.load",
    "save": "static.save",
    "to_tensor": "static.data and a feed, or full",
    "distributed.all_gather": "fleet.util.all_gather",
    "distributed.all_reduce": "fleet.util.all_reduce",
    "distributed.barrier": "fleet.barrier_worker",
    "fleet.load_inference_model": "static.load_inference_model",
    "fleet.load_model": "fleet.load_persistables",
    "fleet.minimize": "fleet.distributed_optimizer(optimizer).minimize",
    "fleet.save_dense_params": "fleet.save_persistables",
    "io.Dataset": "io.DataLoader.from_generator",
    "nn.Flatten": "flatten",
    "static.CompiledProgram": "the static.Program itself",
    "static.append_backward": "minimize() of an optimizer",
    "static.cpu_places": "CPUPlace",
}


def make_name_error(module: str, name: str, names: Iterable[str]) -> AttributeError:
    """Return the error for a name that is not here: with its substitute, what was meant, or all."""
    from .shared.env import suggest  # rarely needed

    place, known = module.replace("pslaunch.runtime", "paddle"), sorted(names)
    instead = _INSTEAD.get(f"{place}.{name}".removeprefix("paddle.").replace("distributed.fleet", "fleet"))
    # Below this cutoff it is another word: shape, reshape.
    hint = (
        f"; use {instead}" if instead else suggest(name, known, f"; it has {', '.join(known)}", cutoff=0.85)
    )
    # Without an object Python does not add a hint of its own.
    return AttributeError(f"{place}.{name} is not in this runtime{hint}", name=name, obj=None)


def _show_names(module: ModuleType, public: str) -> None:
    """Let `dir()` of a module show only its __all__, and an access to another name list them."""
    names = module.__all__

    def raise_name_error(name: str) -> Any:
        raise make_name_error(public, name, names)

    # Set at run time: with definitions in the module, type checkers would accept any name.
    vars(module).update(__getattr__=raise_name_error, __dir__=lambda: sorted(names))


class _PublicNames:
    """Imports the modules of PUBLIC: the public name is another one of the same module."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        name = fullname[len(_PREFIX) :] if fullname.startswith(_PREFIX) else ""
        if name in PUBLIC:
            inner = any(other.startswith(f"{name}.") for other in PUBLIC)
            return ModuleSpec(fullname, self, is_package=inner)  # type: ignore[arg-type]  # importlib.abc is slow
        if name.partition(".")[0] in PUBLIC:  # found in the folder of a public one, it would be a second copy
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(_PREFIX + PUBLIC[spec.name[len(_PREFIX) :]])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        module.__spec__ = spec.loader_state  # the import has replaced it
        name = spec.name[len(_PREFIX) :]
        if hasattr(module, "__all__") and not hasattr(module, "__getattr__"):
            _show_names(module, spec.name)
        for other in PUBLIC:  # a program reaches them as attributes as well
            if other.rpartition(".")[0] == name:
                importlib.import_module(_PREFIX + other)


sys.meta_path.insert(0, _PublicNames())


def __getattr__(name: str) -> Any:
    if name in PUBLIC:
        return importlib.import_module(_PREFIX + name)
    if name in _NAMES:
        return getattr(importlib.import_module(_PREFIX + _NAMES[name]), name)
    raise make_name_error(__name__, name, __all__)


def __dir__() -> list[str]:
    return sorted(__all__)
