"""Networks of several layers by their v2 names."""

from __future__ import annotations

from typing import Any

from . import layer
from .activation import Linear
from .building import Layer, define

__all__ = ["dropout_layer", "sequence_conv_pool", "simple_gru", "simple_lstm", "text_conv_pool"]

dropout_layer = layer.dropout


def _make_gru(of: Any) -> Layer:
    own = f"{of.name}_transform" if of.name else None
    mixed = of.mixed_param_attr, of.mixed_bias_param_attr, of.mixed_layer_attr
    inner = layer.fc(of.input, 3 * of.size, Linear(), own, *mixed)
    rest = of.act, of.gate_act, of.gru_bias_attr, of.gru_param_attr, of.gru_layer_attr
    return layer.grumemory(inner, of.size, of.name, of.reverse, *rest)


def _make_lstm(of: Any) -> Layer:
    own = f"{of.name}_transform" if of.name else None
    inner = layer.fc(of.input, 4 * of.size, Linear(), own, of.mat_param_attr, False, of.mixed_layer_attr)
    acts = of.act, of.gate_act, of.state_act
    rest = of.bias_param_attr, of.inner_param_attr, of.lstm_cell_attr
    return layer.lstmemory(inner, of.name, of.size, of.reverse, *acts, *rest)


def _convolve(of: Any) -> Layer:
    if of.pool_bias_attr:
        raise ValueError(f"{of.where}: pool_bias_attr={of.pool_bias_attr!r} is not supported")
    beside = layer.context_projection(of.input, of.context_len, of.context_start, of.context_proj_param_attr)
    own = of.context_proj_layer_name or f"{of.name}_conv_proj"
    inner = layer.mixed(0, beside, own, layer_attr=of.context_attr)
    own, attrs = of.fc_layer_name or f"{of.name}_conv_fc", (of.fc_param_attr, of.fc_bias_attr, of.fc_attr)
    hidden = layer.fc(inner, of.hidden_size, of.fc_act, own, *attrs)
    return layer.pooling(hidden, of.pool_type, of.name, of.pool_attr)


simple_gru = define("networks.simple_gru input size | name reverse=False mixed_param_attr "
                    "mixed_bias_param_attr=False mixed_layer_attr gru_bias_attr gru_param_attr act gate_act "
                    "gru_layer_attr", _make_gru,
                    "layer.grumemory of a layer.fc without activation, the layer NAME_transform")  # fmt: skip
simple_lstm = define("networks.simple_lstm input size | name reverse=False mat_param_attr bias_param_attr "
                     "inner_param_attr act gate_act state_act mixed_layer_attr lstm_cell_attr", _make_lstm,
                     "layer.lstmemory of a layer.fc without activation and bias, the layer NAME_transform",
                     )  # fmt: skip
sequence_conv_pool = text_conv_pool = define(
    "networks.sequence_conv_pool=sequence_conv_pooling input context_len hidden_size | name context_start "
    "pool_type context_proj_layer_name context_proj_param_attr fc_layer_name fc_param_attr fc_bias_attr "
    "fc_act pool_bias_attr fc_attr context_attr pool_attr", _convolve,
    "layer.pooling of a layer.fc, NAME_conv_fc, of layer.context_projection, NAME_conv_proj: a convolution",
)  # fmt: skip
