"""Layers of static mode: `static.nn`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...engine.entry import ANY, EntryAttr
from ...engine.ops import find_params
from ..nn.layers import Embedding
from ..nn.weight_layers import BatchNorm1D, LayerNorm
from ..program.param_attr import Attr, make_param
from ..program.program import Variable, add_value, make_unique_name, parse_dtype
from ..program.tensor import define

__all__ = [
    "batch_norm", "cross", "embedding", "fc", "layer_norm", "nce", "sequence_first_step",
    "sequence_last_step", "sequence_pool", "sparse_embedding",
]  # fmt: skip

ACTIVATIONS = ("relu", "sigmoid", "softmax", "tanh")


def fc(
    x: Variable | Sequence[Variable],
    size: int,
    num_flatten_dims: int = 1,
    weight_attr: Attr | list[Attr] = None,
    bias_attr: Attr = None,
    activation: str | None = None,
    name: str | None = None,
) -> Variable:
    """Return activation(x W + b), summed over the inputs; bias_attr False: no b.

    The axes of x from `num_flatten_dims` on are taken as one.
    """
    inputs = [x] if isinstance(x, Variable) else list(x)
    weight_attrs = weight_attr if isinstance(weight_attr, list) else [weight_attr] * len(inputs)
    own = name or make_unique_name("fc")
    if len(weight_attrs) != len(inputs):
        raise ValueError(f"{own}: {len(weight_attrs)} weight_attr for {len(inputs)} inputs")
    attrs = {"keeps": num_flatten_dims % len(inputs[0].shape), "size": size}
    return _activate(_add_layer("fc", inputs, attrs, own, weight_attrs, bias_attr), activation, own)


def _activate(x: Variable, activation: str | None, own: str) -> Variable:
    if activation not in (None, *ACTIVATIONS):
        raise ValueError(
            f"{own}: activation={activation!r}, expected None or one of {', '.join(ACTIVATIONS)}"
        )
    return x if activation is None else add_value(activation, [x])


def _add_layer(
    op: str,
    inputs: Sequence[Variable],
    attrs: Mapping[str, Any],
    own: str,
    weight_attrs: Sequence[Attr],
    bias_attr: Attr,
) -> Variable:
    """Add an operation with new parameters: the weights, and a bias unless its attribute is False."""
    *weights, bias = find_params(op, inputs, attrs, own)
    params = [
        make_param(attr, f"{own}.w_{i}", shape, is_bias=False)
        for i, (attr, shape) in enumerate(zip(weight_attrs, weights, strict=True))
    ]
    if bias_attr is not False:
        params.append(make_param(bias_attr, f"{own}.b_0", bias, is_bias=True))
    return add_value(op, inputs, attrs, params, name=f"{own}.tmp_0")


def embedding(
    input: Variable,
    size: Sequence[int | None],
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: int | None = None,
    param_attr: Attr = None,
    dtype: object = "float32",
) -> Variable:
    """Return the table row of each id: [..., k] ids to [..., k, size[1]]; ids are below size[0], None: any.

    `is_sparse`: only the rows of a batch are fetched and updated, and with servers only these have the table.
    `is_distributed` has no effect: such tables always are. The row of the id `padding_idx` is 0.
    """
    return _embed(input, size, dtype, padding_idx, is_sparse, param_attr)


def _embed(x: Variable, size: Sequence[Any], dtype: object, *options: Any, **own: Any) -> Variable:
    """Return nn.Embedding of a new layer."""
    if len(size) != 2:
        raise ValueError(f"embedding: size={size!r}, expected the number of ids and the size of a row")
    if parse_dtype(dtype, "embedding") != "float":
        raise ValueError(f"embedding: dtype={dtype!r}, expected float32")
    out: Variable = Embedding(*size, *options, **own)(x)
    return out


def sparse_embedding(
    input: Variable,
    size: Sequence[int | None],
    padding_idx: int | None = None,
    is_test: bool = False,
    entry: object = None,
    table_class: str = "MemorySparseTable",
    param_attr: Attr = None,
    dtype: object = "float32",
    slot: object = None,
) -> Variable:
    """Return embedding(is_sparse=True); `entry` is a rule of `distributed`, as CountFilterEntry(10).

    `is_test` and `table_class` have no effect; ids are below size[0], None: any.
    """
    if slot is not None:
        raise ValueError(f"sparse_embedding: slot={slot!r} is not in this runtime; leave it out")
    if not isinstance(entry, EntryAttr | None):
        raise TypeError(f"sparse_embedding: entry={entry!r}, expected an entry rule, as CountFilterEntry(10)")
    return _embed(input, size, dtype, padding_idx, True, param_attr, entry=entry or ANY)


def batch_norm(
    input: Variable,
    act: str | None = None,
    is_test: bool = False,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    data_layout: str = "NCHW",
    in_place: bool = False,
    name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    do_model_average_for_mean_and_var: bool = True,
    use_global_stats: bool = False,
) -> Variable:
    """Return activation(nn.BatchNorm1D) of a new layer; `is_test`: by the running statistics.

    `in_place` and `do_model_average_for_mean_and_var` have no effect.
    """
    size = input.shape[-1 if data_layout.endswith("C") else 1]
    names = moving_mean_name, moving_variance_name
    options = data_layout, use_global_stats or is_test, name or "batch_norm"
    layer = BatchNorm1D(size, momentum, epsilon, param_attr, bias_attr, *options, names=names)
    return _activate(layer(input), act, layer.full_name())


def layer_norm(
    input: Variable,
    scale: bool = True,
    shift: bool = True,
    begin_norm_axis: int = 1,
    epsilon: float = 1e-5,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """Return activation(nn.LayerNorm) of a new layer, over the axes from `begin_norm_axis` on."""
    attrs = param_attr if scale else False, bias_attr if shift else False
    layer = LayerNorm(input.shape[begin_norm_axis:], epsilon, *attrs, name=name)
    return _activate(layer(input), act, layer.full_name())


def cross(input: Variable | Sequence[Variable], salt: str = "") -> Variable:
    """Return one int64 id for the ids of several slots, for a table with size=[None, dim]; ours.

    Of one slot too: with another `salt` its ids have other rows in the same table. Slots have one shape.
    """
    return add_value("cross", [input] if isinstance(input, Variable) else list(input), {"salt": salt})


def sequence_pool(input: Variable, pool_type: str, is_test: bool = False, pad_value: float = 0.0) -> Variable:
    """Return one item for each sample, from its sequence: average, sum, sqrt, max, last or first.

    sqrt: the sum divided by the square root of the number of items. A sequence without items gives zeros.
    `is_test` has no effect.
    """
    if pad_value != 0.0:
        raise ValueError(f"sequence_pool: pad_value={pad_value!r} is not in this runtime; leave it out")
    return add_value("pool", [input], {"by": pool_type.lower()})


sequence_first_step = define("sequence_first_step input", "the first item of each sequence",
                             lambda input: sequence_pool(input, "first"))  # fmt: skip
sequence_last_step = define("sequence_last_step input", "the last item of each sequence",
                            lambda input: sequence_pool(input, "last"))  # fmt: skip


def nce(
    input: Variable,
    label: Variable,
    num_total_classes: int,
    sample_weight: Variable | None = None,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    num_neg_samples: int | None = None,
    name: str | None = None,
    sampler: str = "uniform",
    custom_dist: Sequence[float] | None = None,
    seed: int = 0,
    is_sparse: bool = False,
) -> Variable:
    """Return the cost of telling the labels from classes drawn as noise, divided by 1 + num_neg_samples.

    There are 10 classes of noise for each sample by default. `sampler`: "uniform", "log_uniform", or
    "custom_dist" with the probability of each class. `seed` and `is_sparse` have no effect: noise comes from
    the runtime's seed, and the gradient is that of the whole weight.
    """
    own = name or make_unique_name("nce")
    samples = 10 if num_neg_samples is None else num_neg_samples
    if sampler not in ("uniform", "log_uniform", "custom_dist"):
        raise ValueError(f"{own}: sampler={sampler!r}, expected uniform, log_uniform or custom_dist")
    if (sampler == "custom_dist") != (custom_dist is not None):
        raise ValueError(f"{own}: sampler={sampler!r} and custom_dist={custom_dist!r} do not fit")
    noise = sampler if custom_dist is None else tuple(map(float, custom_dist))
    attrs = {"classes": num_total_classes, "noise": noise, "samples": samples}
    inputs = [input, label] if sample_weight is None else [input, label, sample_weight]
    return _add_layer("nce", inputs, attrs, own, [param_attr], bias_attr) / (samples + 1)
