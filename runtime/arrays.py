"""Array types and the row arithmetic of embeddings; all of it deterministic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from . import _core

F32 = npt.NDArray[np.float32]
U64 = npt.NDArray[np.uint64]
Ids = npt.NDArray[np.int64]
Index = npt.NDArray[np.intp]

CHUNK_BYTES = 8 << 20  # values of a large parameter that are moved at a time
MAX_IDS = 2**32  # per table: `find_unique_rows` packs an id and its position into 64 bits
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one table that a batch needs, and their positions.

    keys: [k], ascending, unique. index: [n], position in `keys` of each requested id. order: [n], the
    ids' positions sorted by key, stable. starts: [k], start of each key in `order`.
    """

    keys: U64
    index: Index
    order: Index
    starts: Index


def find_unique_rows(ids: Ids) -> Rows:
    """Return the unique rows of `ids`, [n], each below MAX_IDS. O(n log n)."""
    n = ids.size
    packed = ids.astype(np.uint64).ravel()
    packed <<= _SHIFT
    packed |= np.arange(n, dtype=np.uint64)
    packed.sort()  # by id, then by position: a stable order from numpy's fastest sort
    order = (packed & _LOW).astype(np.intp)
    packed >>= _SHIFT
    first = np.empty(n, dtype=np.bool_)
    first[:1] = True
    np.not_equal(packed[1:], packed[:-1], out=first[1:])
    starts = np.flatnonzero(first)
    index = np.empty(n, dtype=np.intp)
    index[order] = np.cumsum(first) - 1
    return Rows(packed[starts], index, order, starts)


def sum_rows(rows: Rows, grads: F32) -> F32:
    """Sum [n, dim] gradients to [k, dim], those of one key in the order in which they came."""
    total = np.empty((rows.starts.size, grads.shape[1]), dtype=np.float32)
    _core.sum_groups(total, grads, rows.order, rows.starts)
    return total


def split_keys(rows: int, cols: int) -> Iterator[U64]:
    """Yield the keys of all rows in order, in chunks of at most CHUNK_BYTES of values or one row."""
    step = max(1, CHUNK_BYTES // (4 * cols))
    for at in range(0, rows, step):
        yield np.arange(at, min(at + step, rows), dtype=np.uint64)
