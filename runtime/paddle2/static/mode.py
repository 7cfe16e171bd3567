"""Static mode is the only one."""

from __future__ import annotations

from typing import NoReturn

from ...engine.ops.signature import make_function
from ...process.settings import set_seed
from .executor import CPUPlace

enable_static = make_function("enable_static", "None; static mode is always on", lambda: None)
in_dynamic_mode = make_function("in_dynamic_mode", "False", lambda: False)
is_compiled_with_cuda = make_function("is_compiled_with_cuda", "False", lambda: False)
get_device = make_function("get_device", '"cpu"', lambda: "cpu")


def disable_static(place: object = None) -> NoReturn:
    """Raise RuntimeError: there is no imperative mode."""
    raise RuntimeError(
        "disable_static: this runtime has no imperative mode; describe a program for static.Executor"
    )


def set_device(device: str) -> CPUPlace:
    """Return CPUPlace() for "cpu"; raises ValueError for another device."""
    if device != "cpu":
        raise ValueError(f"set_device: {device!r}, expected 'cpu'; this runtime computes on the CPU")
    return CPUPlace()


def seed(seed: int) -> None:
    """Set the seed of all random numbers; before the startup program is run."""
    set_seed(seed)
