"""Operations on each item: arithmetic with broadcasting, activations, dropout."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from .. import _core
from ..arrays import F32
from ..graph import BATCH, Value
from .base import Draw, Grads, Op, Shape, Step, as_rows, describe
from .sums import sum_to_shape


class _Pair(Op):
    """Arithmetic of two inputs; sizes of 1 and missing leading sizes are repeated, but never over a batch."""

    takes = ("float", "float")

    @staticmethod
    def find_shape(attrs: Mapping[str, Any], x: Value, y: Value) -> Shape:
        rank = max(len(x.shape), len(y.shape))
        sizes = [(1,) * (rank - len(one.shape)) + one.shape for one in (x, y)]
        shape = []
        for i, (a, b) in enumerate(zip(*sizes, strict=True)):
            if a != b and (1 not in (a, b) or (i > 0 and BATCH in (a, b))):
                raise ValueError(f"inputs {describe(x)} and {describe(y)} do not fit")
            shape.append(a if b == 1 else b)
        return tuple(shape)

    compute: ClassVar[np.ufunc]
    # differentiate(grad, x, y) returns the gradients of both in the shape of the result.
    differentiate: Callable[..., tuple[F32, F32]]

    def forward(self, step: Step, x: F32, y: F32) -> Any:
        return self.compute(x, y)

    def backward(self, step: Step, grad: F32, result: F32, *inputs: F32) -> Grads:
        parts = zip(self.differentiate(grad, *inputs), inputs, self.needs, strict=True)
        return tuple([sum_to_shape(own, x.shape, step.threads) if needs else None for own, x, needs in parts])


class Add(_Pair, op="add"):
    """x + y."""

    compute = np.add

    def differentiate(self, grad: F32, x: F32, y: F32) -> tuple[F32, F32]:
        return grad, grad


class Subtract(_Pair, op="subtract"):
    """x - y."""

    compute = np.subtract

    def differentiate(self, grad: F32, x: F32, y: F32) -> tuple[F32, F32]:
        return grad, -grad


class Multiply(_Pair, op="multiply"):
    """x * y."""

    compute = np.multiply

    def differentiate(self, grad: F32, x: F32, y: F32) -> tuple[F32, F32]:
        return grad * y, grad * x


class Divide(_Pair, op="divide"):
    """x / y."""

    compute = np.divide

    def differentiate(self, grad: F32, x: F32, y: F32) -> tuple[F32, F32]:
        return grad / y, -grad * x / (y * y)


class Scale(Op, op="scale"):
    """x * scale + bias."""

    options = ("bias", "scale")
    overwrites = True

    def forward(self, step: Step, x: F32) -> F32:
        out = self.take_copy(x)
        out *= np.float32(self.value.attrs["scale"])
        out += np.float32(self.value.attrs["bias"])
        return out

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        return (grad * np.float32(self.value.attrs["scale"]),)


class _Activation(Op):
    """A function of the core by the operation's name, and its derivative in terms of the result."""

    overwrites = True
    reads_result = True

    def forward(self, step: Step, x: F32) -> F32:
        out = self.take_copy(x)
        _core.activate(self.value.op, as_rows(out), step.threads)
        return out

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        back: F32 = self.get_buffer("back", result.shape)
        rows = as_rows(result), as_rows(np.ascontiguousarray(grad)), as_rows(back)
        _core.undo_activation(self.value.op, *rows, step.threads)
        return (back,)


class Sigmoid(_Activation, op="sigmoid"):
    """1 / (1 + exp(-x))."""


class Tanh(_Activation, op="tanh"):
    """tanh(x)."""


class Relu(_Activation, op="relu"):
    """max(x, 0)."""


class Softmax(_Activation, op="softmax"):
    """exp(x) divided by its sum over the last axis."""

    @staticmethod
    def find_shape(attrs: Mapping[str, Any], x: Value) -> Shape:
        if x.shape[-1] == BATCH:
            raise ValueError(f"input {describe(x)} has no axis beside the batch")
        return x.shape


class Dropout(Op, op="dropout"):
    """Zeros for a share `rate` of the items in a training step.

    `upscales`: the others are divided by the kept share in a training step; else all are multiplied by it in
    other steps, as in v2.
    """

    options = ("rate", "upscales")
    overwrites = True

    def forward(self, step: Step, x: F32) -> F32:
        out = self.take_copy(x)
        out *= self._find_factor(step.draw, x.shape)
        return out

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        return (grad * self._find_factor(step.draw, grad.shape),)

    def _find_factor(self, draw: Draw | None, shape: Shape) -> F32 | np.float32:
        """Return the factor of each item, from (seed, trainer, step, name, place) alone, or of all."""
        rate, upscales = self.value.attrs["rate"], self.value.attrs["upscales"]
        if draw is None:
            return np.float32(1.0 if upscales else 1.0 - rate)
        count = math.prod(shape)
        raw = draw.draw_words(self.value.name, (count + 3) // 4)
        pieces = raw.view(np.uint16)[:count].reshape(shape)
        mask = np.asarray(pieces >= round(rate * 65536), dtype=np.float32)
        return mask * np.float32(1.0 / (1.0 - rate)) if upscales else mask
