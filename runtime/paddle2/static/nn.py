"""Layers of static mode: `static.nn`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...engine.entry import ANY, EntryAttr
from ...engine.ops import find_params
from ...v2.building import define
from ..nn.layers import Embedding
from ..nn.weight_layers import BatchNorm1D, LayerNorm
from ..program.param_attr import Attr, make_param
from ..program.program import Variable, add_value, make_unique_name, parse_dtype

__all__ = [
    "batch_norm", "cross", "embedding", "fc", "layer_norm", "nce", "sequence_first_step",
    "sequence_last_step", "sequence_pool", "sparse_embedding",
]  # fmt: skip

ACTIVATIONS = ("relu", "sigmoid", "softmax", "tanh")


def _connect(of: Any) -> Variable:
    inputs = [of.x] if isinstance(of.x, Variable) else list(of.x)
    weight_attrs = of.weight_attr if isinstance(of.weight_attr, list) else [of.weight_attr] * len(inputs)
    own = of.name or make_unique_name("fc")
    if len(weight_attrs) != len(inputs):
        raise ValueError(f"{own}: {len(weight_attrs)} weight_attr for {len(inputs)} inputs")
    keeps = of.num_flatten_dims % len(inputs[0].shape)
    out = _add_layer(of, "fc", own, inputs, weight_attrs, keeps=keeps, size=of.size)
    return _activate(out, of.activation, own)


def _activate(x: Variable, activation: str | None, own: str) -> Variable:
    if activation not in (None, *ACTIVATIONS):
        raise ValueError(
            f"{own}: activation={activation!r}, expected None or one of {', '.join(ACTIVATIONS)}"
        )
    return x if activation is None else add_value(activation, [x])


def _add_layer(
    of: Any, op: str, own: str, inputs: Sequence[Variable], weight_attrs: Sequence[Attr], **attrs: Any
) -> Variable:
    """Add an operation with new parameters: the weights, and a bias unless its attribute is False."""
    *weights, bias = find_params(op, inputs, attrs, own)
    params = [
        make_param(attr, f"{own}.w_{i}", shape, is_bias=False)
        for i, (attr, shape) in enumerate(zip(weight_attrs, weights, strict=True))
    ]
    if of.bias_attr is not False:
        params.append(make_param(of.bias_attr, f"{own}.b_0", bias, is_bias=True))
    return add_value(op, inputs, attrs, params, name=f"{own}.tmp_0")


def _embed(of: Any, *, sparse: bool, entry: EntryAttr = ANY) -> Variable:
    """Return nn.Embedding of a new layer."""
    if len(of.size) != 2:
        raise ValueError(f"embedding: size={of.size!r}, expected the number of ids and the size of a row")
    if parse_dtype(of.dtype, "embedding") != "float":
        raise ValueError(f"embedding: dtype={of.dtype!r}, expected float32")
    rows, dim = of.size
    out: Variable = Embedding(rows, dim, of.padding_idx, sparse, of.param_attr, entry=entry)(of.input)
    return out


def _embed_by_entry(of: Any) -> Variable:
    if of.slot is not None:
        raise ValueError(f"sparse_embedding: slot={of.slot!r} is not in this runtime; leave it out")
    if not isinstance(of.entry, EntryAttr | None):
        raise TypeError(
            f"sparse_embedding: entry={of.entry!r}, expected an entry rule, as CountFilterEntry(10)"
        )
    return _embed(of, sparse=True, entry=of.entry or ANY)


def _normalize_batch(of: Any) -> Variable:
    size = of.input.shape[-1 if of.data_layout.endswith("C") else 1]
    names = of.moving_mean_name, of.moving_variance_name
    options = of.data_layout, of.use_global_stats or of.is_test, of.name or "batch_norm"
    layer = BatchNorm1D(size, of.momentum, of.epsilon, of.param_attr, of.bias_attr, *options, names=names)
    return _activate(layer(of.input), of.act, layer.full_name())


def _normalize_samples(of: Any) -> Variable:
    scale: Attr = of.param_attr if of.scale else False
    shift: Attr = of.bias_attr if of.shift else False
    layer = LayerNorm(of.input.shape[of.begin_norm_axis :], of.epsilon, scale, shift, of.name)
    return _activate(layer(of.input), of.act, layer.full_name())


def _pool(of: Any, by: str) -> Variable:
    return add_value("pool", [of.input], {"by": by})


def _pool_by_type(of: Any) -> Variable:
    if of.pad_value != 0.0:
        raise ValueError(f"sequence_pool: pad_value={of.pad_value!r} is not in this runtime; leave it out")
    return _pool(of, of.pool_type.lower())


def _tell_from_noise(of: Any) -> Variable:
    own, shares = of.name or make_unique_name("nce"), of.custom_dist
    samples = 10 if of.num_neg_samples is None else of.num_neg_samples
    if of.sampler not in ("uniform", "log_uniform", "custom_dist"):
        raise ValueError(f"{own}: sampler={of.sampler!r}, expected uniform, log_uniform or custom_dist")
    if (of.sampler == "custom_dist") != (shares is not None):
        raise ValueError(f"{own}: sampler={of.sampler!r} and custom_dist={shares!r} do not fit")
    noise = of.sampler if shares is None else tuple(map(float, shares))
    attrs = {"classes": of.num_total_classes, "noise": noise, "samples": samples}
    inputs = [of.input, of.label, *([] if of.sample_weight is None else [of.sample_weight])]
    return _add_layer(of, "nce", own, inputs, [of.param_attr], **attrs) / (samples + 1)


# fmt: off
fc = define("static.nn.fc x size | num_flatten_dims=1 weight_attr bias_attr activation name", _connect,
            "activation(x W + b), summed over the inputs; bias_attr False: no b. The axes of x from "
            "`num_flatten_dims` on are taken as one")
embedding = define("static.nn.embedding input size | is_sparse=False is_distributed=False padding_idx "
                   "param_attr dtype='float32'", lambda of: _embed(of, sparse=of.is_sparse),
                   "the table row of each id: [..., k] ids to [..., k, size[1]]; ids are below size[0], "
                   "None: any. `is_sparse`: only the rows of a batch are fetched and updated, and with "
                   "servers only these have the table. `is_distributed` has no effect: such tables always "
                   "are. The row of the id `padding_idx` is 0")
sparse_embedding = define("static.nn.sparse_embedding input size | padding_idx is_test=False entry "
                          "table_class='MemorySparseTable' param_attr dtype='float32' slot", _embed_by_entry,
                          "embedding(is_sparse=True); `entry` is a rule of `distributed`, as "
                          "CountFilterEntry(10). `is_test` and `table_class` have no effect; ids are below "
                          "size[0], None: any")
batch_norm = define("static.nn.batch_norm input | act is_test=False momentum=0.9 epsilon=1e-5 param_attr "
                    "bias_attr data_layout='NCHW' in_place=False name moving_mean_name moving_variance_name "
                    "do_model_average_for_mean_and_var=True use_global_stats=False", _normalize_batch,
                    "activation(nn.BatchNorm1D) of a new layer; `is_test`: by the running statistics. "
                    "`in_place` and `do_model_average_for_mean_and_var` have no effect")
layer_norm = define("static.nn.layer_norm input | scale=True shift=True begin_norm_axis=1 epsilon=1e-5 "
                    "param_attr bias_attr act name", _normalize_samples,
                    "activation(nn.LayerNorm) of a new layer, over the axes from `begin_norm_axis` on")
cross = define("static.nn.cross input | salt=''", lambda of: add_value(
    "cross", [of.input] if isinstance(of.input, Variable) else list(of.input), {"salt": of.salt}),
               "one int64 id for the ids of several slots, for a table with size=[None, dim]; ours. Of one "
               "slot too: with another `salt` its ids have other rows in the same table. Slots have one "
               "shape")
sequence_pool = define("static.nn.sequence_pool input pool_type | is_test=False pad_value=0.0", _pool_by_type,
                       "one item for each sample, from its sequence: average, sum, sqrt, max, last or first. "
                       "sqrt: the sum divided by the square root of the number of items. A sequence without "
                       "items gives zeros. `is_test` has no effect")
sequence_first_step = define("static.nn.sequence_first_step input | name", lambda of: _pool(of, "first"),
                             "the first item of each sequence")
sequence_last_step = define("static.nn.sequence_last_step input | name", lambda of: _pool(of, "last"),
                            "the last item of each sequence")
nce = define("static.nn.nce input label num_total_classes | sample_weight param_attr bias_attr "
             "num_neg_samples name sampler='uniform' custom_dist seed=0 is_sparse=False", _tell_from_noise,
             "the cost of telling the labels from classes drawn as noise, divided by 1 + num_neg_samples. "
             "There are 10 classes of noise for each sample by default. `sampler`: 'uniform', 'log_uniform', "
             "or 'custom_dist' with the probability of each class. `seed` and `is_sparse` have no effect: "
             "noise comes from the runtime's seed, and the gradient is that of the whole weight")
# fmt: on
