"""`nn.functional` of static mode: activations and costs."""

from __future__ import annotations

import math
from typing import Any, Literal

from ...engine.param_config import ParamConfig
from ..program import tensor
from ..program.program import Variable, add_value
from ..program.tensor import define

__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cosine_similarity", "cross_entropy",
    "dropout", "elu", "embedding", "gelu", "hsigmoid_loss", "kl_div", "l1_loss", "label_smooth",
    "leaky_relu", "linear", "log_loss", "log_sigmoid", "log_softmax", "mish", "mse_loss", "normalize",
    "one_hot", "prelu", "relu", "relu6", "sigmoid", "silu", "smooth_l1_loss", "softmax",
    "softmax_with_cross_entropy", "softplus", "square_error_cost", "swish", "tanh",
]  # fmt: skip

Reduction = Literal["mean", "sum", "none"]


relu = define("relu x", "max(x, 0)")
sigmoid = define("sigmoid x", "1 / (1 + exp(-x))")
tanh = tensor.tanh


def _drop(x: Variable, p: float, axis: None, training: bool, mode: str) -> Variable:
    if axis is not None:
        raise ValueError(f"dropout: axis={axis!r} is not in this runtime")
    if mode not in ("upscale_in_train", "downscale_in_infer"):
        raise ValueError(f"dropout: mode={mode!r}, expected upscale_in_train or downscale_in_infer")
    if not training or p == 0.0:
        return x
    return add_value("dropout", [x], {"rate": p, "upscales": mode == "upscale_in_train"})


def _normalize(x: Variable, p: float, axis: int, epsilon: float) -> Variable:
    if p != 2:
        raise ValueError(f"normalize: p={p!r} is not in this runtime, expected 2")
    squares = tensor.sum(x * x, axis, keepdim=True)
    return x / tensor.sqrt(tensor.clip(squares, min=epsilon * epsilon))


def _find_cosine(x1: Variable, x2: Variable, axis: int, eps: float) -> Variable:
    squares = tensor.sum(x1 * x1, axis) * tensor.sum(x2 * x2, axis)
    return tensor.sum(x1 * x2, axis) / tensor.sqrt(tensor.clip(squares, min=eps * eps))


def _find_log_softmax(x: Variable, axis: int, dtype: object = None) -> Variable:
    low = x - tensor.max(x, axis, keepdim=True)
    return low - tensor.log(tensor.sum(tensor.exp(low), axis, keepdim=True))


def _find_softmax(x: Variable, axis: int, dtype: object) -> Variable:
    is_last = axis in (-1, len(x.shape) - 1)
    return add_value("softmax", [x]) if is_last else tensor.exp(_find_log_softmax(x, axis))


def _find_softplus(x: Variable, beta: float, threshold: float) -> Variable:
    least = tensor.clip(x * -beta, min=-threshold)  # the logarithm of 0 would have no gradient
    return tensor.where(x * beta > threshold, x, tensor.log(sigmoid(least)) * (-1 / beta))


def _find_gelu(x: Variable, approximate: bool) -> Variable:
    if approximate:
        return x * 0.5 * (tanh((x + x**3 * 0.044715) * math.sqrt(2 / math.pi)) + 1)
    return x * 0.5 * (tensor.erf(x * math.sqrt(0.5)) + 1)


def _find_huber(d: Variable, delta: float) -> Variable:
    return tensor.where(d < delta, d * d * 0.5, d * delta - 0.5 * delta * delta)


def _find_logit_cost(
    logit: Variable, label: Variable, weight: Variable | None, reduction: str, pos_weight: Variable | None
) -> Variable:
    cost = add_value("sigmoid_cross_entropy", [logit, label])
    cost = cost if pos_weight is None else cost * (label * (pos_weight - 1.0) + 1.0)
    return _reduce(cost, reduction, weight)


def _find_divergence(input: Variable, label: Variable, reduction: str) -> Variable:
    cost = label * (tensor.log(tensor.clip(label, min=1e-38)) - input)  # 0 for labels of 0
    is_batch = reduction == "batchmean"
    total = _reduce(cost, "sum" if is_batch else reduction)
    return total / tensor.cast(tensor.shape(input)[0], "float32") if is_batch else total


def _find_hard_cost(op: str, x: Variable, label: Variable, weight: Any, ignored: int) -> tuple[Variable, Any]:
    """Return the cost of each row with a class as its label, and the weight of each, None: 1."""
    counts = None
    if weight is not None or ignored != -100:
        label = label if len(label.shape) == len(x.shape) else tensor.unsqueeze(label, -1)
        counts = tensor.cast(tensor.not_equal(label, ignored), "float32")
        label = tensor.where(tensor.equal(label, ignored), 0, label)
    if weight is not None:
        counts = tensor.gather(weight, label) * counts
    cost = add_value(op, [x, label])
    return (cost, None) if counts is None else (cost * counts, counts)


def _find_cross_entropy(input: Variable, label: Variable, reduction: Reduction, **given: Any) -> Variable:
    where, smooth, classes = "cross_entropy", given["label_smoothing"], input.shape[-1]
    if given["axis"] not in (-1, len(input.shape) - 1):
        only = f"only the last axis of {input.name} {list(input.shape)} is possible here"
        raise ValueError(f"{where}: axis={given['axis']}: {only}")
    if not given["soft_label"] and not smooth:
        op = "softmax_with_cross_entropy" if given["use_softmax"] else where
        cost, counts = _find_hard_cost(op, input, label, given["weight"], given["ignore_index"])
        if counts is None or reduction != "mean":
            return _reduce(cost, reduction)
        total = tensor.sum(counts)
        return tensor.sum(cost) / (total + tensor.cast(tensor.equal(total, 0.0), "float32"))
    if given["weight"] is not None or given["ignore_index"] != -100:
        raise ValueError(f"{where}: weight and ignore_index are of labels that are classes; leave them out")
    if not given["soft_label"]:
        single = len(label.shape) == len(input.shape)
        label = one_hot(tensor.squeeze(label, -1) if single else label, classes)
    logs = log_softmax(input) if given["use_softmax"] else tensor.log(input)
    soft = label_smooth(label, epsilon=smooth) if smooth else label
    return _reduce(-tensor.sum(soft * logs, -1, keepdim=True), reduction)


def _find_tree_cost(input: Variable, label: Variable, num_classes: int, **given: Any) -> Variable:
    weight, bias, *path = (given[name] for name in ("weight", "bias", "path_table", "path_code"))
    params = [_get_parameter(one, "hsigmoid_loss") for one in (weight, bias) if one is not None]
    inputs = [input, label, *(one for one in path if one is not None)]
    return add_value("hsigmoid", inputs, {"classes": num_classes}, params)


# fmt: off
softmax = define("softmax x | axis=-1 dtype", "exp(x) divided by its sum over `axis`", _find_softmax)
log_softmax = define("log_softmax x | axis=-1 dtype", "the logarithm of softmax(x)", _find_log_softmax)
elu = define("elu x | alpha=1.0", "x above 0, else alpha * (exp(x) - 1)",
             lambda x, alpha: tensor.where(x > 0.0, x, (tensor.exp(tensor.clip(x, max=0.0)) - 1) * alpha))
gelu = define("gelu x | approximate=False", "x times the normal distribution's share below x", _find_gelu)
leaky_relu = define("leaky_relu x | negative_slope=0.01", "x above 0, else negative_slope * x",
                    lambda x, negative_slope: tensor.where(x > 0.0, x, x * negative_slope))
prelu = define("prelu x weight", "x above 0, else x times the weight",
               lambda x, weight: tensor.where(x > 0.0, x, x * weight))
relu6 = define("relu6 x", "min(max(x, 0), 6)", lambda x: tensor.clip(x, 0.0, 6.0))
softplus = define("softplus x | beta=1.0 threshold=20.0",
                  "log(1 + exp(beta * x)) / beta, and x where beta * x is above the threshold",
                  _find_softplus)
log_sigmoid = define("log_sigmoid x", "log(sigmoid(x))", lambda x: -softplus(-x))
silu = define("silu x", "x * sigmoid(x)", lambda x: x * sigmoid(x))
swish = define("swish x", "x * sigmoid(x)", lambda x: x * sigmoid(x))
mish = define("mish x", "x * tanh(softplus(x))", lambda x: x * tanh(softplus(x)))
one_hot = define("one_hot x num_classes", "a row of float32 for each id, 1 at its place and else 0",
                 lambda x, num_classes: add_value("one_hot", [x], {"num_classes": num_classes}))
label_smooth = define("label_smooth label | epsilon=0.1",
                      "the shares of classes, by epsilon nearer to equal ones",
                      lambda label, epsilon: label * (1 - epsilon) + epsilon / label.shape[-1])
square_error_cost = define("square_error_cost input label", "(input - label) ** 2, item by item",
                           lambda input, label: tensor.square(input - label))
mse_loss = define("mse_loss input label | reduction='mean'", "(input - label) ** 2, reduced",
                  lambda input, label, reduction: _reduce(tensor.square(input - label), reduction))
l1_loss = define("l1_loss input label | reduction='mean'", "abs(input - label), reduced",
                 lambda input, label, reduction: _reduce(tensor.abs(input - label), reduction))
smooth_l1_loss = define("smooth_l1_loss input label | reduction='mean' delta=1.0",
                        "d * d / 2 of d = abs(input - label), above delta delta * (d - delta / 2)",
                        lambda input, label, reduction, delta: _reduce(
                            _find_huber(tensor.abs(input - label), delta), reduction))
kl_div = define("kl_div input label | reduction='mean'",
                "label * (log(label) - input), reduced; batchmean: the sum divided by the samples",
                _find_divergence)
binary_cross_entropy = define("binary_cross_entropy input label | weight reduction='mean'",
                              "-y log(p) - (1 - y) log(1 - p) for p=`input`, y=`label`, at most 100, reduced",
                              lambda input, label, weight, reduction: _reduce(
                                  add_value("binary_cross_entropy", [input, label]), reduction, weight))
binary_cross_entropy_with_logits = define("binary_cross_entropy_with_logits logit label | weight "
                                          "reduction='mean' pos_weight",
                                          "binary_cross_entropy of sigmoid(logit), exact for large scores",
                                          _find_logit_cost)
cross_entropy = define("cross_entropy input label | weight ignore_index=-100 reduction='mean' "
                       "soft_label=False axis=-1 use_softmax=True label_smoothing=0.0",
                       "-log(probability of the label), reduced; without use_softmax from probabilities",
                       _find_cross_entropy)
log_loss = define("log_loss input label | epsilon=1e-4",
                  "the cost of probabilities, -y log(p + epsilon) - (1 - y) log(1 - p + epsilon)")
normalize = define("normalize x | p=2.0 axis=1 epsilon=1e-12",
                   "x divided by its length over `axis`, at least epsilon", _normalize)
dropout = define("dropout x | p=0.5 axis training=True mode='upscale_in_train'",
                 "zeros for a share p of the values in a training step", _drop)
embedding = define("embedding x weight | padding_idx sparse=False",
                   "the row of each id in a parameter; `sparse` has no effect",
                   lambda x, weight, padding_idx, sparse: tensor.look_up(
                       x, _get_parameter(weight, "embedding"), padding_idx, "embedding"))
cosine_similarity = define("cosine_similarity x1 x2 | axis=1 eps=1e-8",
                           "the cosine of the angle between vectors along `axis`", _find_cosine)
hsigmoid_loss = define("hsigmoid_loss input label num_classes weight | bias path_table path_code "
                       "is_sparse=False",
                       "the cost of finding the label in a binary tree of all classes, for each sample. "
                       "`weight` and `bias` are parameters, with num_classes - 1 rows. A tree of the "
                       "program's own has a row for each inner node; `path_table` then has the nodes from "
                       "the root to each label, -1 behind the last one, and `path_code` the turns. "
                       "`is_sparse` has no effect: the gradient is that of the whole weight", _find_tree_cost)
# fmt: on


def softmax_with_cross_entropy(
    logits: Variable,
    label: Variable,
    soft_label: bool = False,
    ignore_index: int = -100,
    numeric_stable_mode: bool = True,
    return_softmax: bool = False,
    axis: int = -1,
) -> Variable | tuple[Variable, Variable]:
    """Return cross_entropy of scores without reduction, and their softmax if asked for."""
    cost = cross_entropy(logits, label, None, ignore_index, "none", soft_label, axis)
    return (cost, softmax(logits)) if return_softmax else cost


def linear(x: Variable, weight: Variable, bias: Variable | None = None, name: str | None = None) -> Variable:
    """Return x W + b, with parameters as create_parameter makes them."""
    out = tensor.matmul(x, weight)
    return out if bias is None else out + bias


def _get_parameter(given: object, where: str) -> ParamConfig:
    if isinstance(given, ParamConfig):
        return given
    if isinstance(given, Variable) and given.op == "parameter":
        return given.params[0]
    raise TypeError(f"{where}: {given!r} is not a parameter, as create_parameter makes")


def _reduce(cost: Variable, reduction: str, weight: Variable | None = None) -> Variable:
    cost = cost if weight is None else cost * weight
    if reduction == "none":
        return cost
    if reduction not in ("mean", "sum"):
        raise ValueError(f"{cost.name}: reduction={reduction!r}, expected mean, sum or none")
    return tensor.mean(cost) if reduction == "mean" else tensor.sum(cost)
