"""Convolutions: products of the weight with each window of an image, as one product of matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ..arrays import F32
from ..graph import FREE, Value
from .base import FLOAT, Grads, Op, Shape, Step, describe
from .dense import multiply
from .elementwise import sum_columns


class Conv(Op, op="conv", has_bias=True, options="dilation filters kernel padding stride"):
    """Of [batch, channels, ...] by a weight [filters, channels, *kernel], plus a bias: [batch, filters, ...].

    The other options have a number for each axis behind the channels; `padding`: zeros before and after it.
    """

    def find_shape(self, x: Value) -> Shape:
        spans = [(k - 1) * d + 1 for k, d in zip(self.attrs["kernel"], self.attrs["dilation"], strict=True)]
        if len(x.shape) != 2 + len(spans) or not x.has_batch or x.shape[1] == FREE:
            raise ValueError(f"input {describe(x)}, expected batch, channels and {len(spans)} other axes")
        sizes = []
        for size, span, padding, stride in zip(
            x.shape[2:], spans, self.attrs["padding"], self.attrs["stride"], strict=True
        ):
            if stride < 1 or span < 1 or padding < 0 or FREE != size < span - 2 * padding:
                raise ValueError(f"input {describe(x)} has no windows of {self.attrs}")
            sizes.append(FREE if size == FREE else (size + 2 * padding - span) // stride + 1)
        return (x.shape[0], self.attrs["filters"], *sizes)

    def find_params(self, x: Value) -> Sequence[Shape]:
        return [(self.attrs["filters"], x.shape[1], *self.attrs["kernel"]), (self.attrs["filters"],)]

    def _read_windows(self, x: F32) -> F32:
        """Return all windows, [batch, ..., channels, *kernel]."""
        attrs, axes = self.attrs, range(2, x.ndim)
        spans = [(k - 1) * d + 1 for k, d in zip(attrs["kernel"], attrs["dilation"], strict=True)]
        padded = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in attrs["padding"])])
        found = sliding_window_view(padded, spans, tuple(axes))
        steps = [slice(None, None, s) for s in (*attrs["stride"], *attrs["dilation"])]
        return np.moveaxis(found[(slice(None), slice(None), *steps)], 1, len(axes) + 1)

    def forward(self, step: Step, x: F32) -> F32:
        weight, *bias = (step.params[config.name] for config in self.params)
        windows, filters = self._read_windows(x), self.attrs["filters"]
        places = windows.shape[: x.ndim - 1]
        self._columns = np.ascontiguousarray(windows).reshape(math.prod(places), -1)
        start = bias[0].reshape(1, -1) if bias else None
        out = multiply(self._columns, weight.reshape(filters, -1).T, step.threads, start)
        return np.ascontiguousarray(np.moveaxis(out.reshape(*places, filters), -1, 1))

    def backward(self, step: Step, grad: F32, result: F32, x: F32) -> Grads:
        (config, *bias), filters = self.params, self.attrs["filters"]
        rows = np.ascontiguousarray(np.moveaxis(grad, 1, -1)).reshape(-1, filters)
        step.add_param_grad(config, multiply(rows.T, self._columns, step.threads))
        for one in bias:
            step.add_param_grad(one, sum_columns(rows, step.threads))
        if not self.needs[0]:
            return (None,)
        columns = multiply(rows, step.params[config.name].reshape(filters, -1), step.threads)
        return (self._add_windows(columns, grad.shape[2:], x.shape),)

    def _add_windows(self, columns: F32, sizes: Shape, shape: Shape) -> F32:
        """Return the sum of all windows with an item, one place of the kernel after the other."""
        attrs = self.attrs
        parts: Any = columns.reshape(shape[0], *sizes, shape[1], *attrs["kernel"])
        inner = [slice(p, p + n) for n, p in zip(shape[2:], attrs["padding"], strict=True)]
        back = np.zeros((*shape[:2], *(one.start + one.stop for one in inner)), FLOAT)
        for place in np.ndindex(*attrs["kernel"]):
            given = zip(place, attrs["dilation"], attrs["stride"], sizes, strict=True)
            where = [slice(p * d, p * d + (n - 1) * s + 1, s) for p, d, s, n in given]
            back[(slice(None), slice(None), *where)] += np.moveaxis(parts[(..., *place)], -1, 1)
        return back[(slice(None), slice(None), *inner)]
