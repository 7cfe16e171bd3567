"""Layers of convolutions, by PaddlePaddle 2's names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..program.initializer import Normal
from ..program.param_attr import Attr, make_param
from ..program.program import Variable, add_value, make_unique_name
from .layers import Layer

Sizes = int | Sequence[int]


class _Conv(Layer):
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
        own = self._full_name
        if groups != 1 or padding_mode != "zeros" or data_format not in (None, *self.formats):
            raise ValueError(
                f"{own}: expected groups=1, padding_mode='zeros', data_format={self.formats[0]!r}"
            )
        axes = len(self.formats[0]) - 2
        given = {"dilation": dilation, "kernel": kernel_size, "padding": padding, "stride": stride}
        self._attrs: dict[str, Any] = {"filters": out_channels}
        for key, sizes in given.items():
            self._attrs[key] = (sizes,) * axes if isinstance(sizes, int) else tuple(sizes)
        shape = (out_channels, in_channels, *self._attrs["kernel"])
        usual = Normal(0.0, math.sqrt(2.0 / math.prod(shape[1:])))
        self.weight = make_param(weight_attr, f"{own}.w_0", shape, is_bias=False, usual=usual)
        self.bias = None
        if bias_attr is not False:
            self.bias = make_param(bias_attr, f"{own}.b_0", (out_channels,), is_bias=True)

    def forward(self, *inputs: Any, **options: Any) -> Variable:
        params = [one for one in (self.weight, self.bias) if one is not None]
        name = f"{make_unique_name(self._full_name)}.tmp_0"
        return add_value("conv", list(inputs), self._attrs, params, name=name)


class Conv1D(_Conv):
    """Convolution of [batch, channels, length]."""


class Conv2D(_Conv):
    """Convolution of images, [batch, channels, height, width]."""

    kind, formats = "conv2d", ("NCHW",)
