"""Array types and the row arithmetic of embeddings; all of it deterministic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
U64 = npt.NDArray[np.uint64]
Ids = npt.NDArray[np.int64]
Index = npt.NDArray[np.intp]

MAX_IDS = 2**32  # of one table: `unique_rows` packs an id and its place into 64 bits
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one table that a batch needs, and where.

    keys: [k], ascending, each once. index: [n], place in `keys` of each id asked for. order: [n], the
    ids' places sorted by key, equal ones as they came. starts: [k], where in `order` each key begins.
    """

    keys: U64
    index: Index
    order: Index
    starts: Index


def find_unique_rows(ids: Ids) -> Rows:
    """The rows that `ids`, [n], each below MAX_IDS, ask for. O(n log n)."""
    n = ids.size
    packed = ids.astype(np.uint64).ravel()
    packed <<= _SHIFT
    packed |= np.arange(n, dtype=np.uint64)
    packed.sort()  # id, then place: a stable order from the fastest sort that numpy has
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
    """[n, dim] gradients to [k, dim]: those of one key summed in the order in which they came."""
    sorted_grads = np.take(grads, rows.order, axis=0)
    return np.asarray(np.add.reduceat(sorted_grads, rows.starts, axis=0), dtype=np.float32)
