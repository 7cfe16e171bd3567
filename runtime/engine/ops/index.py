"""Operations that choose, repeat and order items along an axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays import F32, Ids
from ..graph import FREE, Value
from .base import FLOAT, Array, Grads, Op, Shape, Step, describe
from .elementwise import broadcast, sum_axes, sum_to_shape


class Where(Op, op="where", takes="any any id", gives=None):
    """The first input where the condition, the last one, is not 0, else the second; sizes of broadcast()."""

    def find_shape(self, x: Value, y: Value, condition: Value) -> Shape:
        if x.kind != y.kind:
            raise ValueError(f"inputs {describe(x)} and {describe(y)} are of different dtypes")
        return broadcast(self, x, y, condition)

    def forward(self, step: Step, x: Array, y: Array, condition: Ids) -> Array:
        return np.where(condition != 0, x, y)

    def backward(self, step: Step, grad: F32, result: F32, x: F32, y: F32, condition: Ids) -> Grads:
        back_x = sum_to_shape(grad * (condition != 0), x.shape, step.threads)
        return back_x, sum_to_shape(grad * (condition == 0), y.shape, step.threads), None


class _AlongAxis(Op):
    """Of each sample, along `axis`."""

    def find_shape(self, x: Value, *index: Value) -> Shape:
        if self.axes[0] == 0 and x.has_batch:
            raise ValueError(f"axis=0: input {describe(x)} has the batch there")
        return x.shape


class Gather(_AlongAxis, op="gather", takes="any id", gives=None, options="axis", keeps_items=False):
    """The items of x at the places of an index, along `axis`; those of a batch by an index with a batch."""

    def find_shape(self, x: Value, *index: Value) -> Shape:
        axis, places = self.axes[0], index[0]
        if (x.has_batch and axis == 0) != places.has_batch and (x.has_batch or axis > 0):
            raise ValueError(f"input {describe(x)} has no places {describe(places)} at axis {axis}")
        return (*x.shape[:axis], *places.shape, *x.shape[axis + 1 :])

    def forward(self, step: Step, x: Array, index: Ids) -> Array:
        return np.take(x, self.check_ids(index, x.shape[self.axes[0]], what="index"), self.axes[0])

    def backward(self, step: Step, grad: F32, result: F32, x: F32, index: Ids) -> Grads:
        back = np.zeros_like(x)
        parts: Any = (slice(None),) * self.axes[0] + (index,)
        np.add.at(back, parts, grad)  # in the order of the index
        return back, None


class TakeAlong(_AlongAxis, op="take_along_axis", takes="any id", gives=None, options="axis"):
    """The items of x at the places of an index of its shape but along `axis`: of each row its own."""

    def find_shape(self, x: Value, *index: Value) -> Shape:
        axis, shape = self.axes[0], index[0].shape
        others = [one[:axis] + one[axis + 1 :] for one in (super().find_shape(x), shape)]
        if others[0] != others[1] or len(x.shape) != len(shape):
            raise ValueError(f"inputs {describe(x)} and {describe(index[0])} do not fit at axis {axis}")
        return shape

    def forward(self, step: Step, x: Array, index: Ids) -> Array:
        self.check_ids(index, x.shape[self.axes[0]], what="index")
        return np.take_along_axis(x, index, self.axes[0])

    def backward(self, step: Step, grad: F32, result: F32, x: F32, index: Ids) -> Grads:
        back = np.zeros_like(x)
        places: list[Any] = list(np.indices(index.shape, sparse=True))
        places[self.axes[0]] = index
        np.add.at(back, tuple(places), grad)  # in the order of the index
        return back, None


class Order(_AlongAxis, op="order", takes="any", gives="id", options="axis k largest"):
    """Places of the `k` largest or smallest items along `axis` in this order, of equal ones the first."""

    def find_shape(self, x: Value, *_: Value) -> Shape:
        shape, axis, k = super().find_shape(x), self.axes[0], self.attrs["k"]
        if k < 1 or FREE != shape[axis] < k:
            raise ValueError(f"k={k}: input {describe(x)} has not so many items at axis {axis}")
        return (*shape[:axis], k, *shape[axis + 1 :])

    def forward(self, step: Step, x: Array) -> Ids:
        ordered = np.argsort(-x if self.attrs["largest"] else x, self.axes[0], "stable")
        return np.take(ordered, range(self.attrs["k"]), self.axes[0])


class RunningSum(_AlongAxis, op="cumsum", options="axis"):
    """Each item with those before it along `axis`."""

    def forward(self, step: Step, x: F32) -> F32:
        return np.cumsum(x, self.axes[0], FLOAT)

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        return (np.flip(np.cumsum(np.flip(grad, self.axes[0]), self.axes[0], FLOAT), self.axes[0]),)


class Tile(Op, op="tile", takes="any", gives=None, options="repeats"):
    """x repeated so many times along each axis; `repeats` may have more, for axes before."""

    def find_shape(self, x: Value) -> Shape:
        repeats, more = self.attrs["repeats"], len(self.attrs["repeats"]) - len(x.shape)
        if more < 0 or min(repeats, default=1) < 1 or (x.has_batch and (more > 0 or repeats[0] > 1)):
            raise ValueError(f"input {describe(x)} can't be repeated {list(repeats)} times; the batch stays")
        pairs = zip((1,) * more + x.shape, repeats, strict=True)
        return tuple([size if size == FREE else size * n for size, n in pairs])

    def forward(self, step: Step, x: Array) -> Array:
        return np.tile(x, self.attrs["repeats"])

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        repeats = self.attrs["repeats"]
        pairs = zip(repeats, (1,) * (len(repeats) - x.ndim) + x.shape, strict=True)
        parts = grad.reshape([size for pair in pairs for size in pair])
        return (sum_axes(parts, range(0, parts.ndim, 2), step.threads).reshape(x.shape),)


class OneHot(Op, op="one_hot", takes="id", options="num_classes"):
    """A row for each id, 1 at its place and else 0."""

    def find_shape(self, x: Value) -> Shape:
        return (*x.shape, self.attrs["num_classes"])

    def forward(self, step: Step, x: Ids) -> F32:
        classes: int = self.attrs["num_classes"]
        return np.asarray(self.check_ids(x, classes, 0, "index")[..., None] == np.arange(classes), FLOAT)
