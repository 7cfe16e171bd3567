"""Operations on each item: arithmetic with broadcasting, activations, dropout."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from .. import _core
from ..arrays import F32
from ..graph import BATCH, Value
from .base import Draw, Op, Shape, Step, describe
from .sums import sum_to_shape


class _Pair(Op):
    """Arithmetic of two inputs; sizes of 1 and missing leading sizes are repeated, but never over a batch."""

    takes = ("float", "float")

    @classmethod
    def find_shape(cls, inputs: Sequence[Value], attrs: Mapping[str, Any]) -> Shape:
        x, y = inputs
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

    def forward(self, step: Step, *inputs: Any) -> F32:
        total: F32 = np.add(*inputs)
        return total

    def backward(self, step: Step, grad: F32, result: F32, *inputs: Any) -> tuple[F32 | None, ...]:
        return tuple(sum_to_shape(grad, one.shape, step.threads) for one in inputs)


class Subtract(_Pair, op="subtract"):
    """x - y."""

    def forward(self, step: Step, *inputs: Any) -> F32:
        difference: F32 = np.subtract(*inputs)
        return difference

    def backward(self, step: Step, grad: F32, result: F32, *inputs: Any) -> tuple[F32 | None, ...]:
        x, y = (sum_to_shape(grad, one.shape, step.threads) for one in inputs)
        return x, -y


class Multiply(_Pair, op="multiply"):
    """x * y."""

    def forward(self, step: Step, *inputs: Any) -> F32:
        product: F32 = np.multiply(*inputs)
        return product

    def backward(self, step: Step, grad: F32, result: F32, *inputs: Any) -> tuple[F32 | None, ...]:
        x, y = inputs
        return (
            sum_to_shape(grad * y, x.shape, step.threads) if self.needs[0] else None,
            sum_to_shape(grad * x, y.shape, step.threads) if self.needs[1] else None,
        )


class Scale(Op, op="scale"):
    """x * scale + bias."""

    options = ("bias", "scale")
    overwrites = True

    def forward(self, step: Step, *inputs: Any) -> F32:
        x: F32 = inputs[0]
        out = np.multiply(x, np.float32(self.value.attrs["scale"]), out=self.get_result(x))
        return np.add(out, np.float32(self.value.attrs["bias"]), out=out)

    def backward(self, step: Step, grad: F32, result: F32, *inputs: Any) -> tuple[F32 | None, ...]:
        return (grad * np.float32(self.value.attrs["scale"]),)


class Square(Op, op="square"):
    """x * x."""

    def forward(self, step: Step, *inputs: Any) -> F32:
        x: F32 = inputs[0]
        return np.multiply(x, x, out=self.get_result(x))

    def backward(self, step: Step, grad: F32, result: F32, *inputs: Any) -> tuple[F32 | None, ...]:
        return (np.float32(2.0) * inputs[0] * grad,)


class _Activation(Op):
    """A function of the core, and its derivative in terms of the result."""

    act: ClassVar[str]
    overwrites = True
    reads_result = True

    def forward(self, step: Step, *inputs: Any) -> F32:
        out = self.take_copy(inputs[0])
        _core.activate(self.act, out.reshape(-1, out.shape[-1]), step.threads)
        return out

    def backward(self, step: Step, grad: F32, result: F32, *inputs: Any) -> tuple[F32 | None, ...]:
        rows = (math.prod(result.shape[:-1]), result.shape[-1])
        back: F32 = self.get_buffer("back", result.shape)
        grad = np.ascontiguousarray(grad).reshape(rows)
        _core.undo_activation(self.act, result.reshape(rows), grad, back.reshape(rows), step.threads)
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


class Dropout(Op, op="dropout"):
    """Zeros for a share `rate` of the items in a training step.

    `upscales`: the others are divided by the kept share in a training step; else all are multiplied by it in
    other steps, as in v2.
    """

    options = ("rate", "upscales")

    def forward(self, step: Step, *inputs: Any) -> F32:
        x: F32 = inputs[0]
        if step.draw is not None:
            return np.multiply(x, self._make_mask(step.draw, x.shape), out=self.get_result(x))
        factor = 1.0 if self.value.attrs["upscales"] else 1.0 - self.value.attrs["rate"]
        return np.multiply(x, np.float32(factor), out=self.get_result(x))

    def backward(self, step: Step, grad: F32, result: F32, *inputs: Any) -> tuple[F32 | None, ...]:
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
