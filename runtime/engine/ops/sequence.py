"""Operations on sequences, whose items lie one after the other: each sample has a range of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ... import _core
from ..arrays import F32, Ids, Part
from ..graph import Graph, Value
from .base import Array, Grads, Op, Shape, Step, as_rows, describe
from .lookup import Lookup

SUMS = ("average", "sqrt", "sum")
POOLS = (*SUMS, "first", "last", "max")


class Pool(Op, op="pool", options="by", keeps_items=False):
    """One item for each sample, from all of its sequence: `by` is one of POOLS. An empty sequence gives 0.

    "sqrt" is the sum divided by the square root of the number of items. A gradient of "max" goes to the first
    item that is as high.
    """

    def find_shape(self, x: Value) -> Shape:
        if not x.is_sequence:
            raise ValueError(f"input {describe(x)} is not a sequence")
        if self.attrs["by"] not in POOLS:
            raise ValueError(f"by={self.attrs['by']!r}, expected one of {', '.join(POOLS)}")
        return x.shape

    @classmethod
    def choose(cls, value: Value, program: Graph, *, trains: bool) -> tuple[type[Op], tuple[Value, ...]]:
        users = Counter(used for one in program for used in one.inputs)
        rows, *weights = value.inputs
        if rows.op == "multiply" and users[rows] == 1:
            rows, *weights = rows.inputs
        is_alone = rows.op == "lookup" and users[rows] == 1 and rows.size == rows.shape[-1]
        if value.attrs["by"] not in SUMS or not is_alone:
            return cls, value.inputs
        inputs = Lookup.choose(rows, program, trains=trains)[1]
        fits = all(
            len(inputs) == 1 and one.op == "data" and one.is_sequence and one.size == 1 for one in weights
        )
        return (PooledLookup, (*inputs, *weights)) if fits else (cls, value.inputs)

    def forward(self, step: Step, x: F32) -> F32:
        by, offsets = self.attrs["by"], step.offsets[self.sequence]
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
        by, lengths = self.attrs["by"], np.diff(step.offsets[self.sequence])
        grad = grad.reshape(len(lengths), -1)
        if by in SUMS:
            grad = _divide(grad, by, lengths)
        back = np.repeat(grad, lengths, axis=0)
        if by not in SUMS and len(x):
            back[:] = 0.0
            np.put_along_axis(back, self._places, grad[lengths > 0], axis=0)
        return (back.reshape(x.shape),)


class Context(Op, op="context", options="length start"):
    """Of each item the `length` items of its sequence from the one `start` places behind it, side by side.

    Beyond the ends of the sequence there are zeros.
    """

    def find_shape(self, x: Value) -> Shape:
        if not x.is_sequence or len(x.shape) != 2 or self.attrs["length"] < 1:
            raise ValueError(f"input {describe(x)} is no sequence of vectors, or a length is below 1")
        return (x.shape[0], x.shape[1] * self.attrs["length"])

    def forward(self, step: Step, x: F32) -> F32:
        out = np.zeros((len(x), self.attrs["length"], x.shape[1]), np.float32)
        for i, places, within in self._find_places(step, len(x)):
            out[within, i] = x[places]
        return out.reshape(len(x), self.value.shape[1])

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        back, parts = np.zeros_like(x), grad.reshape(len(x), self.attrs["length"], x.shape[1])
        for i, places, within in self._find_places(step, len(x)):
            back[places] += parts[within, i]
        return (back,)

    def _find_places(self, step: Step, count: int) -> Iterator[tuple[int, Ids, Array]]:
        """Yield each place of a result, the items that are there, and in which results they are."""
        offsets, start = step.offsets[self.sequence], self.attrs["start"]
        first, end = (np.repeat(one, np.diff(offsets)) for one in (offsets[:-1], offsets[1:]))
        for i in range(self.attrs["length"]):
            places = np.arange(count) + start + i
            within = (places >= first) & (places < end)
            yield i, places[within], within


class PooledLookup(Lookup):
    """Pool of a lookup that nothing else reads, or of its product with weights of its ids, the second input.

    It has the bits of separate operations, without the rows of all ids between them.
    """

    def __init__(self, value: Value, needs: Sequence[bool]) -> None:
        rows = value.inputs[0]
        self._by, self._is_weighted = value.attrs["by"], rows.op == "multiply"
        rows = rows.inputs[0] if self._is_weighted else rows
        super().__init__(replace(rows, name=value.name, shape=value.shape, is_sequence=False), needs)
        self.number = rows.number

    def make_part(self, step: Step, ids: Ids, *others: Array) -> Part:
        return self._pack(self.get_rows(len(step.offsets[self.sequence]) - 1), step, ids, *others)

    def _pack(self, rows: F32, step: Step, ids: Ids, *others: Array) -> Part:
        found = np.flatnonzero([] if self._padding is None else ids == self._padding)
        weights = others[0].reshape(-1) if self._is_weighted else None
        return rows, step.offsets[self.sequence], weights, int(found[0]) if len(found) else -1

    def forward(self, step: Step, ids: Ids, *others: Array) -> F32:
        rows = self.get_rows(len(step.offsets[self.sequence]) - 1)
        rows = _divide(rows, self._by, np.diff(step.offsets[self.sequence]), rows)
        return rows.reshape(-1, *self.value.shape[1:])

    def backward(self, step: Step, grad: F32, result: F32, ids: Ids, *others: Array) -> Grads:
        rows = _divide(as_rows(grad, 1), self._by, np.diff(step.offsets[self.sequence]))
        if not self._is_weighted and others:
            rows = np.column_stack([*[one.reshape(-1).astype(np.float32) for one in others], rows])
        step.row_grads[self.value.name] = self._pack(rows, step, ids, *others)
        return None, *[None for _ in others]


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
