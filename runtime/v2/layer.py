"""Layers by their v2 names: they describe a network as values of a program.

A layer function returns a `Layer`, the input of other layers. Parameters with the same name are shared.
"""

from __future__ import annotations

from ..engine.attr import ExtraLayerAttribute
from ..engine.graph import BATCH, Value
from ..engine.param_config import ANY_ID
from . import building
from .building import Layer, Stage, check_vectors, define, make_layer
from .data_type import InputType
from .pooling import Max, get_pooling_name

__all__ = [
    "Layer", "addto", "classification_cost", "concat", "context_projection", "cos_sim",
    "cross_entropy_cost", "data", "dotmul_operator", "dotmul_projection", "dropout", "embedding", "fc",
    "first_seq", "full_matrix_projection", "grumemory", "hsigmoid", "identity_projection", "last_seq",
    "lstmemory", "mixed", "mse_cost", "multi_binary_label_cross_entropy_cost", "nce", "pooling",
    "rank_cost", "regression_cost", "scaling_projection", "square_error_cost", "table_projection",
    "trans_full_matrix_projection",
]  # fmt: skip


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


# fmt: off
embedding = define("embedding=embedding input size | name param_attr layer_attr", building.embed,
                   "the table row of each id: of [n] ids, or sequences of them, [n, size]")
pooling = define("pooling=seq_pooling input | pooling_type name layer_attr",
                 lambda of: building.pool(of, get_pooling_name(of.pooling_type or Max)),
                 "one vector for all items of a sequence; zeros without items. Max by default, as in v2")
first_seq = define("first_seq=first_seq input | name layer_attr", lambda of: building.pool(of, "first"),
                   "the first vector of each sequence; zeros without items")
last_seq = define("last_seq=last_seq input | name layer_attr", lambda of: building.pool(of, "last"),
                  "the last vector of each sequence; zeros without items")
lstmemory = define("lstmemory=lstmemory input | name size reverse=False act gate_act state_act bias_attr "
                   "param_attr layer_attr",
                   lambda of: building.recur(of, "lstm", 4, {"order": "gifo", "peeps": True}),
                   "the states of an LSTM over a sequence of vectors of 4 * size, with peepholes, as in v2. "
                   "The vectors are a product with a weight already: of layer.fc without activation and bias")
grumemory = define("grumemory=gru input | size name reverse=False act gate_act bias_attr param_attr "
                   "layer_attr", lambda of: building.recur(of, "v2_gru", 3, {}),
                   "the states of a GRU over a sequence of vectors of 3 * size, as of lstmemory")
concat = define("concat=concat input | act name layer_attr",
                lambda of: make_layer(of, check_vectors(of.input, of.where), Stage("concat", {"axis": 1})),
                "the vectors of each sample joined, one after the other", act="linear")
fc = define("fc=fc_layer input size | act name param_attr bias_attr layer_attr", building.multiply_inputs,
            "act(x W + b), summed over the inputs; Tanh by default, as in v2. bias_attr False: no b. Of a "
            "sparse vector the rows of W are looked up, which may be on pservers (sparse_update)",
            act="tanh")
cos_sim = define("cos_sim=cos_sim a b | scale=1 size=1 name layer_attr", building.compare,
                 "scale * (a . b) / (|a| |b|), of `a` and each of `size` equal parts of `b`, as in v2's "
                 "function/CosSimOp.cpp, which refuses a vector of zeros; here its cosine is 0")
addto = define("addto=addto input | act name bias_attr=False layer_attr", building.add_inputs,
               "act(the sum of the inputs + b); Linear and without b by default, as in v2", act="linear")
dropout = define("dropout=dropout input dropout_rate | name", lambda of: building.add_inputs(
    of, bias_attr=False, layer_attr=ExtraLayerAttribute(drop_rate=of.dropout_rate)),
                 "addto with attr.Extra(drop_rate=dropout_rate)")
mixed = define("mixed=mixed | size=0 input name act bias_attr=False layer_attr", building.Mixed,
               "act(the sum of projections + b); Linear and without b by default, as in v2. Projection i "
               "has the weight `_NAME.wi`. `size`: by default that of a projection. Without `input`, as in "
               "v2: with mixed(...) as m: m += projection", act="linear")
full_matrix_projection = define("full_matrix_projection input | size=0 param_attr",
                                lambda of: building.project(of, building.multiply), "x W, for layer.mixed")
trans_full_matrix_projection = define("trans_full_matrix_projection input | size=0 param_attr", lambda of:
    building.project(of, building.multiply_transposed, lambda *sizes: sizes[::-1]),
    "x W^T, for layer.mixed, as in v2's TransposedFullMatrixProjection.cpp")
table_projection = define("table_projection input | size=0 param_attr",
                          lambda of: building.project(of, building.look_up),
                          "the row of W for each id, for layer.mixed")
dotmul_projection = define("dotmul_projection input | param_attr",
                           lambda of: building.project(of, building.scale, lambda *own: (1, own[0])),
                           "x * w, item by item, for layer.mixed")
scaling_projection = define("scaling_projection input | param_attr",
                            lambda of: building.project(of, building.scale, lambda *_: (1, 1)),
                            "x * w for one number w, for layer.mixed, as in v2's ScalingProjection.cpp")
dotmul_operator = define("dotmul_operator a b | scale=1", building.multiply_both,
                         "scale * a * b, item by item, for layer.mixed, as in v2's DotMulOperator.cpp")
identity_projection = define("identity_projection input", building.pass_on, "x, for layer.mixed")
context_projection = define("context_projection input context_len | context_start padding_attr",
                            building.join_neighbors,
                            "for each item of a sequence `context_len` items side by side, for layer.mixed: "
                            "from the one `context_start` behind it, by default -(context_len - 1) // 2, as "
                            "in v2; zeros beyond the ends")
classification_cost = define("classification_cost=cost input label | name", building.classify,
                             "-log(probability of the label); `input` is a layer with Softmax. Events then "
                             "have the metric classification_error_evaluator, the share of wrong classes")
cross_entropy_cost = define("cross_entropy_cost=cross_entropy input label | name", building.take_log,
                            "classification_cost without the metric")
square_error_cost = define("square_error_cost=square_error_cost input label | name", building.square,
                           "the sum of squared differences of `input` and the vector `label`, not halved, as "
                           "in v2")
mse_cost = regression_cost = square_error_cost
multi_binary_label_cross_entropy_cost = define(
    "multi_binary_label_cross_entropy_cost=multi_binary_label_cross_entropy input label | name",
    building.cross_binary,
    "the sum of -y log(p) - (1 - y) log(1 - p) over all numbers p of `input`, with y of 0 or 1, as in v2's "
    "CostLayer.cpp. `label` is a dense_vector or sparse_binary_vector, or an integer_value: the only 1",
)
rank_cost = define("rank_cost=rank_cost left right label | weight name", building.rank,
                   "log(1 + exp(o)) - label * o for o = left - right, as in v2's CostLayer.cpp. `label`: 1 "
                   "where `left` is above, else 0, 0.5 for equal ones; dense_vector(1) or integer_value(2). "
                   "`weight`, a dense_vector(1), multiplies the cost of each sample")
hsigmoid = define("hsigmoid=hsigmoid input label | num_classes name bias_attr param_attr layer_attr",
                  lambda of: building.sample_classes(of, "hsigmoid", {}),
                  "the cost of finding the label in a binary tree of all classes, at most log2(num_classes) "
                  "turns. `num_classes` is that of the label's type by default")
nce = define("nce=nce_layer input label | num_classes act param_attr weight num_neg_samples=10 "
             "neg_distribution name bias_attr layer_attr", building.tell_from_noise,
             "the cost of telling the label from `num_neg_samples` classes drawn as noise with "
             "probabilities `neg_distribution`, by default equal ones. `weight`, a dense_vector(1), "
             "multiplies each cost")
# fmt: on
