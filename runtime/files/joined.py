"""Objects of a set as numpy arrays, joined from its parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from .objects import COUNTS_BYTES, Item, ObjectShape, SetError
from .sets import Set

Floats = npt.NDArray[np.float32]
Keys64 = npt.NDArray[np.uint64]


def find_items(found: Set, name: str) -> list[Item]:
    """Return the object in each part that has a share of it, or in one if it is empty. Raises SetError."""
    if found.shapes[name].table:
        return [item for _, item in found.find_rows(name)]
    return [item for _, item, *_ in found.find_values(name)] or [found.find_all(name)[0][1]]


def read_values(found: Set, name: str, slot: int, out: Floats) -> None:
    """Read the values of a dense object, slot 0, or a slot of its state, from 1, into out: [total].

    Raises SetError.
    """
    at = 0
    for part, item, begin, size in found.find_values(name):
        part.read_into(item.at + 4 * (slot * item.count + begin), out[at : at + size])
        at += size


def read_rows(
    found: Set, name: str, most: int = 4 << 20, *, waiting: bool = False
) -> Iterator[tuple[Keys64, Floats, Floats]]:
    """Yield keys [k], rows with their state [k, row_floats] and counts [k, 3] of a table, in pieces.

    Counts are as ps_counts has them (csrc/tables/ps_entry.h), [0, 3] without an entry rule. `waiting`: those
    of keys without a row. Raises SetError.
    """
    for part, item in found.find_rows(name):
        first, end = (item.count, item.count + item.waiting) if waiting else (0, item.count)
        step, width = max(most // (4 * item.row_floats), 1), 0 if waiting else item.row_floats
        for begin in range(first, end, step):
            n = min(step, end - begin)
            keys, rows = np.empty(n, np.uint64), np.empty((n, width), np.float32)
            counts = np.empty((n if item.counted else 0, 3), np.float32)
            part.read_into(item.keys_at + 8 * begin, keys)
            if width:
                part.read_into(item.at + 4 * begin * width, rows)
            if item.counted:
                counts_at = item.at + 4 * item.count * item.row_floats
                part.read_into(counts_at + COUNTS_BYTES * begin, counts)
            yield keys, rows, counts


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


def join(found: Set, name: str) -> tuple[Keys64 | None, Floats, Floats | None]:
    """Return keys, values and the optimizer's state of one parameter of a set. Raises SetError.

    Dense: no keys, values [n], state [slots, n]. A table, sorted by key, without the rows that no trainer
    pushed: keys [n], values [n, dim], state [slots, n, dim], or [1, n, 1] if it is one of the row.
    """
    shape, keys = found.shapes[name], None
    if shape.table:
        count = sum(item.count for item in find_items(found, name))
        keys, rows = np.empty(count, np.uint64), np.empty((count, shape.row_floats), np.float32)
        at = 0
        for own, some, _ in read_rows(found, name):
            keys[at : at + len(own)], rows[at : at + len(own)] = own, some
            at += len(own)
        order = np.argsort(keys)
        keys, rows = keys[order], rows[order]
        values, state = split_state(shape, rows)
    else:
        whole = np.empty((1 + shape.slots, shape.total), np.float32)
        for slot, out in enumerate(whole):
            read_values(found, name, slot, out)
        values, state = whole[0], whole[1:]
    return keys, values, state if shape.slots else None


def find_steps(items: Iterable[Item]) -> tuple[int, bool]:
    """Return the steps of an object that is in these parts, and whether some values have one more."""
    steps = {item.steps for item in items}
    return min(steps), len(steps) > 1 or any(item.torn for item in items)


def split_state(shape: ObjectShape, rows: Floats) -> tuple[Floats, Floats]:
    """Return values [k, dim] and state [slots, k, dim], or [1, k, 1], of rows of a table."""
    width = 1 if shape.by_row else shape.dim
    state = rows[:, shape.dim :].reshape(len(rows), shape.slots, width)
    return rows[:, : shape.dim], state.swapaxes(0, 1)
