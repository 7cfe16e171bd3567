"""Operations that choose, repeat and order items along an axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..arrays import F32, Ids
from ..graph import FREE, Value
from .base import FLOAT, Array, Grads, Op, Shape, Step, describe
from .cost import check_labels
from .elementwise import Arithmetic, resolve_axes, sum_axes, sum_to_shape


def _check(op: Op, places: Ids, size: int) -> Ids:
    check_labels(places, size, op.value.inputs[-1].name, "index")
    return places


class Where(Op, op="where", takes=(None, None, "id"), gives=None):
    """The first input where the condition, the last one, is not 0, else the second; sizes as Arithmetic's."""

    @staticmethod
    def find_shape(attrs: Mapping[str, Any], x: Value, y: Value, condition: Value) -> Shape:
        if x.kind != y.kind:
            raise ValueError(f"inputs {describe(x)} and {describe(y)} are of different dtypes")
        shape = Arithmetic.find_shape({}, x, y)
        return Arithmetic.find_shape({}, Value(name="both", op="data", shape=shape), condition)

    def forward(self, step: Step, x: Array, y: Array, condition: Ids) -> Array:
        return np.where(condition != 0, x, y)

    def backward(self, step: Step, grad: F32, result: F32, x: F32, y: F32, condition: Ids) -> Grads:
        back_x = sum_to_shape(grad * (condition != 0), x.shape, step.threads)
        return back_x, sum_to_shape(grad * (condition == 0), y.shape, step.threads), None


class _AlongAxis(Op):
    """Of each sample, along `axis`."""

    def __init__(self, value: Value, needs: Sequence[bool]) -> None:
        super().__init__(value, needs)
        (self._axis,) = resolve_axes(value.inputs[0], value.attrs["axis"])

    @staticmethod
    def find_axis(attrs: Mapping[str, Any], x: Value) -> int:
        """Return the axis as a number from 0; raises ValueError if it is that of the batch."""
        (axis,) = resolve_axes(x, attrs["axis"])
        if axis == 0 and x.has_batch:
            raise ValueError(f"axis={axis}: input {describe(x)} has the batch there")
        return axis


class Gather(_AlongAxis, op="gather", takes=(None, "id"), gives=None, options=("axis",), keeps_items=False):
    """The items of x at the places of an index, along `axis`; those of a batch by an index with a batch."""

    @staticmethod
    def find_shape(attrs: Mapping[str, Any], x: Value, index: Value) -> Shape:
        (axis,) = resolve_axes(x, attrs["axis"])
        if (x.has_batch and axis == 0) != index.has_batch and (x.has_batch or axis > 0):
            raise ValueError(f"input {describe(x)} has no places {describe(index)} at axis {axis}")
        return (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])

    def forward(self, step: Step, x: Array, index: Ids) -> Array:
        return np.take(x, _check(self, index, x.shape[self._axis]), self._axis)

    def backward(self, step: Step, grad: F32, result: F32, x: F32, index: Ids) -> Grads:
        back = np.zeros_like(x)
        parts: Any = (slice(None),) * self._axis + (index,)
        np.add.at(back, parts, grad)  # in the order of the index
        return back, None


class TakeAlong(_AlongAxis, op="take_along_axis", takes=(None, "id"), gives=None, options=("axis",)):
    """The items of x at the places of an index of its shape but along `axis`: of each row its own."""

    @classmethod
    def find_shape(cls, attrs: Mapping[str, Any], x: Value, index: Value) -> Shape:
        axis = cls.find_axis(attrs, x)
        others = [one.shape[:axis] + one.shape[axis + 1 :] for one in (x, index)]
        if others[0] != others[1] or len(x.shape) != len(index.shape):
            raise ValueError(f"inputs {describe(x)} and {describe(index)} do not fit at axis {axis}")
        return index.shape

    def forward(self, step: Step, x: Array, index: Ids) -> Array:
        return np.take_along_axis(x, _check(self, index, x.shape[self._axis]), self._axis)

    def backward(self, step: Step, grad: F32, result: F32, x: F32, index: Ids) -> Grads:
        back = np.zeros_like(x)
        places: list[Any] = list(np.indices(index.shape, sparse=True))
        places[self._axis] = index
        np.add.at(back, tuple(places), grad)  # in the order of the index
        return back, None


class Order(_AlongAxis, op="order", takes=(None,), gives="id", options=("axis", "k", "largest")):
    """Places of the `k` largest or smallest items along `axis` in this order, of equal ones the first."""

    @classmethod
    def find_shape(cls, attrs: Mapping[str, Any], x: Value) -> Shape:
        axis, k = cls.find_axis(attrs, x), attrs["k"]
        if k < 1 or FREE != x.shape[axis] < k:
            raise ValueError(f"k={k}: input {describe(x)} has not so many items at axis {axis}")
        return (*x.shape[:axis], k, *x.shape[axis + 1 :])

    def forward(self, step: Step, x: Array) -> Ids:
        ordered = np.argsort(-x if self.value.attrs["largest"] else x, self._axis, "stable")
        return np.take(ordered, range(self.value.attrs["k"]), self._axis)


class RunningSum(_AlongAxis, op="cumsum", options=("axis",)):
    """Each item with those before it along `axis`."""

    @classmethod
    def find_shape(cls, attrs: Mapping[str, Any], x: Value) -> Shape:
        cls.find_axis(attrs, x)
        return x.shape

    def forward(self, step: Step, x: F32) -> F32:
        return np.cumsum(x, self._axis, FLOAT)

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        return (np.flip(np.cumsum(np.flip(grad, self._axis), self._axis, FLOAT), self._axis),)


class Tile(Op, op="tile", takes=(None,), gives=None, options=("repeats",)):
    """x repeated so many times along each axis; `repeats` may have more, for axes before."""

    @staticmethod
    def find_shape(attrs: Mapping[str, Any], x: Value) -> Shape:
        repeats, more = attrs["repeats"], len(attrs["repeats"]) - len(x.shape)
        if more < 0 or min(repeats, default=1) < 1 or (x.has_batch and (more > 0 or repeats[0] > 1)):
            raise ValueError(f"input {describe(x)} can't be repeated {list(repeats)} times; the batch stays")
        pairs = zip((1,) * more + x.shape, repeats, strict=True)
        return tuple([size if size == FREE else size * n for size, n in pairs])

    def forward(self, step: Step, x: Array) -> Array:
        return np.tile(x, self.value.attrs["repeats"])

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        repeats = self.value.attrs["repeats"]
        pairs = zip(repeats, (1,) * (len(repeats) - x.ndim) + x.shape, strict=True)
        parts = grad.reshape([size for pair in pairs for size in pair])
        return (sum_axes(parts, range(0, parts.ndim, 2), step.threads).reshape(x.shape),)


class OneHot(Op, op="one_hot", takes=("id",), options=("num_classes",)):
    """A row for each id, 1 at its place and else 0."""

    @staticmethod
    def find_shape(attrs: Mapping[str, Any], x: Value) -> Shape:
        return (*x.shape, attrs["num_classes"])

    def forward(self, step: Step, x: Ids) -> F32:
        classes: int = self.value.attrs["num_classes"]
        return np.asarray(_check(self, x, classes)[..., None] == np.arange(classes), FLOAT)
