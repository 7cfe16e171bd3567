"""Layers of convolutions, by PaddlePaddle 2's names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..program.initializer import Normal
from ..program.param_attr import Attr
from ..program.program import Variable
from .layers import WeightLayer

Sizes = int | Sequence[int]


class _Conv(WeightLayer):
    """The products of a weight with all windows of [batch, channels, ...], plus a bias.

    `padding`: zeros before and after each axis. bias_attr False: no bias.
    """

    kind, formats = "conv1d", ("NCL",)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        padding_mode: str = "zeros",
        weight_attr: Attr = None,
        bias_attr: Attr = None,
        data_format: str | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name or self.kind)
        if groups != 1 or padding_mode != "zeros" or data_format not in (None, *self.formats):
            expected = f"groups=1, padding_mode='zeros', data_format={self.formats[0]!r}"
            raise ValueError(f"{self._full_name}: expected {expected}")
        axes = len(self.formats[0]) - 2
        given = {"dilation": dilation, "kernel": kernel_size, "padding": padding, "stride": stride}
        self._attrs: dict[str, Any] = {"filters": out_channels}
        for key, sizes in given.items():
            self._attrs[key] = (sizes,) * axes if isinstance(sizes, int) else tuple(sizes)
        shape = (out_channels, in_channels, *self._attrs["kernel"])
        usual = Normal(0.0, math.sqrt(2.0 / math.prod(shape[1:])))
        self._make_params(weight_attr, shape, bias_attr, (out_channels,), usual=usual)

    def forward(self, x: Variable) -> Variable:
        return self._add("conv", x, **self._attrs)


class Conv1D(_Conv):
    """Convolution of [batch, channels, length]."""


class Conv2D(_Conv):
    """Convolution of images, [batch, channels, height, width]."""

    kind, formats = "conv2d", ("NCHW",)
