"""Inputs, parameters, matrix products, and changes of form."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import _core
from ..arrays import F32
from ..graph import BATCH, Value
from .base import FLOAT, ID, Array, Grads, Op, Shape, Step, as_rows, describe


class Data(Op, op="data"):
    """An input of the program, of any shape; `below`: all ids are less, None: any. A plan reads it itself."""

    takes = ()
    options = ("below",)
    is_view = True


class Parameter(Op, op="parameter"):
    """All values of a parameter, in the value's shape."""

    takes = ()
    is_view = True

    def forward(self, step: Step) -> F32:
        (config,) = self.value.params
        return step.params[config.name].reshape(self.value.shape)

    def backward(self, step: Step, grad: F32, result: F32) -> Grads:
        (config,) = self.value.params
        step.add_param_grad(config.name, np.ascontiguousarray(grad).reshape(config.shape))
        return ()


class Fc(Op, op="fc"):
    """Sum of x W over the inputs, plus b. `size`: columns; `keeps`: leading axes that stay, the others of x
    are rows of W. The parameters are one W for each input, then b if there is one.
    """

    many = True
    options = ("keeps", "size")

    @staticmethod
    def find_shape(attrs: Mapping[str, Any], *inputs: Value) -> Shape:
        keeps: int = attrs["keeps"]
        for one in inputs:
            if not 0 < keeps < len(one.shape) or one.shape[:keeps] != inputs[0].shape[:keeps]:
                raise ValueError(f"input {describe(one)} has no {keeps} leading axes like the first input")
        return (*inputs[0].shape[:keeps], attrs["size"])

    def forward(self, step: Step, *inputs: F32) -> F32:
        params, keeps = self.value.params, self.value.attrs["keeps"]
        out = self.get_buffer("result", (*inputs[0].shape[:keeps], self.value.shape[-1]))
        rows = as_rows(out)
        start = step.params[params[-1].name] if len(params) > len(inputs) else None
        for x, weight in zip(inputs, params, strict=False):
            _core.matmul(as_rows(x, keeps), step.params[weight.name], rows, start, step.threads)
            start = rows
        return out

    def backward(self, step: Step, grad: F32, result: F32, *inputs: F32) -> Grads:
        params, keeps = self.value.params, self.value.attrs["keeps"]
        grad = as_rows(np.ascontiguousarray(grad))
        back: list[F32 | None] = []
        for i, (x, weight, needs) in enumerate(zip(inputs, params, self.needs, strict=False)):
            known = step.param_grads.get(weight.name)
            out = self.get_buffer(f"weight {i}", weight.shape) if known is None else known
            _core.matmul(as_rows(x, keeps).T, grad, out, known, step.threads)
            step.param_grads[weight.name] = out
            own = self.get_buffer(f"back {i}", x.shape) if needs else None
            if own is not None:
                _core.matmul(grad, step.params[weight.name].T, as_rows(own, keeps), None, step.threads)
            back.append(own)
        if len(params) > len(inputs):
            total = self.get_buffer("bias", params[-1].shape)
            _core.sum_columns(grad, total, step.threads)
            step.add_param_grad(params[-1].name, total)
        return tuple(back)


class Matmul(Op, op="matmul"):
    """Product of matrices; leading axes of the first are those of the result, the second has none or equal
    ones. `transpose`: the last two axes of the first, and of the second, are exchanged before.
    """

    takes = ("float", "float")
    options = ("transpose",)

    @staticmethod
    def find_shape(attrs: Mapping[str, Any], *inputs: Value) -> Shape:
        x, y = (
            (*one.shape[:-2], one.shape[-1], one.shape[-2]) if swapped else one.shape
            for one, swapped in zip(inputs, attrs["transpose"], strict=True)
        )
        names = f"inputs {describe(inputs[0])} and {describe(inputs[1])}"
        if min(len(x), len(y)) < 2 or x[-1] != y[-2] or (len(y) > 2 and y[:-2] != x[:-2]):
            raise ValueError(f"{names} can't be multiplied as matrices")
        if x[-1] == BATCH or y[-1] == BATCH or BATCH in x[1:]:
            raise ValueError(f"{names}: the batch can't be summed or exchanged")
        return (*x[:-1], y[-1])

    def forward(self, step: Step, x: F32, y: F32) -> F32:
        x, y = self._transpose(x, y)
        out: F32 = self.get_buffer("result", (*x.shape[:-1], y.shape[-1]))
        _multiply(x, y, out, step.threads)
        return out

    def backward(self, step: Step, grad: F32, result: F32, x: F32, y: F32) -> Grads:
        x, y = self._transpose(x, y)
        back_x = back_y = None
        if self.needs[0]:
            back_x = self.get_buffer("x", x.shape)
            _multiply(grad, y.swapaxes(-1, -2), back_x, step.threads)
        if self.needs[1]:
            back_y = self.get_buffer("y", y.shape)
            if y.ndim == 2:  # of all leading axes of x
                x, grad = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
            _multiply(x.swapaxes(-1, -2), grad, back_y, step.threads)
        return self._transpose(back_x, back_y)

    def _transpose(self, *both: Any) -> tuple[Any, ...]:
        swapped = self.value.attrs["transpose"]
        return tuple(
            one.swapaxes(-1, -2) if swap and one is not None else one
            for one, swap in zip(both, swapped, strict=True)
        )


def _multiply(x: F32, y: F32, out: F32, threads: int) -> None:
    """Write the products of the last two axes; a `y` without leading axes serves all of x."""
    if y.ndim == 2:
        _core.matmul(x.reshape(-1, x.shape[-1]), y, out.reshape(-1, out.shape[-1]), None, threads)
        return
    for place in np.ndindex(*x.shape[:-2]):
        _core.matmul(x[place], y[place], out[place], None, threads)


class Concat(Op, op="concat"):
    """Inputs one after the other, along `axis`."""

    takes = (None,)
    gives = None
    many = True
    options = ("axis",)

    @staticmethod
    def find_shape(attrs: Mapping[str, Any], *inputs: Value) -> Shape:
        first = inputs[0]
        axis = _find_axis(first, attrs["axis"])
        for one in inputs[1:]:
            if one.kind != first.kind:
                raise ValueError(f"input {one.name} has {one.kind} values, {first.name} {first.kind}")
            if len(one.shape) != len(first.shape) or any(
                i != axis and size != first.shape[i] for i, size in enumerate(one.shape)
            ):
                raise ValueError(
                    f"input {describe(one)} differs from {describe(first)} in more than axis {axis}"
                )
        total = sum(one.shape[axis] for one in inputs)
        return (*first.shape[:axis], total, *first.shape[axis + 1 :])

    def __init__(self, value: Value, needs: Sequence[bool]) -> None:
        super().__init__(value, needs)
        self._axis = axis = _find_axis(value, value.attrs["axis"])
        ends = [0, *itertools.accumulate(one.shape[axis] for one in value.inputs)]
        self._parts = [(slice(None),) * axis + (slice(*pair),) for pair in itertools.pairwise(ends)]

    def forward(self, step: Step, *inputs: Array) -> Array:
        shape, axis = inputs[0].shape, self._axis
        whole = (*shape[:axis], self.value.shape[axis], *shape[axis + 1 :])
        out = self.get_buffer("result", whole, inputs[0].dtype)
        return np.concatenate(inputs, axis=axis, out=out)

    def backward(self, step: Step, grad: F32, result: F32, *inputs: F32) -> Grads:
        return tuple([grad[part] for part in self._parts])


def _find_axis(value: Value, axis: int) -> int:
    rank = len(value.shape)
    if not -rank <= axis < rank or (axis % rank == 0 and value.has_batch):
        raise ValueError(f"axis={axis}: {describe(value)} can't be joined there")
    return axis % rank


class Reshape(Op, op="reshape"):
    """The same items in another `shape`; in it -1 is a size that follows from the others, 0 the input's own.

    The batch stays the first size.
    """

    takes = (None,)
    gives = None
    options = ("shape",)
    is_view = True

    @staticmethod
    def find_shape(attrs: Mapping[str, Any], x: Value) -> Shape:
        given: Sequence[int] = attrs["shape"]
        error = ValueError(f"input {describe(x)} can't have the shape {list(given)}")
        if not given or any(size < -1 or (size == 0 and i >= len(x.shape)) for i, size in enumerate(given)):
            raise error
        sizes = [x.shape[i] if size == 0 else size for i, size in enumerate(given)]
        first = 1 if x.has_batch else 0
        if first and sizes[0] != BATCH:
            raise error
        rest = sizes[first:]
        known = math.prod(size for size in rest if size != -1)
        if -1 in rest and x.size % known == 0:
            rest[rest.index(-1)] = x.size // known
        if -1 in rest or math.prod(rest) != x.size:
            raise error
        return (*sizes[:first], *rest)

    def forward(self, step: Step, x: Array) -> Array:
        shape = self.value.shape
        out: Array = x.reshape((len(x), *shape[1:]) if shape[0] == BATCH else shape)
        return out

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        return (grad.reshape(x.shape),)


class Cast(Op, op="cast"):
    """Values of the other kind: `to` is "float" or "id"; floats are cut to whole numbers."""

    takes = (None,)
    gives = None
    options = ("to",)
    is_view = True

    def forward(self, step: Step, x: Array) -> Array:
        out: Array = x.astype(FLOAT if self.value.kind == "float" else ID, copy=False)
        return out

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        return (grad,)


class Row(Op, op="row"):
    """One item along the first axis, which is no batch."""

    takes = (None,)
    gives = None
    options = ("index",)
    is_view = True

    @staticmethod
    def find_shape(attrs: Mapping[str, Any], x: Value) -> Shape:
        if x.has_batch or not 0 <= attrs["index"] < x.shape[0]:
            raise ValueError(f"input {describe(x)} has no item {attrs['index']} to take")
        return x.shape[1:] or (1,)

    def forward(self, step: Step, x: Array) -> Array:
        out: Array = x[self.value.attrs["index"]].reshape(self.value.shape)
        return out

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        back = np.zeros_like(x)
        back[self.value.attrs["index"]] = grad.reshape(back.shape[1:])
        return (back,)
