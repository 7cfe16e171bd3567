"""Objects of a set as numpy arrays, joined from its parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .objects import SetError
from .sets import Set

F32 = npt.NDArray[np.float32]
U64 = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Saved:
    """One parameter of a set.

    Dense: keys None, values [n], state [slots, n]. A table: keys [n], values [n, dim], state [slots, n, dim].
    `state` is the optimizer's, or None.
    """

    name: str
    steps: int  # updates applied to the values
    torn: bool  # some values have one update more: the pserver ended while a step was applied
    total: int  # values of the whole dense parameter; known rows of a table
    method: str
    keys: U64 | None
    values: F32
    state: F32 | None


def read_values(found: Set, name: str, slot: int, out: F32) -> None:
    """Read the values of a dense object, slot 0, or a slot of its state, from 1, into out: [total].

    Raises SetError.
    """
    at = 0
    for part, item, begin, size in found.find_values(name):
        part.read_into(item.at + 4 * (slot * item.count + begin), out[at : at + size])
        at += size


def read_rows(found: Set, name: str, most: int = 4 << 20) -> Iterator[tuple[U64, F32]]:
    """Yield keys [k] and rows [k, 1 + slots, dim] of a table, in pieces of `most` bytes. Raises SetError."""
    for part, item in found.find_rows(name):
        step = max(most // (4 * item.row_floats), 1)
        for begin in range(0, item.count, step):
            n = min(step, item.count - begin)
            keys, rows = np.empty(n, np.uint64), np.empty((n, 1 + item.slots, item.dim), np.float32)
            part.read_into(item.keys_at + 8 * begin, keys)
            part.read_into(item.at + 4 * begin * item.row_floats, rows)
            yield keys, rows


def check_finite(found: Set, names: Iterable[str]) -> None:
    """Raise SetError unless all values in the open parts are finite."""
    for part in found.open_parts:
        for item in (part.items[name] for name in names if name in part.items):
            size, step = item.count * item.row_floats, 1 << 20
            for at in range(0, size, step):
                values = np.empty(min(step, size - at), np.float32)
                part.read_into(item.at + 4 * at, values)
                if not np.isfinite(values).all():
                    raise SetError(
                        f"{part.path} has values of {item.name} that are not finite; take an older set"
                    )


def load(folder: Path) -> dict[str, Saved]:
    """Return all parameters of a set by name, in memory.

    Tables are sorted by key; they lack rows that no trainer pushed: those have their initial values.
    Raises SetError, OSError.
    """
    found = Set(folder)
    try:
        found.open_all()
        return {name: join(found, name) for name in found.shapes}
    finally:
        found.close()


def join(found: Set, name: str) -> Saved:
    """Return one parameter of a set. Raises SetError."""
    shape = found.shapes[name]
    if shape.table:
        items = [item for _, item in found.find_rows(name)]
        count, dim = sum(item.count for item in items), shape.dim
        keys, rows = np.empty(count, np.uint64), np.empty((count, 1 + shape.slots, dim), np.float32)
        at = 0
        for own, some in read_rows(found, name):
            keys[at : at + len(own)], rows[at : at + len(own)] = own, some
            at += len(own)
        order = np.argsort(keys)
        keys, whole = keys[order], rows[order].swapaxes(0, 1)
    else:
        items = [item for _, item, *_ in found.find_values(name)] or [
            item for _, item in found.find_all(name)
        ]
        keys, whole = None, np.empty((1 + shape.slots, shape.total), np.float32)
        for slot, out in enumerate(whole):
            read_values(found, name, slot, out)
    steps = {item.steps for item in items}
    torn = len(steps) > 1 or any(item.torn for item in items)
    state = whole[1:] if shape.slots else None
    return Saved(name, min(steps), torn, shape.total, shape.method, keys, whole[0], state)
