"""Layers of convolutions, of normalization, and of LSTM and GRU, by PaddlePaddle 2's names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from ..program import tensor
from ..program.initializer import Constant, Normal, Uniform
from ..program.param_attr import Attr, ParamAttr
from ..program.program import Variable, add_value
from .layers import Layer, WeightLayer

Sizes = int | Sequence[int]


class Conv1D(WeightLayer):
    """The products of a weight with all windows of [batch, channels, length], plus a bias.

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


class Conv2D(Conv1D):
    """Conv1D of images, [batch, channels, height, width]."""

    kind, formats = "conv2d", ("NCHW",)


class _NormLayer(WeightLayer):
    """Scale and shift, which a bias_attr or weight_attr of False keeps at 1 and 0."""

    def __init__(self, name: str, size: int, weight_attr: Attr, bias_attr: Attr, epsilon: float) -> None:
        super().__init__(name)
        self._epsilon = float(epsilon)
        fixed = ParamAttr(trainable=False)
        weight, bias = (fixed if attr is False else attr for attr in (weight_attr, bias_attr))
        self.weight = self._make("w_0", weight, (size,), usual=Constant(1.0))
        self.bias = self._make("b_0", bias, (size,), usual=Constant(0.0))


class BatchNorm1D(_NormLayer):
    """Values of each channel with mean 0 and variance 1 over the batch, then scaled and shifted.

    In training steps by the batch's statistics, else by running ones: value * momentum + batch's * (1 -
    momentum) of each step. With servers these are parameters like others, which move by the mean of the
    workers' batches. `use_global_stats`: by the running ones in training too. `data_format`: channels are the
    last axis if it ends in C, else the second.
    """

    def __init__(
        self,
        num_features: int,
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        weight_attr: Attr = None,
        bias_attr: Attr = None,
        data_format: str = "NC",
        use_global_stats: bool | None = None,
        name: str | None = None,
        *,
        names: Sequence[str | None] = (None, None),
    ) -> None:
        super().__init__(name or "batch_norm1d", num_features, weight_attr, bias_attr, epsilon)
        self._axis = -1 if data_format.endswith("C") and len(data_format) > 2 else 1
        self._trains = not use_global_stats
        self._mean, self._variance = (
            replace(
                self._make(f"w_{i}", ParamAttr(own, Constant(i - 1.0), need_clip=False), (num_features,)),
                learning_rate=1.0 - momentum,
                is_running=True,
            )
            for i, own in enumerate(names, 1)
        )

    def forward(self, x: Variable) -> Variable:
        attrs = {"axis": self._axis, "trains": self._trains and self.training, "epsilon": self._epsilon}
        return self._add("batch_norm", x, self._mean, self._variance, **attrs)


class BatchNorm2D(BatchNorm1D):
    """BatchNorm1D of images [batch, channels, height, width]."""


class LayerNorm(_NormLayer):
    """Values of each sample with mean 0 and variance 1 over its last axes, then scaled and shifted."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        epsilon: float = 1e-5,
        weight_attr: Attr = None,
        bias_attr: Attr = None,
        name: str | None = None,
    ) -> None:
        shape = [normalized_shape] if isinstance(normalized_shape, int) else normalized_shape
        self._axes = len(shape)
        super().__init__(name or "layer_norm", math.prod(shape), weight_attr, bias_attr, epsilon)

    def forward(self, x: Variable) -> Variable:
        return self._add("layer_norm", x, keeps=len(x.shape) - self._axes, epsilon=self._epsilon)


class _Cell(Layer):
    """Weights and biases of a cell, for its input and for its state before."""

    def __init__(self, kind: str, size: int, attrs: Sequence[Attr], shapes: Sequence[Sequence[int]]) -> None:
        super().__init__(kind)
        given = zip(("w_0", "w_1", "b_0", "b_1"), attrs, shapes, strict=True)
        usual = Uniform(-(size**-0.5), size**-0.5)
        parts = [self._make(end, attr or None, shape, usual=usual) for end, attr, shape in given]
        self.weight, self.hidden_weight, self.bias, self.hidden_bias = parts


class LSTM(Layer):
    """Layers of cells over [batch, time, input_size], or over sequences of vectors.

    A call returns the states of all items, [.., hidden_size], of both directions one after the other, and
    a list of the last states, [batch, hidden_size], of each layer and direction.
    """

    op, parts, own = "lstm", 4, "lstm_cell"
    attrs: ClassVar[dict[str, Any]] = {"order": "ifgo", "peeps": False}

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        direction: str = "forward",
        time_major: bool = False,
        dropout: float = 0.0,
        weight_ih_attr: Attr = None,
        weight_hh_attr: Attr = None,
        bias_ih_attr: Attr = None,
        bias_hh_attr: Attr = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if time_major or dropout or direction not in ("forward", "bidirect", "bidirectional"):
            raise ValueError(
                f"{self._full_name}: expected time_major=False, dropout=0.0, 'forward' or 'bidirect'"
            )
        self._size, self._ways = hidden_size, 1 if direction == "forward" else 2
        attrs = weight_ih_attr, weight_hh_attr, bias_ih_attr, bias_hh_attr
        whole, self._cells = self.parts * hidden_size, list[_Cell]()
        for i in range(num_layers * self._ways):
            size = input_size if i < self._ways else hidden_size * self._ways
            shapes = (whole, size), (whole, hidden_size), (whole,), (whole,)
            self._cells.append(_Cell(self.own, hidden_size, attrs, shapes))

    def forward(self, x: Variable) -> tuple[Variable, list[Variable]]:
        ends, parts = [], []
        for i, cell in enumerate(self._cells):
            weight, bias = cell.weight, cell.bias
            products = tensor.matmul(x, self._read(weight, (weight.rows, weight.cols)), transpose_y=True)
            attrs = {**self.attrs, "reverse": bool(i % self._ways), "size": self._size, "swaps": True}
            values = products + self._read(bias, (bias.cols,))
            out = add_value(self.op, [values], attrs, [cell.hidden_weight, cell.hidden_bias])
            if out.is_sequence:
                ends.append(add_value("pool", [out], {"by": "first" if attrs["reverse"] else "last"}))
            else:
                ends.append(out[:, 0 if attrs["reverse"] else -1])
            parts.append(out)
            if len(parts) == self._ways:
                x, parts = tensor.concat(parts, axis=-1) if self._ways > 1 else out, []
        return x, ends


class GRU(LSTM):
    """As LSTM, of cells with two gates."""

    op, parts, own = "gru", 3, "gru_cell"
    attrs: ClassVar[dict[str, Any]] = {}
