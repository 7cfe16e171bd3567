"""Static mode is the only one."""

from __future__ import annotations

from typing import NoReturn

from ...process.settings import set_seed
from .executor import CPUPlace


def enable_static() -> None:
    """Do nothing: static mode is always on."""


def disable_static(place: object = None) -> NoReturn:
    """Raise RuntimeError: there is no imperative mode."""
    raise RuntimeError(
        "disable_static: this runtime has no imperative mode; describe a program for static.Executor"
    )


def in_dynamic_mode() -> bool:
    """Return False."""
    return False


def set_device(device: str) -> CPUPlace:
    """Return CPUPlace() for "cpu"; raises ValueError for another device."""
    if device != "cpu":
        raise ValueError(f"set_device: {device!r}, expected 'cpu'; this runtime computes on the CPU")
    return CPUPlace()


def get_device() -> str:
    """Return "cpu"."""
    return "cpu"


def is_compiled_with_cuda() -> bool:
    """Return False."""
    return False


def seed(seed: int) -> None:
    """Set the seed of all random numbers; before the startup program is run."""
    set_seed(seed)
