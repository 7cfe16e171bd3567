"""All parameters of a set in memory."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pslaunch.runtime.files.joined import Floats, Keys64, find_items, find_steps, join
from pslaunch.runtime.files.sets import Set


class Saved(NamedTuple):
    """One parameter of a set: keys, values and state are those of join()."""

    steps: int  # updates applied to the values
    torn: bool  # some values have one update more: the pserver ended while a step was applied
    total: int  # values of the whole dense parameter; known rows of a table
    method: str
    keys: Keys64 | None
    values: Floats
    state: Floats | None


def load(folder: Path) -> dict[str, Saved]:
    """Return all parameters by name. Raises SetError, OSError."""
    found = Set(folder)
    found.open_all()
    saved = {}
    for name, shape in found.shapes.items():
        steps, torn = find_steps(find_items(found, name))
        saved[name] = Saved(steps, torn, shape.total, shape.method, *join(found, name))
    return saved
