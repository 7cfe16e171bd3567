"""The backends by name: those of this package, and those that other packages add as entry points."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, cast

from ..errors import SpecError

if TYPE_CHECKING:
    from ..options.options import Option
    from .face import Face

GROUP = "pslaunch.backends"  # of entry points
OWN = ("local", "fabric", "mpi", "slurm", "k8s")  # folders beside this file, each with its FACE


@functools.cache
def find_face(name: str) -> Face:
    """Return the face of a backend, imported only now. Raises SpecError."""
    if name in OWN:
        return cast("Face", importlib.import_module(f".{name}", __package__).FACE)
    added = find_added()
    if name not in added:
        raise SpecError(f"no backend {name!r}; expected one of {', '.join(sorted({*OWN, *added}))}")
    module, _, attribute = added[name].partition(":")
    try:
        return cast("Face", getattr(importlib.import_module(module), attribute))
    except Exception as e:  # of another's code
        raise SpecError(f"the backend {name!r} of {module} can't be imported: {e!r}; uninstall it") from e


@functools.cache
def find_added() -> Mapping[str, str]:
    """Return the entry points of other packages, `module:attribute` by name.

    importlib.metadata would take as long to import as typer.
    """
    found: dict[str, str] = {}
    for folder in sys.path:
        try:
            names = [entry.name for entry in os.scandir(folder or ".") if entry.name.endswith(".dist-info")]
        except OSError:
            continue
        for name in names:
            for key, value in _read_entry_points(f"{folder or '.'}/{name}/entry_points.txt"):
                found.setdefault(key, value)
    return {name: value for name, value in found.items() if name not in OWN}


def _read_entry_points(path: str) -> Iterator[tuple[str, str]]:
    try:
        with open(path, encoding="utf-8") as f:  # noqa: PTH123 # pathlib is slow to import
            lines = f.read().splitlines()
    except (OSError, ValueError):  # most packages have none
        return
    section = ""
    for line in map(str.strip, lines):
        if line.startswith("["):
            section = line
        elif section == f"[{GROUP}]" and "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            yield key.strip(), value.strip()


def get_options(name: str) -> dict[str, Option]:
    """Return the options of a backend's commands, by name. Raises SpecError."""
    return {option.name: option for option in find_face(name).list_options()}


def find_owners(option: str) -> list[str]:
    """Return the names of the backends that have an option, those of other packages last."""
    return [name for name in (*OWN, *find_added()) if option in get_options(name)]
