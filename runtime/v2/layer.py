"""Layers by their v2 names: they describe a network as values of a program.

A layer function returns a `Layer`, the input of other layers. Parameters with the same name are shared.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..engine.attr import ExtraLayerAttribute, ParameterAttribute
from ..engine.graph import BATCH, Graph, Value, sort_values
from ..engine.ops import find_params, make_value
from ..engine.param_config import ANY_ID, ParamConfig, make_config
from .activation import get_activation_name
from .data_type import InputType
from .pooling import Max, get_pooling_name

__all__ = [
    "Layer", "classification_cost", "concat", "cross_entropy_cost", "data", "embedding", "fc",
    "first_seq", "grumemory", "hsigmoid", "last_seq", "lstmemory", "mse_cost", "nce", "pooling",
    "regression_cost", "square_error_cost",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Layer:
    """One layer: the value of its outputs, [batch, size], or ids, [batch], and its parameters."""

    name: str
    size: int
    value: Value
    inputs: tuple[Layer, ...] = ()
    params: tuple[ParamConfig, ...] = ()
    act: str = "linear"
    type: InputType | None = None  # of a data layer
    numbers: Value | None = None  # at the places of a sparse vector
    is_cost: bool = False
    error_rate: bool = False  # True for a cost that also gives the share of wrong classes


def make_program(outputs: Iterable[Layer]) -> Graph:
    """Return the program of all layers below `outputs`."""
    return Graph(sort_values(one.value for one in outputs))


def list_data(program: Graph) -> list[Value]:
    """Return the data of a program in the order of their definition: the items of a sample in v2."""
    return sorted((value for value in program if value.op == "data"), key=lambda value: value.number)


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


def _is_sparse(layer: Layer) -> bool:
    return layer.type is not None and layer.type.kind in ("sparse", "sparse_float")


def _check_vectors(value: LayerInput, where: str, *, sparse: bool = False) -> tuple[Layer, ...]:
    layers = _check_layers(value, where)
    for one in layers:
        if _is_sparse(one) and not sparse:
            raise ValueError(f"{where}: input {one.name} is a sparse vector, which layer.fc alone takes")
        if one.is_cost or (one.type and one.type.kind == "integer"):
            raise ValueError(f"{where}: input {one.name} is not a vector; convert ids with layer.embedding")
    return layers


def data(name: str, type: InputType, height: int | None = None, width: int | None = None) -> Layer:
    """Return an input of the network; `height` and `width` are v2's and have no effect."""
    if not isinstance(type, InputType):
        raise TypeError(
            f"layer.data({name!r}): type={type!r}, expected a type from data_type, such as integer_value(n)"
        )
    is_id = type.kind != "dense"
    salt = {"salt": name if type.salt is None else type.salt} if type.is_text else {}
    value = Value(
        name=name,
        op="data",
        shape=(BATCH,) if is_id else (BATCH, type.dim),
        kind="id" if is_id else "float",
        is_sequence=type.is_sequence or type.kind in ("sparse", "sparse_float"),
        attrs={"below": type.dim if is_id and type.dim != ANY_ID else None, **salt},
    )
    numbers = None
    if type.kind == "sparse_float":
        attrs = {"numbers_of": name}
        numbers = Value(name=f"{name}.numbers", op="data", shape=(BATCH, 1), is_sequence=True, attrs=attrs)
    return Layer(name=name, size=type.dim, value=value, type=type, numbers=numbers)


def embedding(
    input: LayerInput,
    size: int,
    name: str | None = None,
    param_attr: ParameterAttribute | None = None,
    layer_attr: ExtraLayerAttribute | None = None,
) -> Layer:
    """Return a layer that looks up the table row of each id: [n] ids, or sequences of them, to [n, size]."""
    (one,) = _check_layers(input, "layer.embedding")[:1]
    if one.type is None or one.type.kind != "integer":
        raise ValueError(f"layer.embedding: input {one.name} is not a data layer of integer_value")
    own = _make_name(name, "embedding")
    table = make_config(f"_{own}.w0", one.size, size, param_attr or ParameterAttribute(), bias=False)
    attrs = {"dim": size, "padding": None}
    return _make_layer(own, "lookup", (one,), attrs, (table,), "linear", layer_attr)


def pooling(
    input: LayerInput,
    pooling_type: object = None,
    name: str | None = None,
    layer_attr: ExtraLayerAttribute | None = None,
) -> Layer:
    """Return one vector for all items of a sequence; zeros without items. Max by default, as in v2."""
    by = get_pooling_name(Max if pooling_type is None else pooling_type)
    return _pool(input, by, "pooling", name, layer_attr)


def first_seq(
    input: LayerInput, name: str | None = None, layer_attr: ExtraLayerAttribute | None = None
) -> Layer:
    """Return the first vector of each sequence; zeros without items."""
    return _pool(input, "first", "first_seq", name, layer_attr)


def last_seq(
    input: LayerInput, name: str | None = None, layer_attr: ExtraLayerAttribute | None = None
) -> Layer:
    """Return the last vector of each sequence; zeros without items."""
    return _pool(input, "last", "last_seq", name, layer_attr)


def _pool(
    input: LayerInput, by: str, kind: str, name: str | None, layer_attr: ExtraLayerAttribute | None
) -> Layer:
    layers = _check_vectors(input, f"layer.{kind}")
    return _make_layer(_make_name(name, kind), "pool", layers, {"by": by}, (), "linear", layer_attr)


def lstmemory(
    input: LayerInput,
    name: str | None = None,
    size: int | None = None,
    reverse: bool = False,
    act: object = None,
    gate_act: object = None,
    state_act: object = None,
    bias_attr: BiasAttr = None,
    param_attr: ParameterAttribute | None = None,
    layer_attr: ExtraLayerAttribute | None = None,
) -> Layer:
    """Return the states of an LSTM over a sequence of vectors of 4 * size, with peepholes, as in v2.

    The vectors are a product with a weight already: of layer.fc without activation and bias.
    """
    acts = (act, "tanh"), (gate_act, "sigmoid"), (state_act, "tanh")
    attrs = {"order": "gifo", "peeps": True}
    own = _make_name(name, "lstmemory"), "lstm", 4, size
    return _make_recurrent(
        *own, input, {**attrs, "reverse": reverse}, acts, bias_attr, param_attr, layer_attr
    )


def grumemory(
    input: LayerInput,
    size: int | None = None,
    name: str | None = None,
    reverse: bool = False,
    act: object = None,
    gate_act: object = None,
    bias_attr: BiasAttr = None,
    param_attr: ParameterAttribute | None = None,
    layer_attr: ExtraLayerAttribute | None = None,
) -> Layer:
    """Return the states of a GRU over a sequence of vectors of 3 * size, as of lstmemory."""
    acts = (act, "tanh"), (gate_act, "sigmoid")
    own = _make_name(name, "gru"), "v2_gru", 3, size
    return _make_recurrent(*own, input, {"reverse": reverse}, acts, bias_attr, param_attr, layer_attr)


def _make_recurrent(
    name: str,
    op: str,
    parts: int,
    size: int | None,
    input: LayerInput,
    attrs: Mapping[str, object],
    acts: Iterable[tuple[object, str]],
    bias_attr: BiasAttr,
    param_attr: ParameterAttribute | None,
    layer_attr: ExtraLayerAttribute | None,
) -> Layer:
    """Return a layer of states; without a bias it has one that stays 0."""
    one, *others = _check_vectors(input, name)
    if others or one.size % parts or size not in (None, one.size // parts):
        raise ValueError(f"layer {name}: expected one input of {parts} * size, {size=}; it is {one.size}")
    for given, usual in acts:
        if get_activation_name(given, usual) != usual:
            raise ValueError(f"layer {name}: {given!r}, expected {usual.title()}, the default")
    every = {**attrs, "size": one.size // parts, "swaps": False}
    (rows, cols), (biases,) = find_params(op, [one.value], every, name)
    fixed = ParameterAttribute(is_static=True)
    bias = _make_bias(f"_{name}.wbias", biases, fixed if bias_attr is False else bias_attr)
    assert bias is not None
    weight = make_config(f"_{name}.w0", rows, cols, param_attr or ParameterAttribute(), bias=False)
    return _make_layer(name, op, (one,), every, (weight, bias), "linear", layer_attr)


def concat(
    input: Sequence[Layer],
    act: object = None,
    name: str | None = None,
    layer_attr: ExtraLayerAttribute | None = None,
) -> Layer:
    """Return a layer that joins the vectors of each sample, one after the other."""
    layers = _check_vectors(input, "layer.concat")
    own, act = _make_name(name, "concat"), get_activation_name(act, "linear")
    return _make_layer(own, "concat", layers, {"axis": 1}, (), act, layer_attr)


def fc(
    input: LayerInput,
    size: int,
    act: object = None,
    name: str | None = None,
    param_attr: ParameterAttribute | Sequence[ParameterAttribute] | None = None,
    bias_attr: BiasAttr = None,
    layer_attr: ExtraLayerAttribute | None = None,
) -> Layer:
    """Return act(x W + b), summed over the inputs. `act` is Tanh by default, as in v2; bias False: no b.

    Of a sparse vector the rows of W are looked up, which may be on pservers (sparse_update).
    """
    layers = _check_vectors(input, "layer.fc", sparse=True)
    own = _make_name(name, "fc_layer")
    if isinstance(param_attr, ParameterAttribute) or param_attr is None:
        param_attr = [param_attr or ParameterAttribute()] * len(layers)
    if len(param_attr) != len(layers):
        raise ValueError(f"layer.fc: {len(param_attr)} param_attr for {len(layers)} inputs")
    weights = [
        make_config(f"_{own}.w{i}", one.size, size, attr, bias=False)
        for i, (one, attr) in enumerate(zip(layers, param_attr, strict=True))
    ]
    bias = _make_bias(f"_{own}.wbias", size, bias_attr)
    act = get_activation_name(act, "tanh")
    own_attrs = {"size": size, "keeps": 1}
    if not any(map(_is_sparse, layers)):
        params = (*weights, bias) if bias is not None else tuple(weights)
        return _make_layer(own, "fc", layers, own_attrs, params, act, layer_attr)
    parts = []  # the bias first
    if bias is not None:
        parts.append(Value(name=f"{own}.bias", op="parameter", shape=(1, size), params=(bias,)))
    for i, (one, weight) in enumerate(zip(layers, weights, strict=True)):
        if _is_sparse(one):
            attrs = {"dim": size, "padding": None}
            rows = make_value("lookup", [one.value], name=f"{own}.rows{i}", attrs=attrs, params=[weight])
            if one.numbers is not None:
                rows = make_value("multiply", [rows, one.numbers], name=f"{own}.products{i}")
            parts.append(make_value("pool", [rows], name=f"{own}.part{i}", attrs={"by": "sum"}))
        else:
            name = f"{own}.part{i}"
            parts.append(make_value("fc", [one.value], name=name, attrs=own_attrs, params=[weight]))
    total = parts[0]
    for i, part in enumerate(parts[1:]):
        total = make_value("add", [total, part], name=f"{own}.sum{i}")
    summed = Layer(name=total.name, size=size, value=total)
    made = _make_layer(own, "scale", [summed], {"scale": 1.0, "bias": 0.0}, (), act, layer_attr)
    return replace(made, inputs=layers)


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
    own = _make_name(name, "square_error_cost")
    value = make_value("square_error", (vector.value, label.value), name=own)
    return Layer(name=own, size=1, value=value, inputs=(vector, label), is_cost=True)


mse_cost = regression_cost = square_error_cost


def hsigmoid(
    input: LayerInput,
    label: Layer,
    num_classes: int | None = None,
    name: str | None = None,
    bias_attr: BiasAttr = None,
    param_attr: ParameterAttribute | None = None,
    layer_attr: ExtraLayerAttribute | None = None,
) -> Layer:
    """Return the cost of finding the label in a binary tree of all classes, at most log2(num_classes) turns.

    `num_classes` is that of the label's type by default.
    """
    own = _make_name(name, "hsigmoid")
    attrs = {"classes": _find_classes(label, num_classes, "layer.hsigmoid")}
    return _make_sampled_cost(own, "hsigmoid", input, (label,), attrs, param_attr, bias_attr, layer_attr)


def nce(
    input: LayerInput,
    label: Layer,
    num_classes: int | None = None,
    act: object = None,
    param_attr: ParameterAttribute | None = None,
    weight: Layer | None = None,
    num_neg_samples: int = 10,
    neg_distribution: Sequence[float] | None = None,
    name: str | None = None,
    bias_attr: BiasAttr = None,
    layer_attr: ExtraLayerAttribute | None = None,
) -> Layer:
    """Return the cost of telling the label from `num_neg_samples` classes drawn as noise.

    They are drawn with the probabilities `neg_distribution`, by default equal ones. `weight` is a
    dense_vector(1), which multiplies the cost of each sample.
    """
    where = "layer.nce"
    own, classes = _make_name(name, "nce_layer"), _find_classes(label, num_classes, where)
    if get_activation_name(act, "sigmoid") != "sigmoid":
        raise ValueError(f"{where}: act={act!r}, expected Sigmoid, the default")
    noise = "uniform" if neg_distribution is None else tuple(map(float, neg_distribution))
    attrs = {"classes": classes, "noise": noise, "samples": num_neg_samples}
    others = (label,) if weight is None else (label, *_check_vectors(weight, where))
    return _make_sampled_cost(own, "nce", input, others, attrs, param_attr, bias_attr, layer_attr)


def _find_classes(label: Layer, given: int | None, where: str) -> int:
    if label.type is None or label.type.kind != "integer":
        raise ValueError(f"{where}: label {label.name} is not a data layer of integer_value")
    classes = label.size if given is None else given
    if classes < label.size:
        raise ValueError(f"{where}: num_classes={classes}, but label {label.name} has {label.size}")
    return classes


def _make_sampled_cost(
    name: str,
    op: str,
    input: LayerInput,
    others: tuple[Layer, ...],
    attrs: Mapping[str, object],
    param_attr: ParameterAttribute | None,
    bias_attr: BiasAttr,
    layer_attr: ExtraLayerAttribute | None,
) -> Layer:
    """Return a cost of `input` with a weight, and a bias unless `bias_attr` is False."""
    vectors, where = _check_vectors(input, f"layer.{op}"), f"layer.{op} {name}"
    if len(vectors) != 1:
        raise ValueError(f"{where}: {len(vectors)} inputs, expected one; layer.concat joins several")
    if layer_attr is not None and layer_attr.drop_rate:
        raise ValueError(f"{where}: drop_rate has no effect on a cost; give it to {vectors[0].name}")
    inputs = (*vectors, *others)
    values = [one.value for one in inputs]
    (rows, cols), _ = find_params(op, values, attrs, name)
    params = [make_config(f"_{name}.w0", rows, cols, param_attr or ParameterAttribute(), bias=False)]
    bias = _make_bias(f"_{name}.wbias", rows, bias_attr)
    if bias is not None:
        params.append(bias)
    value = make_value(op, values, name=name, attrs=attrs, params=params)
    return Layer(name=name, size=1, value=value, inputs=inputs, params=tuple(params), is_cost=True)


def _make_label_cost(input: Layer, label: Layer, name: str, *, error_rate: bool) -> Layer:
    where = "layer.classification_cost"
    (scores,) = _check_vectors(input, where)
    if label.type is None or label.type.kind != "integer" or label.size != scores.size:
        raise ValueError(f"{where}: label {label.name} must be integer_value({scores.size})")
    if scores.act != "softmax":
        raise ValueError(f"{where}: input {scores.name} has activation {scores.act}, expected Softmax")
    value = make_value("cross_entropy", (scores.value, label.value), name=name)
    inputs = (scores, label)
    return Layer(name=name, size=1, value=value, inputs=inputs, is_cost=True, error_rate=error_rate)


def _make_layer(
    name: str,
    op: str,
    inputs: Sequence[Layer],
    attrs: Mapping[str, object],
    params: tuple[ParamConfig, ...],
    act: str,
    layer_attr: ExtraLayerAttribute | None,
) -> Layer:
    """Return a layer of one operation, then activation and dropout. The last of them has the layer's name."""
    drop_rate = float((layer_attr.drop_rate if layer_attr else None) or 0.0)
    if act == "softmax" and drop_rate > 0.0:
        raise ValueError(f"layer {name}: Softmax can't be used with drop_rate, as in v2")
    steps: list[tuple[str, Mapping[str, object]]] = [(op, attrs)]
    if act != "linear":
        steps.append((act, {}))
    if drop_rate > 0.0:
        steps.append(("dropout", {"rate": drop_rate, "upscales": False}))
    values = [one.value for one in inputs]
    for i, (kind, own) in enumerate(steps, 1):
        inner = name if i == len(steps) else f"{name}.{kind}"
        values = [make_value(kind, values, name=inner, attrs=own, params=params if i == 1 else ())]
    size = values[0].shape[-1]
    return Layer(name=name, size=size, value=values[0], inputs=tuple(inputs), params=params, act=act)


def _make_bias(name: str, size: int, attr: BiasAttr) -> ParamConfig | None:
    if attr is False:
        return None
    own = attr if isinstance(attr, ParameterAttribute) else ParameterAttribute()
    if own.sparse_update:
        raise ValueError(f"{name}: sparse_update is only for embeddings")
    return make_config(name, 1, size, own, bias=True)
