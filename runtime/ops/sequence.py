"""Operations on sequences, whose items lie one after the other: each sample has a range of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import _core
from ..arrays import F32, Ids
from ..graph import Value
from .base import Grads, Op, Shape, Step, describe

POOLS = ("average", "first", "last", "max", "sum")


class Pool(Op, op="pool"):
    """One item for each sample, from all of its sequence: `by` is one of POOLS. An empty sequence gives 0."""

    options = ("by",)
    reads_result = True
    keeps_items = False

    @staticmethod
    def find_shape(attrs: Mapping[str, Any], x: Value) -> Shape:
        if not x.is_sequence:
            raise ValueError(f"input {describe(x)} is not a sequence")
        if attrs["by"] not in POOLS:
            raise ValueError(f"by={attrs['by']!r}, expected one of {', '.join(POOLS)}")
        return x.shape

    def forward(self, step: Step, x: F32) -> F32:
        starts, lengths, used = self._find_samples(step)
        by = self.value.attrs["by"]
        out: F32 = np.zeros((len(lengths), *x.shape[1:]), dtype=np.float32)
        rows, sums = x.reshape(len(x), self.value.size), out.reshape(len(out), self.value.size)
        if by in ("first", "last"):
            out[used] = x[starts if by == "first" else starts + lengths[used] - 1]
        elif by == "max":
            sums[used] = np.maximum.reduceat(rows, starts, axis=0) if len(used) else 0.0
        else:
            _core.sum_rows(sums, np.repeat(np.arange(len(out)), lengths), [rows], step.threads)
            if by == "average":
                sums /= np.maximum(lengths, 1)[:, None].astype(np.float32)
        return out

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        starts, lengths, used = self._find_samples(step)
        by = self.value.attrs["by"]
        if by in ("first", "last"):
            back: F32 = np.zeros_like(x)
            back[starts if by == "first" else starts + lengths[used] - 1] = grad[used]
            return (back,)
        if by == "average":
            grad = grad / np.maximum(lengths, 1).astype(np.float32).reshape(-1, *(1,) * (x.ndim - 1))
        back = np.repeat(grad, lengths, axis=0)
        if by == "max" and len(x):  # to the first item that is as high
            highest = x == np.repeat(result, lengths, axis=0)
            numbers = np.arange(len(x)).reshape(-1, *(1,) * (x.ndim - 1))
            places = np.where(highest, numbers, len(x))
            first = np.repeat(np.minimum.reduceat(places, starts, axis=0), lengths[used], axis=0)
            back = np.where(numbers == first, back, np.float32(0.0))
        return (back,)

    def _find_samples(self, step: Step) -> tuple[Ids, Ids, Ids]:
        """Return the starts of sequences with items, the lengths of all, and the samples of the first."""
        offsets = step.offsets[self.sequence]
        lengths = np.diff(offsets)
        used = np.flatnonzero(lengths)
        return offsets[used], lengths, used
