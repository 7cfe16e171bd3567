"""Normalization: mean 0 and variance 1 over a batch or over each sample, then a scale and a shift."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..arrays import F32
from ..graph import FREE, Value
from .base import Grads, Op, Shape, Step, as_rows, describe
from .elementwise import sum_axis, sum_columns


class _Norm(Op):
    """(x - mean) / sqrt(variance + epsilon) * scale + shift, of [rows, cols], with statistics over `over`.

    The variance is the mean of squares, not that of a sample. Scale and shift are the first parameters.
    """

    over = 1
    _is_own = True  # the statistics are those of the batch

    def _open(self, x: F32) -> F32:
        """Return x as rows; a column has one scale."""
        return as_rows(np.ascontiguousarray(x), self.attrs["keeps"])

    def _close(self, rows: F32, shape: Shape) -> F32:
        return rows.reshape(shape)

    def _measure(self, step: Step, x: F32) -> tuple[F32, F32]:
        """Return mean and variance."""
        count = np.float32(max(1, x.shape[self.over]))
        mean = self._sum(x, step) / count
        centered = x - mean
        return mean, self._sum(centered * centered, step) / count

    def _sum(self, x: F32, step: Step) -> F32:
        return np.expand_dims(sum_axis(x, self.over, step.threads), self.over)

    def forward(self, step: Step, x: F32) -> F32:
        scale, shift = (step.params[config.name] for config in self.params[:2])
        rows = self._open(x)
        mean, variance = self._measure(step, rows)
        self._factor = np.float32(1) / np.sqrt(variance + np.float32(self.attrs["epsilon"]))
        self._normal = (rows - mean) * self._factor
        return self._close(self._normal * scale + shift, x.shape)

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        rows, normal = self._open(grad), self._normal
        for config, own in zip(self.params[:2], (rows * normal, rows), strict=True):
            step.add_param_grad(config, sum_columns(own, step.threads))
        if not self.needs[0]:
            return (None,)
        own = rows * step.params[self.params[0].name]
        if self._is_own:
            count = np.float32(max(1, own.shape[self.over]))
            for part, factor in ((own, np.float32(1)), (own * normal, normal)):
                own = own - self._sum(part, step) / count * factor
        return (self._close(own * self._factor, x.shape),)


class LayerNormOp(_Norm, op="layer_norm", options="epsilon keeps"):
    """Each sample, over all axes but the `keeps` leading ones."""

    def find_shape(self, x: Value) -> Shape:
        keeps: int = self.attrs["keeps"]
        if not 0 < keeps < len(x.shape) or FREE in x.shape[keeps:]:
            raise ValueError(
                f"input {describe(x)} has no sizes behind the first {keeps} axes to normalize over"
            )
        return x.shape

    def find_params(self, x: Value) -> Sequence[Shape]:
        return [(math.prod(x.shape[self.attrs["keeps"] :]),)] * 2


class BatchNormOp(_Norm, op="batch_norm", options="axis epsilon trains"):
    """Each item of `axis` (channels), over all samples and the other axes.

    Two more parameters are running means of mean and variance: training moves them by their learning rate
    towards the batch's, and other steps, without `trains` all, normalize by them.
    """

    over = 0

    def find_shape(self, x: Value) -> Shape:
        axis: int = self.attrs["axis"]
        if len(x.shape) < 2 or not x.has_batch or x.shape[axis] == FREE:
            raise ValueError(f"input {describe(x)} has no batch with a number of channels at axis {axis}")
        return x.shape

    def find_params(self, x: Value) -> Sequence[Shape]:
        return [(x.shape[self.attrs["axis"]],)] * 4

    def _open(self, x: F32) -> F32:
        return as_rows(np.ascontiguousarray(np.moveaxis(x, self.attrs["axis"], -1)))

    def _close(self, rows: F32, shape: Shape) -> F32:
        axis: int = self.attrs["axis"] % len(shape)
        moved = rows.reshape(*shape[:axis], *shape[axis + 1 :], shape[axis])
        return np.ascontiguousarray(np.moveaxis(moved, -1, axis))

    def _measure(self, step: Step, x: F32) -> tuple[F32, F32]:
        mean, variance = (step.params[config.name] for config in self.params[2:])
        self._is_own = step.draw is not None and bool(self.attrs["trains"])
        self._measured = super()._measure(step, x) if self._is_own else (mean, variance)
        return self._measured

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        for config, found in zip(self.params[2:], self._measured, strict=True):
            own = step.params[config.name]
            step.add_param_grad(config, own - found if self._is_own else np.zeros_like(own))
        return super().backward(step, grad, result, x)
