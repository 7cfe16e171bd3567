"""Array types and the row arithmetic of embeddings; all of it deterministic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core

F32 = npt.NDArray[np.float32]
U64 = npt.NDArray[np.uint64]
Ids = npt.NDArray[np.int64]
Index = npt.NDArray[np.intp]
# Rows of ids [n, dim]; or of bags, with offsets, weights of the ids, and the place of a padding id or -1.
Part = F32 | tuple[F32, Ids, F32 | None, int]

CHUNK_BYTES = 8 << 20  # values of a large parameter that are moved at a time


@dataclass(frozen=True, slots=True)
class Sequences:
    """A sequence of items for each sample: all items, one sample after the other, and their starts.

    offsets: [samples + 1], the last is the number of items.
    """

    items: npt.NDArray[Any]
    offsets: Ids

    def __post_init__(self) -> None:
        offsets = self.offsets
        if offsets.ndim != 1 or offsets.dtype != np.int64 or offsets.size == 0:
            raise ValueError(f"offsets of sequences: {offsets!r}, expected an array of int64")
        if offsets[0] != 0 or offsets[-1] != len(self.items) or np.any(offsets[1:] < offsets[:-1]):
            raise ValueError(
                f"offsets of sequences: {offsets!r}, expected numbers that ascend from 0 to the number of "
                f"items, {len(self.items)}"
            )


def find_offsets(counts: npt.ArrayLike) -> Ids:
    """Return the starts of ranges with these lengths, and the end of the last."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one table that a batch needs, and their positions.

    keys: [k], unique, in the order of their first use. index: [n], position in `keys` of each requested id.
    """

    keys: U64
    index: Index


def find_rows(ids: Mapping[str, tuple[int, Ids]], threads: int = 1) -> dict[str, Rows]:
    """Return the unique rows of each table for its number of rows and the ids of a batch, [n], in one pass.

    Raises ValueError if an id is out of range.
    """
    total = sum(len(own) for _, own in ids.values())
    keys, index = np.empty(total, dtype=np.uint64), np.empty(total, dtype=np.intp)
    found, at = {}, 0
    counts = _core.find_rows(list(ids.values()), keys, index, threads)
    for (name, (_, own)), count in zip(ids.items(), counts, strict=True):
        found[name] = Rows(keys[at : at + count], index[at : at + len(own)])
        at += len(own)
    return found


def sum_rows(count: int, index: Index, parts: Sequence[Part], threads: int = 1) -> F32:
    """Sum the rows of all parts, [.., dim] with dense rows, to [count, dim], each to that at its index.

    Those of one index are added in their order.
    """
    first = parts[0] if isinstance(parts[0], np.ndarray) else parts[0][0]
    total = np.empty((count, first.shape[1]), dtype=np.float32)
    _core.sum_rows(total, index, list(parts), threads)
    return total


def split_rows(rows: int, cols: int) -> Iterator[tuple[slice, U64]]:
    """Yield all rows in order and their keys, in chunks of at most CHUNK_BYTES of values or one row."""
    step = max(1, CHUNK_BYTES // (4 * cols))
    for at in range(0, rows, step):
        end = min(at + step, rows)
        yield slice(at, end), np.arange(at, end, dtype=np.uint64)
