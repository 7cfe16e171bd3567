"""Layers of normalization, by PaddlePaddle 2's names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ...engine.param_config import ParamConfig
from ..program.initializer import Constant
from ..program.param_attr import Attr, ParamAttr, make_param
from ..program.program import Variable
from .layers import WeightLayer


class _NormLayer(WeightLayer):
    """Scale and shift, which a bias_attr or weight_attr of False keeps at 1 and 0."""

    def __init__(self, name: str, size: int, weight_attr: Attr, bias_attr: Attr, epsilon: float) -> None:
        super().__init__(name)
        self._epsilon = float(epsilon)
        self.weight = self._make("w_0", size, weight_attr, 1.0)
        self.bias = self._make("b_0", size, bias_attr, 0.0)

    def _make(self, end: str, size: int, attr: Attr, value: float) -> ParamConfig:
        own = ParamAttr(trainable=False) if attr is False else attr
        name = f"{self._full_name}.{end}"
        return make_param(own, name, (size,), is_bias=end == "b_0", usual=Constant(value))


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
                self._make(f"w_{i}", num_features, ParamAttr(name=own, need_clip=False), i - 1.0),
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
