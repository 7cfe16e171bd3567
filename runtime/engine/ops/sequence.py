"""Operations on sequences, whose items lie one after the other: each sample has a range of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ... import _core
from ..arrays import F32, Ids
from ..graph import Value
from .base import Grads, Op, Shape, Step, describe

SUMS = ("average", "sqrt", "sum")
POOLS = (*SUMS, "first", "last", "max")


class Pool(Op, op="pool", options=("by",), keeps_items=False):
    """One item for each sample, from all of its sequence: `by` is one of POOLS. An empty sequence gives 0.

    "sqrt" is the sum divided by the square root of the number of items. A gradient of "max" goes to the first
    item that is as high.
    """

    @staticmethod
    def find_shape(attrs: Mapping[str, Any], x: Value) -> Shape:
        if not x.is_sequence:
            raise ValueError(f"input {describe(x)} is not a sequence")
        if attrs["by"] not in POOLS:
            raise ValueError(f"by={attrs['by']!r}, expected one of {', '.join(POOLS)}")
        return x.shape

    def forward(self, step: Step, x: F32) -> F32:
        by, offsets = self.value.attrs["by"], step.offsets[self.sequence]
        lengths, rows = np.diff(offsets), x.reshape(len(x), self.value.size)
        out = np.zeros((len(lengths), rows.shape[1]), dtype=np.float32)
        if by in SUMS:
            _core.sum_rows(out, np.repeat(np.arange(len(out)), lengths), [rows], step.threads)
            _divide(out, by, lengths, out)
        elif len(x):
            used = np.flatnonzero(lengths)
            self._places = _choose_items(by, rows, offsets[used], lengths[used])
            out[used] = np.take_along_axis(rows, self._places, axis=0)
        return out.reshape(-1, *x.shape[1:])

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        by, lengths = self.value.attrs["by"], np.diff(step.offsets[self.sequence])
        grad = grad.reshape(len(lengths), -1)
        if by in SUMS:
            grad = _divide(grad, by, lengths)
        back = np.repeat(grad, lengths, axis=0)
        if by not in SUMS and len(x):
            back[:] = 0.0
            np.put_along_axis(back, self._places, grad[lengths > 0], axis=0)
        return (back.reshape(x.shape),)


def _divide(sums: F32, by: str, lengths: Ids, out: F32 | None = None) -> F32:
    """Return sums of sequences, divided as `by` says."""
    if by == "sum":
        return sums
    counts = np.maximum(lengths, 1).astype(np.float32)[:, None]
    return np.divide(sums, np.sqrt(counts) if by == "sqrt" else counts, out=out)


def _choose_items(by: str, rows: F32, starts: Ids, lengths: Ids) -> Ids:
    """Return the place of the item of each sequence: one for all columns, or one for each."""
    if by != "max":
        return (starts if by == "first" else starts + lengths - 1)[:, None]
    lower = rows < np.repeat(np.maximum.reduceat(rows, starts, axis=0), lengths, axis=0)
    places: Ids = np.where(lower, len(rows), np.arange(len(rows))[:, None])
    return np.minimum.reduceat(places, starts, axis=0)
