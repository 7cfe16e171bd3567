"""Sums and means. Their order is fixed: it depends on the shape alone."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from .. import _core
from ..arrays import F32
from ..graph import BATCH, Value
from .base import Grads, Op, Shape, Step


@functools.lru_cache(maxsize=16)
def _make_ones(shape: Shape) -> F32:
    return np.ones(shape, dtype=np.float32)


def sum_axis(x: F32, axis: int, threads: int) -> F32:
    """Return the sum over one axis, without it, in a new array.

    Over the last axis in 16 lanes and then by a fixed tree, over others in the order of their items.
    """
    outer, count, inner = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
    shape = x.shape[:axis] + x.shape[axis + 1 :]
    x = np.ascontiguousarray(x)
    if inner == 1:
        out = np.empty(outer, dtype=np.float32)
        rows = x.reshape(outer, count)
        _core.dot_rows(rows, _make_ones(rows.shape), out, threads)
    elif outer == 1:
        out = np.empty((1, inner), dtype=np.float32)
        _core.sum_columns(x.reshape(count, inner), out, threads)
    else:
        items = x.reshape(outer, count, inner)
        out = np.zeros((outer, inner), dtype=np.float32)
        for i in range(count):
            out += items[:, i]
    return out.reshape(shape)


def sum_axes(x: F32, axes: Sequence[int], threads: int) -> F32:
    """Return the sum over several axes, the last one first; over all of them as if they were one."""
    if len(axes) == x.ndim:
        return sum_axis(x.reshape(1, -1), 1, threads)
    for axis in sorted(axes, reverse=True):
        x = sum_axis(x, axis, threads)
    return x


def sum_to_shape(grad: F32, shape: Shape, threads: int) -> F32:
    """Return the gradient of an array of `shape` that was broadcast to the shape of `grad`."""
    if grad.shape == shape:
        return grad
    extra = grad.ndim - len(shape)
    axes = [i for i, size in enumerate(grad.shape) if i < extra or (shape[i - extra] == 1 and size != 1)]
    return sum_axes(grad, axes, threads).reshape(shape)


def resolve_axes(value: Value, axis: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return axes as numbers from 0; None: all. Raises ValueError if the value lacks one."""
    rank = len(value.shape)
    given = [axis] if isinstance(axis, int) else axis or range(rank)
    for one in given:
        if not -rank <= one < rank:
            raise ValueError(f"axis={one}: {value.name} {list(value.shape)} has the axes 0 to {rank - 1}")
    return tuple(sorted({one % rank for one in given}))


class Sum(Op, op="sum"):
    """Sum over `axis`, a number, several or None for all; `keepdim` leaves axes of size 1."""

    options = ("axis", "keepdim")
    divides: ClassVar[bool] = False  # by the number of the items

    def __init__(self, value: Value, needs: Sequence[bool]) -> None:
        super().__init__(value, needs)
        self._axes = resolve_axes(value.inputs[0], value.attrs["axis"])

    @staticmethod
    def find_shape(attrs: Mapping[str, Any], x: Value) -> Shape:
        axes = resolve_axes(x, attrs["axis"])
        kept = tuple(1 if i in axes else size for i, size in enumerate(x.shape))
        return kept if attrs["keepdim"] else tuple(kept[i] for i in range(len(kept)) if i not in axes) or (1,)

    def forward(self, step: Step, x: F32) -> F32:
        total, shape = sum_axes(x, self._axes, step.threads), self.value.shape
        total /= self._find_divisor(x)
        return total.reshape((len(x), *shape[1:]) if shape[0] == BATCH else shape)

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        kept = [1 if i in self._axes else size for i, size in enumerate(x.shape)]
        back = np.empty_like(x)
        back[...] = grad.reshape(kept) / self._find_divisor(x)
        return (back,)

    def _find_divisor(self, x: F32) -> np.float32:
        return np.float32(max(1, math.prod([x.shape[i] for i in self._axes])) if self.divides else 1)


class Mean(Sum, op="mean"):
    """Mean over `axis`: the sum, divided by the number of its items."""

    divides = True
