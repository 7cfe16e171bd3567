"""Layers, and what layer.py's table makes of the arguments of its functions: layers, costs, projections."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy.typing as npt

from ..engine.attr import ParameterAttribute
from ..engine.graph import Graph, Value, sort_values
from ..engine.ops import find_params, make_value
from ..engine.ops.base import Array
from ..engine.ops.signature import R, make_function
from ..engine.param_config import ParamConfig, make_config
from .activation import get_activation_name
from .data_type import InputType


class Measure(NamedTuple):
    """A metric of events: collect(step, *arrays of `values`) is added over batches.

    measure() gives its numbers, whose names begin with `name`. It is measured where `label` is fed.
    """

    name: str
    values: tuple[Value, ...]
    label: Value
    collect: Callable[..., npt.ArrayLike]
    measure: Callable[[Array], Mapping[str, float]]


def find_share(sums: Array) -> Mapping[str, float]:
    """Return the number of a measure that counts some items, and all."""
    return {"": float(sums[0] / sums[1]) if sums[1] else math.nan}


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
    measures: list[Measure] = field(default_factory=list, repr=False)  # of evaluators


class Stage(NamedTuple):
    """An operation on the value before it, and on `more`."""

    op: str
    attrs: Mapping[str, Any] = {}
    params: tuple[ParamConfig, ...] = ()
    more: tuple[Value, ...] = ()


def make_program(outputs: Iterable[Layer], more: Iterable[Value] = ()) -> Graph:
    """Return the program of all layers below `outputs`, and of more values."""
    return Graph(sort_values([*(one.value for one in outputs), *more]))


def list_data(program: Graph) -> list[Value]:
    """Return the data of a program in the order of their definition: the items of a sample in v2."""
    return sorted((value for value in program if value.op == "data"), key=lambda value: value.number)


def list_measures(output: Layer, program: Graph) -> list[Measure]:
    """Return what evaluators measure on the layers below `output`, with labels of the program."""
    found = [output]
    for layer in found:
        found += dict.fromkeys(one for one in layer.inputs if one not in found)
    return [one for layer in found for one in layer.measures if one.label in program]


_counters: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)


def define(row: str, build: Callable[[Any], R], text: str, act: str = "") -> Callable[..., R]:
    """Return a function for programs, from a row of make_function() that begins with NAME=KIND.

    build() makes the result of all arguments. KIND: a layer without a name has one that counts these.
    `act`: the activation without one.
    """
    names, _, arguments = row.partition(" ")
    own, _, kind = names.partition("=")
    where = own if "." in own else f"layer.{own}"

    def call(**given: Any) -> R:
        of = SimpleNamespace(**{"name": None, **given}, where=where)
        if kind and of.name is None:
            of.name = f"__{kind}_{next(_counters[kind])}__"
        if act:
            of.act = get_activation_name(of.act, act)
        return build(of)

    return make_function(f"{where} {arguments}", text, call)


def check_layers(value: Any, where: str) -> tuple[Layer, ...]:
    """Return layers; raises TypeError if there are none, or others."""
    layers = (value,) if isinstance(value, Layer) else tuple(value)
    if not layers or not all(isinstance(one, Layer) for one in layers):
        raise TypeError(f"{where}: {value!r}, expected a layer or a list of layers")
    return layers


def is_sparse(layer: Layer) -> bool:
    """Return True if it is data of places, which are 1, or have numbers."""
    return layer.type is not None and layer.type.kind in ("sparse", "sparse_float")


def check_ids(one: Layer, where: str) -> Layer:
    """Return a layer; raises ValueError if it is not data of ids."""
    if one.type is None or one.type.kind != "integer":
        raise ValueError(f"{where} {one.name} is not a data layer of integer_value")
    return one


def check_vectors(value: Any, where: str, *, sparse: bool = False) -> tuple[Layer, ...]:
    """Return layers; raises ValueError if one has no vectors, or without `sparse` sparse ones."""
    layers = check_layers(value, where)
    for one in layers:
        if is_sparse(one) and not sparse:
            raise ValueError(f"{where}: input {one.name} is a sparse vector, for layer.fc alone")
        if one.is_cost or (one.type and one.type.kind == "integer"):
            raise ValueError(f"{where}: input {one.name} is not a vector; convert ids with layer.embedding")
    return layers


def chain(name: str, values: Sequence[Value], *stages: Stage) -> Value:
    """Return the result of operations one after the other, the first on all `values`; the last has `name`."""
    for i, stage in enumerate(stages, 1):
        inner = name if i == len(stages) else f"{name}.{stage.op}{i}"
        inputs = (*values, *stage.more)
        values = [make_value(stage.op, inputs, name=inner, attrs=stage.attrs, params=stage.params)]
    return values[0]


def make_layer(
    of: Any, inputs: Sequence[Layer], *stages: Stage, values: Sequence[Value] = (), is_cost: bool = False
) -> Layer:
    """Return a layer of operations on its inputs, or on `values` of them, then activation and dropout.

    of: the arguments of its function.
    """
    name, act, attr = of.name, getattr(of, "act", "linear"), getattr(of, "layer_attr", None)
    rate = float((attr.drop_rate if attr else None) or 0.0)
    if rate and is_cost:
        raise ValueError(f"{of.where} {name}: drop_rate has no effect on a cost; give it to {inputs[0].name}")
    if rate and act == "softmax":
        raise ValueError(f"layer {name}: Softmax can't be used with drop_rate, as in v2")
    last = [] if act == "linear" else [Stage(act)]
    last += [Stage("dropout", {"rate": rate, "upscales": False})] if rate else []
    value = chain(name, values or [one.value for one in inputs], *stages, *last)
    params = tuple(config for stage in stages for config in stage.params)
    own = Layer(name=name, size=value.shape[-1], value=value, inputs=tuple(inputs), params=params)
    return replace(own, act=act, is_cost=is_cost)


def make_bias(name: str, size: int, attr: Any) -> tuple[ParamConfig, ...]:
    """Return the bias of a layer; none if `attr` is False."""
    if attr is False:
        return ()
    own = attr if isinstance(attr, ParameterAttribute) else ParameterAttribute()
    if own.sparse_update:
        raise ValueError(f"{name}: sparse_update is only for embeddings")
    return (make_config(f"_{name}.wbias", 1, size, own, bias=True),)


def make_weight(name: str, rows: int, cols: int, attr: Any, place: int = 0) -> ParamConfig:
    return make_config(f"_{name}.w{place}", rows, cols, attr or ParameterAttribute(), bias=False)


def embed(of: Any) -> Layer:
    one = check_ids(check_layers(of.input, of.where)[0], f"{of.where}: input")
    table = make_weight(of.name, one.size, of.size, of.param_attr)
    return make_layer(of, (one,), Stage("lookup", {"dim": of.size, "padding": None}, (table,)))


def pool(of: Any, by: str) -> Layer:
    return make_layer(of, check_vectors(of.input, of.where), Stage("pool", {"by": by}))


def recur(of: Any, op: str, parts: int, attrs: Mapping[str, object]) -> Layer:
    """Return a layer of states; without a bias it has one that stays 0."""
    one, *others = check_vectors(of.input, of.name)
    size = one.size // parts
    if others or one.size % parts or of.size not in (None, size):
        expected = f"expected one input of {parts} * size, size={of.size}; it is {one.size}"
        raise ValueError(f"layer {of.name}: {expected}")
    for own, usual in {"act": "tanh", "gate_act": "sigmoid", "state_act": "tanh"}.items():
        if get_activation_name(given := getattr(of, own, None), usual) != usual:
            raise ValueError(f"layer {of.name}: {given!r}, expected {usual.title()}, the default")
    of.act, every = "linear", {**attrs, "size": size, "swaps": False, "reverse": of.reverse}
    (rows, cols), (biases,) = find_params(op, [one.value], every, of.name)
    fixed = ParameterAttribute(is_static=True)
    bias = make_bias(of.name, biases, fixed if of.bias_attr is False else of.bias_attr)
    weight = make_weight(of.name, rows, cols, of.param_attr)
    return make_layer(of, (one,), Stage(op, every, (weight, *bias)))


def compare(of: Any) -> Layer:
    (x,), (y,) = check_vectors(of.a, of.where), check_vectors(of.b, of.where)
    if x.size * of.size != y.size:
        raise ValueError(f"{of.where}: b {y.name} has the size {y.size}, expected {of.size} * {x.size}")
    rows, total = {"shape": [0, -1, x.size]}, Stage("sum", {"axis": 2, "keepdim": False})
    u, v = (chain(f"{of.name}.{k}", [one.value], Stage("reshape", rows)) for k, one in enumerate((x, y)))
    product = chain(f"{of.name}.product", (u, v), Stage("multiply"), total)
    # Shorter vectors count as of length 1e-8, as in PyTorch: the slope at zeros has a bound.
    least = Stage("clip", {"least": 1e-16, "most": float("inf")})
    stages = Stage("multiply"), total, least, Stage("sqrt")
    norms = [chain(f"{of.name}.norm{k}", (one, one), *stages) for k, one in enumerate((u, v))]
    by_norms = Stage("divide"), Stage("divide", more=(norms[1],))  # one by one: their product may be 0
    scale = Stage("scale", {"scale": float(of.scale), "bias": 0.0})
    return make_layer(of, (x, y), *by_norms, scale, values=[product, norms[0]])


class Projection(NamedTuple):
    """A part of a mixed layer: make(the layer's name, the part's place, the layer's size) gives its value."""

    inputs: tuple[Layer, ...]
    size: int  # 0: the layer's
    make: Callable[[str, int, int], Value]


def add_values(of: Any, inputs: Sequence[Layer], values: Sequence[Value]) -> Layer:
    """Return a layer of the sum of values, and of a bias unless `bias_attr` is False."""
    first, *others = values
    for one in others:
        if one.shape != first.shape:
            raise ValueError(f"{of.where} {of.name}: {first.name} and {one.name} differ in size")
    others += [_read(f"{of.name}.bias", one) for one in make_bias(of.name, first.size, of.bias_attr)]
    return make_layer(of, inputs, *(Stage("add", more=(one,)) for one in others), values=[first])


def add_inputs(of: Any, **more: Any) -> Layer:
    vars(of).update(more)
    layers = check_vectors(of.input, of.where)
    return add_values(of, layers, [one.value for one in layers])


class Mixed(Layer):
    """A mixed layer. Without `input` its parts are added by += in a with statement, which makes it."""

    def __init__(self, of: Any) -> None:
        given, of.input = of.input, []
        vars(self)["of"] = of  # until it is made; a layer is frozen
        if given is not None:
            for part in [given] if isinstance(given, Projection) else given:
                self.__iadd__(part)
            self.__exit__(None)

    def __enter__(self) -> Mixed:
        return self

    def __iadd__(self, part: Projection) -> Mixed:
        if not isinstance(part, Projection):
            raise TypeError(f"{self.of.where}: {part!r}, expected a projection: full_matrix_projection(x)")
        self.of.input.append(part)
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is None:
            vars(self)["made"] = add_projections(vars(self).pop("of"))

    def __getattr__(self, name: str) -> Any:
        if name in ("of", "made"):
            raise AttributeError("layer.mixed: += belongs in its with statement, and every use behind that")
        return getattr(self.made, name)


def add_projections(of: Any) -> Layer:
    parts = of.input
    if not parts:
        raise TypeError(f"{of.where} {of.name}: no projection, expected input=[full_matrix_projection(x)]")
    sizes = {one.size for one in parts if one.size} | {of.size} - {0}
    if len(sizes) != 1:
        raise ValueError(f"{of.where} {of.name}: sizes {sorted(sizes)}, expected one")
    values = [one.make(of.name, i, *sizes) for i, one in enumerate(parts)]
    return add_values(of, [layer for one in parts for layer in one.inputs], values)


def multiply(name: str, x: Layer, weight: ParamConfig) -> Value:
    """Return x W; of a sparse vector the rows of W are looked up."""
    if not is_sparse(x):
        return chain(name, [x.value], Stage("fc", {"size": weight.cols, "keeps": 1}, (weight,)))
    numbers = [] if x.numbers is None else [Stage("multiply", more=(x.numbers,))]
    return chain(name, [look_up(f"{name}.rows", x, weight)], *numbers, Stage("pool", {"by": "sum"}))


def multiply_inputs(of: Any) -> Layer:
    layers, attrs = check_vectors(of.input, of.where, sparse=True), of.param_attr
    if isinstance(attrs, ParameterAttribute) or attrs is None:
        attrs = [attrs] * len(layers)
    if len(attrs) != len(layers):
        raise ValueError(f"{of.where}: {len(attrs)} param_attr for {len(layers)} inputs")
    pairs = list(enumerate(zip(layers, attrs, strict=True)))
    weights = [make_weight(of.name, one.size, of.size, attr, i) for i, (one, attr) in pairs]
    if any(map(is_sparse, layers)):
        parts = [multiply(f"{of.name}.part{i}", one, weights[i]) for i, (one, _) in pairs]
        return add_values(of, layers, parts)
    params = (*weights, *make_bias(of.name, of.size, of.bias_attr))
    return make_layer(of, layers, Stage("fc", {"size": of.size, "keeps": 1}, params))


def _read(name: str, weight: ParamConfig) -> Value:
    return Value(name=name, op="parameter", shape=weight.shape, params=(weight,))


def scale(name: str, x: Layer, weight: ParamConfig) -> Value:
    return chain(name, [x.value, _read(f"{name}.w", weight)], Stage("multiply"))


def multiply_transposed(name: str, x: Layer, weight: ParamConfig) -> Value:
    return chain(name, [x.value, _read(f"{name}.w", weight)], Stage("matmul", {"transpose": (False, True)}))


def look_up(name: str, x: Layer, weight: ParamConfig) -> Value:
    return chain(name, [x.value], Stage("lookup", {"dim": weight.cols, "padding": None}, (weight,)))


def project(of: Any, product: Callable[..., Value], shape: Any = lambda *sizes: sizes) -> Projection:
    """Return a product with a weight, whose shape depends on the sizes of the input and of the layer."""
    (one,) = check_layers(of.input, of.where)
    if product is look_up:
        check_ids(one, f"{of.where}: input")
    else:
        check_vectors(one, of.where, sparse=product is multiply)

    def make(name: str, place: int, size: int) -> Value:
        rows, cols = shape(one.size, size)
        weight = make_weight(name, rows, cols, of.param_attr, place)
        return product(f"{name}.part{place}", one, weight)

    return Projection((one,), getattr(of, "size", one.size), make)


def multiply_both(of: Any) -> Projection:
    both = *check_vectors(of.a, of.where), *check_vectors(of.b, of.where)
    if len({one.size for one in both}) != 1:
        raise ValueError(f"{of.where}: {both[0].name} and {both[1].name} differ in size")
    scales = [Stage("scale", {"scale": float(of.scale), "bias": 0.0})] if of.scale != 1 else []
    stages, values = [Stage("multiply"), *scales], [one.value for one in both]
    return Projection(both, both[0].size, lambda name, i, _: chain(f"{name}.part{i}", values, *stages))


def pass_on(of: Any) -> Projection:
    (one,) = check_vectors(of.input, of.where)
    return Projection((one,), one.size, lambda *_: one.value)


def join_neighbors(of: Any) -> Projection:
    (one,), length = check_vectors(of.input, of.where), of.context_len
    if of.padding_attr:
        raise ValueError(f"{of.where}: padding_attr={of.padding_attr!r}; only zeros, False, are supported")
    start = -(length - 1) // 2 if of.context_start is None else of.context_start
    stage, size = Stage("context", {"length": length, "start": start}), one.size * length
    return Projection((one,), size, lambda name, i, _: chain(f"{name}.part{i}", [one.value], stage))


def take_log(of: Any) -> Layer:
    where = "layer.classification_cost"
    (scores,), label = check_vectors(of.input, where), of.label
    if label.type is None or label.type.kind != "integer" or label.size != scores.size:
        raise ValueError(f"{where}: label {label.name} must be integer_value({scores.size})")
    if scores.act != "softmax":
        raise ValueError(f"{where}: input {scores.name} has activation {scores.act}, expected Softmax")
    return make_layer(of, (scores, label), Stage("cross_entropy"), is_cost=True)


def classify(of: Any) -> Layer:
    made, name = take_log(of), "classification_error_evaluator"
    own = Measure(name, (), of.label.value, lambda step: [step.errors, step.samples], find_share)
    made.measures.append(own)
    return made


def square(of: Any) -> Layer:
    (vector,), label = check_vectors(of.input, of.where), of.label
    if label.type is None or label.type.kind != "dense" or label.size != vector.size:
        raise ValueError(f"{of.where}: label {label.name} must be dense_vector({vector.size})")
    return make_layer(of, (vector, label), Stage("square_error"), is_cost=True)


def cross_binary(of: Any) -> Layer:
    (p,) = check_vectors(of.input, of.where)
    values = p.value, _make_numbers(of, p.size)
    stages = Stage("binary_cross_entropy"), Stage("sum", {"axis": 1, "keepdim": True})
    return make_layer(of, (p, of.label), *stages, values=values, is_cost=True)


def rank(of: Any) -> Layer:
    both = (*check_vectors(of.left, of.where), *check_vectors(of.right, of.where))
    others = () if of.weight is None else check_vectors(of.weight, of.where)
    if any(one.size != 1 for one in (*both, *others)):
        raise ValueError(f"{of.where} {of.name}: expected inputs of size 1")
    stages = [Stage("subtract"), Stage("sigmoid_cross_entropy", more=(_make_numbers(of, 1),))]
    stages += [Stage("multiply", more=(one.value,)) for one in others]
    inputs, values = (*both, of.label, *others), [one.value for one in both]
    return make_layer(of, inputs, *stages, values=values, is_cost=True)


def _make_numbers(of: Any, size: int) -> Value:
    """Return the labels as `size` numbers for each sample."""
    label: Layer = of.label
    name, kind = f"{of.name}.label", label.type.kind if label.type else ""
    if (kind, label.size) == ("dense", size):
        return label.value
    if (kind, label.size, size) == ("integer", 2, 1):
        return chain(name, [label.value], Stage("cast", {"to": "float"}), Stage("reshape", {"shape": [0, 1]}))
    if kind not in ("integer", "sparse") or label.size != size:
        raise ValueError(f"{of.where}: label {label.name} must be dense_vector({size})")
    pool = [Stage("pool", {"by": "sum"})] if is_sparse(label) else []
    return chain(name, [label.value], Stage("one_hot", {"num_classes": size}), *pool)


def sample_classes(of: Any, op: str, attrs: Mapping[str, object], *more: Layer) -> Layer:
    """Return a cost of `input` with a weight, and a bias unless `bias_attr` is False."""
    vectors, label = check_vectors(of.input, of.where), of.label
    if len(vectors) != 1:
        raise ValueError(f"{of.where}: {len(vectors)} inputs, expected one; layer.concat joins several")
    check_ids(label, f"{of.where}: label")
    every = {**attrs, "classes": label.size if of.num_classes is None else of.num_classes}
    if every["classes"] < label.size:
        raise ValueError(f"{of.where}: num_classes={of.num_classes}, but label {label.name} has {label.size}")
    inputs = (*vectors, label, *more)
    (rows, cols), _ = find_params(op, [one.value for one in inputs], every, of.name)
    params = (
        make_weight(of.name, rows, cols, of.param_attr),
        *make_bias(of.name, rows, of.bias_attr),
    )
    return make_layer(of, inputs, Stage(op, every, params), is_cost=True)


def tell_from_noise(of: Any) -> Layer:
    if get_activation_name(of.act, "sigmoid") != "sigmoid":
        raise ValueError(f"{of.where}: act={of.act!r}, expected Sigmoid, the default")
    of.act, given = "linear", of.neg_distribution
    noise = "uniform" if given is None else tuple(map(float, given))
    others = () if of.weight is None else check_vectors(of.weight, of.where)
    return sample_classes(of, "nce", {"noise": noise, "samples": of.num_neg_samples}, *others)
