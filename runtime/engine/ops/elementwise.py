"""Operations on each item (arithmetic, functions, dropout), and over axes (sums, means, extremes).

The order of a sum is fixed: it depends on the shape alone.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ... import _core
from ..arrays import F32, Ids
from ..graph import FREE, Value
from .base import ID, Array, Draw, Grads, Op, Shape, Step, as_rows, describe

# Of each operation on x and y the function, and that of (grad, x, y) for the gradients of both.
_Arithmetic = tuple[Callable[..., F32], Callable[[F32, F32, F32], tuple[F32, F32]]]
_ARITHMETIC: Mapping[str, _Arithmetic] = {
    "add": (np.add, lambda grad, x, y: (grad, grad)),
    "subtract": (np.subtract, lambda grad, x, y: (grad, -grad)),
    "multiply": (np.multiply, lambda grad, x, y: (grad * y, grad * x)),
    "divide": (np.divide, lambda grad, x, y: (grad / y, -grad * x / (y * y))),
    # Of two zeros of different signs processors choose either; + 0 makes it positive.
    "maximum": (lambda x, y: np.maximum(x, y) + 0, lambda grad, x, y: (grad * (x > y), grad * (x <= y))),
    "minimum": (lambda x, y: np.minimum(x, y) + 0, lambda grad, x, y: (grad * (x < y), grad * (x >= y))),
}


def activate(act: str, x: F32, threads: int) -> F32:
    """Return a function of the core of each item, in a new array."""
    out = np.array(x, np.float32, order="C")
    _core.activate(act, as_rows(out), threads)
    return out


def take_logs(x: F32, threads: int) -> F32:
    """Return the array, whose items are now their logarithms."""
    _core.take_logs(x.reshape(-1), threads)
    return x


def _find_bell(x: F32, threads: int = 1) -> F32:
    """Return the derivative of erf, 2 / sqrt(pi) * exp(-x * x)."""
    out = np.negative(x * x)
    _core.activate("exp", as_rows(out), threads)
    return np.asarray(out * np.float32(2 / math.sqrt(math.pi)))


# Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: the error is below 1.5e-7.
_ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)


def _find_erf(x: F32, threads: int) -> F32:
    t = 1 / (1 + 0.3275911 * np.abs(x).astype(np.float64))
    total = functools.reduce(lambda known, one: (known + one) * t, _ERF, np.zeros_like(t))
    rest = total * _find_bell(x, threads) * (math.sqrt(math.pi) / 2)
    return (np.sign(x) * (1 - rest)).astype(np.float32)


# Of each operation on x the function of (x, threads), and that of (grad, x, result) for the gradient.
_Function = tuple[Callable[[F32, int], F32], Callable[[F32, F32, F32], F32]]
_FUNCTIONS: Mapping[str, _Function] = {
    "abs": (lambda x, threads: np.abs(x), lambda grad, x, result: grad * np.sign(x)),
    "log": (lambda x, threads: take_logs(x.copy(), threads), lambda grad, x, result: grad / x),
    "erf": (lambda x, threads: _find_erf(x, threads), lambda grad, x, result: grad * _find_bell(x)),
    "floor": (lambda x, threads: np.floor(x), lambda grad, x, result: np.zeros_like(x)),
    "sign": (lambda x, threads: np.sign(x), lambda grad, x, result: np.zeros_like(x)),
    "sqrt": (lambda x, threads: np.sqrt(x), lambda grad, x, result: grad * np.float32(0.5) / result),
}


@functools.lru_cache(maxsize=16)
def _make_ones(shape: Shape) -> F32:
    return np.ones(shape, dtype=np.float32)


def sum_columns(rows: F32, threads: int) -> F32:
    """Return the sum of each column in the order of the rows, [1, cols], in a new array."""
    out = np.empty((1, rows.shape[1]), dtype=np.float32)
    _core.sum_columns(rows, out, threads)
    return out


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
        out = sum_columns(x.reshape(count, inner), threads)
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


def broadcast(op: Op, *inputs: Value) -> Shape:
    """Return the shape of all inputs: sizes of 1 and missing first ones are repeated, never over a batch."""
    rank = max(len(one.shape) for one in inputs)
    axes = zip(*((1,) * (rank - len(one.shape)) + one.shape for one in inputs), strict=True)
    sizes = [{*axis} - {1} or {1} for axis in axes]
    moved = any(one.has_batch and len(one.shape) < rank for one in inputs)
    if moved or any(len(found) > 1 for found in sizes):
        raise ValueError(f"inputs {' and '.join(map(describe, inputs))} do not fit")
    return tuple([found.pop() for found in sizes])


class Arithmetic(Op, op=" ".join(_ARITHMETIC), takes="float float"):
    """x + y and so on; sizes as broadcast() has them."""

    find_shape = broadcast

    def forward(self, step: Step, x: F32, y: F32) -> F32:
        return _ARITHMETIC[self.value.op][0](x, y)

    def backward(self, step: Step, grad: F32, result: F32, *inputs: F32) -> Grads:
        parts = zip(_ARITHMETIC[self.value.op][1](grad, *inputs), inputs, self.needs, strict=True)
        return tuple([sum_to_shape(own, x.shape, step.threads) if needs else None for own, x, needs in parts])


_COMPARISONS = "equal not_equal less_than less_equal greater_than greater_equal logical_and logical_or"


class Comparison(Op, op=_COMPARISONS, takes="any any", gives="id"):
    """1 where it holds, else 0, as numpy's function of this name; sizes as broadcast() has them."""

    find_shape = broadcast

    def forward(self, step: Step, x: Array, y: Array) -> Ids:
        return np.asarray(getattr(np, self.value.op.removesuffix("_than"))(x, y), ID)


class Function(Op, op=" ".join(_FUNCTIONS), reads_result=True):
    """A function of each item that changes no input."""

    def forward(self, step: Step, x: F32) -> F32:
        return _FUNCTIONS[self.value.op][0](x, step.threads)

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        return (_FUNCTIONS[self.value.op][1](grad, x, result),)


class Power(Op, op="pow", options="y"):
    """x to the power of the number `y`: whole numbers to 64 by products, others of an x above 0."""

    def forward(self, step: Step, x: F32) -> F32:
        return _raise(x, self.attrs["y"], step.threads)

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        y: float = self.attrs["y"]
        return (grad * np.float32(y) * _raise(x, y - 1, step.threads),)


def _raise(x: F32, y: float, threads: int) -> F32:
    if y < 0 or y == 0.5:
        return np.sqrt(x) if y > 0 else np.float32(1) / _raise(x, -y, threads)
    if y not in range(65):
        out: F32 = take_logs(x.copy(), threads) * np.float32(y)
        _core.activate("exp", as_rows(out), threads)
        return out
    out, left = np.ones_like(x), int(y)
    while left:
        out = out * x if left % 2 else out
        left //= 2
        x = x * x if left else x
    return out


class Clip(Op, op="clip", options="least most", overwrites=True, reads_result=True):
    """The nearest number from `least` to `most`; only items between them have a gradient."""

    def forward(self, step: Step, x: F32) -> F32:
        out = self.take_copy(x)
        np.clip(out, *self._find_limits(), out=out)
        out += 0  # as for maximum
        return out

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        least, most = self._find_limits()
        return (grad * ((result > least) & (result < most)),)

    def _find_limits(self) -> tuple[np.float32, np.float32]:
        return np.float32(self.attrs["least"]), np.float32(self.attrs["most"])


class Scale(Op, op="scale", options="bias scale", overwrites=True):
    """x * scale + bias."""

    def forward(self, step: Step, x: F32) -> F32:
        out = self.take_copy(x)
        out *= np.float32(self.attrs["scale"])
        out += np.float32(self.attrs["bias"])
        return out

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        return (grad * np.float32(self.attrs["scale"]),)


class ActivationOp(Op, op="exp relu sigmoid softmax tanh", overwrites=True, reads_result=True):
    """A function of the core by the operation's name, and its derivative in terms of the result."""

    def find_shape(self, x: Value) -> Shape:
        if self.value.op == "softmax" and len(x.shape) < 1 + x.has_batch:  # over the last axis
            raise ValueError(f"input {describe(x)} has no axis beside the batch")
        return x.shape

    def forward(self, step: Step, x: F32) -> F32:
        out = self.take_copy(x)
        _core.activate(self.value.op, as_rows(out), step.threads)
        return out

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        back: F32 = self.get_buffer("back", result.shape)
        rows = as_rows(result), as_rows(np.ascontiguousarray(grad)), as_rows(back)
        _core.undo_activation(self.value.op, *rows, step.threads)
        return (back,)


class DropoutOp(Op, op="dropout", options="rate upscales", overwrites=True):
    """Zeros for a share `rate` of the items in a training step.

    `upscales`: the others are divided by the kept share in a training step; else all are multiplied by it in
    other steps, as in v2.
    """

    def find_shape(self, x: Value) -> Shape:
        if not 0.0 <= self.attrs["rate"] < 1.0:
            raise ValueError(f"{self.attrs['rate']} is no share to drop, expected at least 0 and below 1")
        return x.shape

    def forward(self, step: Step, x: F32) -> F32:
        out = self.take_copy(x)
        out *= self._find_factor(step.draw, x.shape)
        return out

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        return (grad * self._find_factor(step.draw, grad.shape),)

    def _find_factor(self, draw: Draw | None, shape: Shape) -> F32 | np.float32:
        """Return the factor of each item, from (seed, trainer, step, name, place) alone, or of all."""
        rate, upscales = self.attrs["rate"], self.attrs["upscales"]
        if draw is None:
            return np.float32(1.0 if upscales else 1.0 - rate)
        count = math.prod(shape)
        raw = draw.draw_words(self.value.name, (count + 3) // 4)
        pieces = raw.view(np.uint16)[:count].reshape(shape)
        mask = np.asarray(pieces >= round(rate * 65536), dtype=np.float32)
        return mask * np.float32(1.0 / (1.0 - rate)) if upscales else mask


class SumOp(Op, op="mean sum", options="axis keepdim"):
    """Sum or mean over `axis`, a number, several or None for all; `keepdim` leaves axes of size 1."""

    def find_shape(self, x: Value) -> Shape:
        found = self._drop_axes(x.shape)
        if 0 in self.axes and x.has_batch and found[:1] == (FREE,):
            raise ValueError(f"input {describe(x)} has a free size behind the batch, so it can't be reduced")
        return found

    def forward(self, step: Step, x: F32) -> F32:
        return self._reduce(x, step.threads).reshape(self._drop_axes(x.shape))

    def _reduce(self, x: F32, threads: int) -> F32:
        total = sum_axes(x, self.axes, threads)
        total /= self._find_divisor(x)
        return total

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        back = np.empty_like(x)
        back[...] = self._keep_axes(grad, x) / self._find_divisor(x)
        return (back,)

    def _drop_axes(self, shape: Shape, *, keepdim: bool = False) -> Shape:
        kept = [1 if i in self.axes else size for i, size in enumerate(shape)]
        left = [size for i, size in enumerate(shape) if i not in self.axes]
        return tuple(kept if keepdim or self.attrs["keepdim"] else left)

    def _keep_axes(self, reduced: F32, x: F32) -> F32:
        return reduced.reshape(self._drop_axes(x.shape, keepdim=True))

    def _find_divisor(self, x: F32) -> np.float32:
        count = math.prod([x.shape[i] for i in self.axes])
        return np.float32(max(1, count) if self.value.op == "mean" else 1)


class Extreme(SumOp, op="max min"):
    """Largest or smallest item over `axis`, as Sum has it; all equal ones have the gradient."""

    def _reduce(self, x: F32, threads: int) -> F32:
        find = np.max if self.value.op == "max" else np.min
        return np.asarray(find(x, axis=self.axes)) + 0  # as for maximum

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        return (self._keep_axes(grad, x) * (x == self._keep_axes(result, x)),)
