"""Layers by their v2 names: they describe a network, network.py computes it.

A layer function returns a `Layer`, the input of other layers. Parameters with the same name are shared.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from . import publish
from .activation import get_activation_name
from .arrays import MAX_IDS
from .attr import ExtraLayerAttribute, ParameterAttribute
from .data_type import InputType
from .param_config import ParamConfig, make_config

__all__ = [
    "Layer",
    "classification_cost",
    "concat",
    "cross_entropy_cost",
    "data",
    "embedding",
    "fc",
    "mse_cost",
    "regression_cost",
    "square_error_cost",
]
publish(__name__, __all__)

Op = Literal["data", "embedding", "concat", "fc", "cross_entropy", "square_error"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Layer:
    """One layer: its operation (`op`), inputs and parameters."""

    name: str
    op: Op
    size: int
    inputs: tuple[Layer, ...] = ()
    weights: tuple[ParamConfig, ...] = ()  # one per input
    bias: ParamConfig | None = None
    act: str = "linear"
    drop_rate: float = 0.0
    type: InputType | None = None  # of a data layer
    error_rate: bool = False  # True for a cost that also gives the share of wrong classes
    number: int = field(init=False, default_factory=itertools.count().__next__)  # in order of definition

    def __post_init__(self) -> None:
        if self.act == "softmax" and self.drop_rate > 0.0:
            raise ValueError(f"layer {self.name}: Softmax can't be used with drop_rate, as in v2")

    @property
    def params(self) -> tuple[ParamConfig, ...]:
        """All parameters of this layer."""
        return (*self.weights, self.bias) if self.bias is not None else self.weights


LayerInput = Layer | Sequence[Layer]
BiasAttr = ParameterAttribute | bool | None
_counters: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)


def _make_name(name: str | None, kind: str) -> str:
    return name if name is not None else f"__{kind}_{next(_counters[kind])}__"


def _check_layers(value: LayerInput, where: str) -> tuple[Layer, ...]:
    layers = (value,) if isinstance(value, Layer) else tuple(value)
    if not layers or not all(isinstance(one, Layer) for one in layers):
        raise TypeError(f"{where}: input={value!r}, expected a layer or a list of layers")
    return layers


def _check_vectors(value: LayerInput, where: str) -> tuple[Layer, ...]:
    layers = _check_layers(value, where)
    for one in layers:
        if one.op in ("cross_entropy", "square_error") or (one.type and one.type.kind == "integer"):
            raise ValueError(f"{where}: input {one.name} is not a vector; convert ids with layer.embedding")
    return layers


def data(name: str, type: InputType, height: int | None = None, width: int | None = None) -> Layer:
    """Return an input of the network; `height` and `width` are v2's and have no effect."""
    if not isinstance(type, InputType):
        raise TypeError(
            f"layer.data({name!r}): type={type!r}, expected a type from data_type, such as integer_value(n)"
        )
    return Layer(name=name, op="data", size=type.dim, type=type)


def embedding(
    input: LayerInput,
    size: int,
    name: str | None = None,
    param_attr: ParameterAttribute | None = None,
    layer_attr: ExtraLayerAttribute | None = None,
) -> Layer:
    """Return a layer that looks up the table row of each id: [n] ids to [n, size]."""
    (one,) = _check_layers(input, "layer.embedding")[:1]
    if one.type is None or one.type.kind != "integer":
        raise ValueError(f"layer.embedding: input {one.name} is not a data layer of integer_value")
    if one.size > MAX_IDS:
        raise ValueError(f"layer.embedding: input {one.name} has {one.size} ids; the limit is 2**32")
    own = _make_name(name, "embedding")
    table = make_config(f"_{own}.w0", one.size, size, param_attr or ParameterAttribute(), bias=False)
    return Layer(
        name=own,
        op="embedding",
        size=size,
        inputs=(one,),
        weights=(table,),
        drop_rate=_get_drop_rate(layer_attr),
    )


def concat(
    input: Sequence[Layer],
    act: object = None,
    name: str | None = None,
    layer_attr: ExtraLayerAttribute | None = None,
) -> Layer:
    """Return a layer that joins the vectors of each sample, one after the other."""
    layers = _check_vectors(input, "layer.concat")
    return Layer(
        name=_make_name(name, "concat"),
        op="concat",
        size=sum(one.size for one in layers),
        inputs=layers,
        act=get_activation_name(act, "linear"),
        drop_rate=_get_drop_rate(layer_attr),
    )


def fc(
    input: LayerInput,
    size: int,
    act: object = None,
    name: str | None = None,
    param_attr: ParameterAttribute | Sequence[ParameterAttribute] | None = None,
    bias_attr: BiasAttr = None,
    layer_attr: ExtraLayerAttribute | None = None,
) -> Layer:
    """Return act(x W + b), summed over the inputs. `act` is Tanh by default, as in v2; bias False: no b."""
    layers = _check_vectors(input, "layer.fc")
    own = _make_name(name, "fc_layer")
    if isinstance(param_attr, ParameterAttribute) or param_attr is None:
        param_attr = [param_attr or ParameterAttribute()] * len(layers)
    if len(param_attr) != len(layers):
        raise ValueError(f"layer.fc: {len(param_attr)} param_attr for {len(layers)} inputs")
    if any(attr.sparse_update for attr in param_attr):
        raise ValueError(f"layer.fc {own}: sparse_update is only for embeddings")
    weights = [
        make_config(f"_{own}.w{i}", one.size, size, attr, bias=False)
        for i, (one, attr) in enumerate(zip(layers, param_attr, strict=True))
    ]
    return Layer(
        name=own,
        op="fc",
        size=size,
        inputs=layers,
        weights=tuple(weights),
        bias=_make_bias(f"_{own}.wbias", size, bias_attr),
        act=get_activation_name(act, "tanh"),
        drop_rate=_get_drop_rate(layer_attr),
    )


def classification_cost(input: Layer, label: Layer, name: str | None = None) -> Layer:
    """Return minus the logarithm of the label's probability; `input` is a layer with Softmax.

    Events then have the metric `classification_error_evaluator`, the share of wrong classes.
    """
    return _make_label_cost(input, label, _make_name(name, "cost"), error_rate=True)


def cross_entropy_cost(input: Layer, label: Layer, name: str | None = None) -> Layer:
    """Return classification_cost without the metric."""
    return _make_label_cost(input, label, _make_name(name, "cross_entropy"), error_rate=False)


def square_error_cost(input: Layer, label: Layer, name: str | None = None) -> Layer:
    """Return the sum of squared differences of `input` and the vector `label`, not halved, as in v2."""
    (vector,) = _check_vectors(input, "layer.square_error_cost")
    if label.type is None or label.type.kind != "dense" or label.size != vector.size:
        raise ValueError(f"layer.square_error_cost: label {label.name} must be dense_vector({vector.size})")
    return Layer(
        name=_make_name(name, "square_error_cost"), op="square_error", size=1, inputs=(vector, label)
    )


mse_cost = regression_cost = square_error_cost


def _make_label_cost(input: Layer, label: Layer, name: str, *, error_rate: bool) -> Layer:
    (scores,) = _check_vectors(input, "layer.classification_cost")
    if label.type is None or label.type.kind != "integer" or label.size != scores.size:
        raise ValueError(
            f"layer.classification_cost: label {label.name} must be integer_value({scores.size})"
        )
    if scores.act != "softmax":
        raise ValueError(
            f"layer.classification_cost: input {scores.name} has activation {scores.act}, expected Softmax"
        )
    return Layer(name=name, op="cross_entropy", size=1, inputs=(scores, label), error_rate=error_rate)


def _get_drop_rate(layer_attr: ExtraLayerAttribute | None) -> float:
    return float((layer_attr.drop_rate if layer_attr else None) or 0.0)


def _make_bias(name: str, size: int, attr: BiasAttr) -> ParamConfig | None:
    if attr is False:
        return None
    own = attr if isinstance(attr, ParameterAttribute) else ParameterAttribute()
    if own.sparse_update:
        raise ValueError(f"{name}: sparse_update is only for embeddings")
    return make_config(name, 1, size, own, bias=True)
