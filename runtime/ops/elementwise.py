"""Operations on each item: arithmetic with broadcasting, activations, dropout."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
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
        pairs = zip(_fill(x.shape, rank), _fill(y.shape, rank), strict=True)
        shape = []
        for i, (a, b) in enumerate(pairs):
            if a != b and (1 not in (a, b) or (i > 0 and BATCH in (a, b))):
                raise ValueError(f"inputs {describe(x)} and {describe(y)} do not fit")
            shape.append(a if b == 1 else b)
        return tuple(shape)


def _fill(shape: Shape, rank: int) -> Shape:
    return (1,) * (rank - len(shape)) + shape


class Add(_Pair, op="add"):
    """x + y."""

    def forward(self, step: Step, x: F32, y: F32) -> F32:
        return x + y

    def backward(self, step: Step, grad: F32, result: F32, x: F32, y: F32) -> Grads:
        return sum_to_shape(grad, x.shape, step.threads), sum_to_shape(grad, y.shape, step.threads)


class Subtract(_Pair, op="subtract"):
    """x - y."""

    def forward(self, step: Step, x: F32, y: F32) -> F32:
        return x - y

    def backward(self, step: Step, grad: F32, result: F32, x: F32, y: F32) -> Grads:
        return sum_to_shape(grad, x.shape, step.threads), -sum_to_shape(grad, y.shape, step.threads)


class Multiply(_Pair, op="multiply"):
    """x * y."""

    def forward(self, step: Step, x: F32, y: F32) -> F32:
        return x * y

    def backward(self, step: Step, grad: F32, result: F32, x: F32, y: F32) -> Grads:
        return (
            sum_to_shape(grad * y, x.shape, step.threads) if self.needs[0] else None,
            sum_to_shape(grad * x, y.shape, step.threads) if self.needs[1] else None,
        )


class Divide(_Pair, op="divide"):
    """x / y."""

    def forward(self, step: Step, x: F32, y: F32) -> F32:
        quotient: F32 = np.divide(x, y)
        return quotient

    def backward(self, step: Step, grad: F32, result: F32, x: F32, y: F32) -> Grads:
        return (
            sum_to_shape(grad / y, x.shape, step.threads) if self.needs[0] else None,
            sum_to_shape(-grad * x / (y * y), y.shape, step.threads) if self.needs[1] else None,
        )


class Scale(Op, op="scale"):
    """x * scale + bias."""

    options = ("bias", "scale")
    overwrites = True

    def forward(self, step: Step, x: F32) -> F32:
        out = np.multiply(x, np.float32(self.value.attrs["scale"]), out=self.get_result(x))
        return np.add(out, np.float32(self.value.attrs["bias"]), out=out)

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        return (grad * np.float32(self.value.attrs["scale"]),)


class Square(Op, op="square"):
    """x * x."""

    def forward(self, step: Step, x: F32) -> F32:
        return np.multiply(x, x, out=self.get_result(x))

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        return (np.float32(2.0) * x * grad,)


class _Activation(Op):
    """A function of the core, and its derivative in terms of the result."""

    act: ClassVar[str]
    overwrites = True
    reads_result = True

    def forward(self, step: Step, x: F32) -> F32:
        out = self.take_copy(x)
        _core.activate(self.act, as_rows(out), step.threads)
        return out

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        back: F32 = self.get_buffer("back", result.shape)
        rows = as_rows(result), as_rows(np.ascontiguousarray(grad)), as_rows(back)
        _core.undo_activation(self.act, *rows, step.threads)
        return (back,)


class Sigmoid(_Activation, op="sigmoid"):
    """1 / (1 + exp(-x))."""

    act = "sigmoid"


class Tanh(_Activation, op="tanh"):
    """tanh(x)."""

    act = "tanh"


class Relu(_Activation, op="relu"):
    """max(x, 0)."""

    act = "relu"


class Softmax(_Activation, op="softmax"):
    """exp(x) divided by its sum over the last axis."""

    act = "softmax"

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

    def forward(self, step: Step, x: F32) -> F32:
        if step.draw is not None:
            return np.multiply(x, self._make_mask(step.draw, x.shape), out=self.get_result(x))
        factor = 1.0 if self.value.attrs["upscales"] else 1.0 - self.value.attrs["rate"]
        return np.multiply(x, np.float32(factor), out=self.get_result(x))

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        assert step.draw is not None  # a step without training has no gradients
        return (grad * self._make_mask(step.draw, grad.shape),)

    def _make_mask(self, draw: Draw, shape: Shape) -> F32:
        """Return the factor of each item, from (seed, trainer, step, name, place) alone."""
        label = f"{draw.seed}/{draw.trainer}/{draw.step}/{self.value.name}"
        key = int.from_bytes(hashlib.blake2b(label.encode(), digest_size=16).digest(), "little")
        count, rate = math.prod(shape), self.value.attrs["rate"]
        raw = np.random.Philox(key=key).random_raw((count + 3) // 4)
        pieces = np.asarray(raw, dtype="<u8").view(np.uint16)[:count].reshape(shape)
        mask = np.asarray(pieces >= round(rate * 65536), dtype=np.float32)
        return mask * np.float32(1.0 / (1.0 - rate)) if self.value.attrs["upscales"] else mask
