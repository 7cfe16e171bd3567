"""Networks of several layers by their v2 names."""

from __future__ import annotations

from ..engine.attr import ExtraLayerAttribute, ParameterAttribute
from . import layer
from .activation import Linear
from .layer import BiasAttr, Layer, LayerInput

__all__ = ["simple_gru", "simple_lstm"]


def simple_gru(
    input: LayerInput,
    size: int,
    name: str | None = None,
    reverse: bool = False,
    mixed_param_attr: ParameterAttribute | None = None,
    mixed_bias_param_attr: BiasAttr = False,
    mixed_layer_attr: ExtraLayerAttribute | None = None,
    gru_bias_attr: BiasAttr = None,
    gru_param_attr: ParameterAttribute | None = None,
    act: object = None,
    gate_act: object = None,
    gru_layer_attr: ExtraLayerAttribute | None = None,
) -> Layer:
    """Return layer.grumemory of a layer.fc without activation, the layer NAME_transform."""
    own = f"{name}_transform" if name else None
    mixed = mixed_param_attr, mixed_bias_param_attr, mixed_layer_attr
    inner = layer.fc(input, 3 * size, Linear(), own, *mixed)
    return layer.grumemory(
        inner, size, name, reverse, act, gate_act, gru_bias_attr, gru_param_attr, gru_layer_attr
    )


def simple_lstm(
    input: LayerInput,
    size: int,
    name: str | None = None,
    reverse: bool = False,
    mat_param_attr: ParameterAttribute | None = None,
    bias_param_attr: BiasAttr = None,
    inner_param_attr: ParameterAttribute | None = None,
    act: object = None,
    gate_act: object = None,
    state_act: object = None,
    mixed_layer_attr: ExtraLayerAttribute | None = None,
    lstm_cell_attr: ExtraLayerAttribute | None = None,
) -> Layer:
    """Return layer.lstmemory of a layer.fc without activation and bias, the layer NAME_transform."""
    own = f"{name}_transform" if name else None
    inner = layer.fc(input, 4 * size, Linear(), own, mat_param_attr, False, mixed_layer_attr)
    acts = act, gate_act, state_act
    return layer.lstmemory(
        inner, name, size, reverse, *acts, bias_param_attr, inner_param_attr, lstm_cell_attr
    )
