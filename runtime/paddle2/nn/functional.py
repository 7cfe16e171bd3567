"""`nn.functional` of static mode: activations and costs."""

from __future__ import annotations

from typing import Literal

from ...engine.param_config import ParamConfig
from ..program import tensor
from ..program.functions import define
from ..program.program import Variable, add_value, combine

__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cosine_similarity", "cross_entropy",
    "dropout", "hsigmoid_loss", "log_loss", "mse_loss", "normalize", "relu", "sigmoid", "softmax",
    "softmax_with_cross_entropy", "square_error_cost", "tanh",
]  # fmt: skip

Reduction = Literal["mean", "sum", "none"]


relu = define("relu x", "max(x, 0)")
sigmoid = define("sigmoid x", "1 / (1 + exp(-x))")
tanh = tensor.tanh


def _normalize(x: Variable, p: float, axis: int, epsilon: float) -> Variable:
    if p != 2:
        raise ValueError(f"normalize: p={p!r} is not in this runtime, expected 2")
    squares = tensor.sum(x * x, axis, keepdim=True)
    return x / tensor.sqrt(tensor.clip(squares, min=epsilon * epsilon))


def _find_cosine(x1: Variable, x2: Variable, axis: int, eps: float) -> Variable:
    squares = tensor.sum(x1 * x1, axis) * tensor.sum(x2 * x2, axis)
    return tensor.sum(x1 * x2, axis) / tensor.sqrt(tensor.clip(squares, min=eps * eps))


log_loss = define("log_loss input label",
                  "the cost of probabilities, -y log(p + epsilon) - (1 - y) log(1 - p + epsilon)",
                  epsilon=1e-4)  # fmt: skip
normalize = define("normalize x", "x divided by its length over `axis`, at least epsilon", _normalize,
                   p=2.0, axis=1, epsilon=1e-12)  # fmt: skip
cosine_similarity = define("cosine_similarity x1 x2", "the cosine of the angle between vectors along `axis`",
                           _find_cosine, axis=1, eps=1e-8)  # fmt: skip


def softmax(x: Variable, axis: int = -1, dtype: object = None, name: str | None = None) -> Variable:
    """Return exp(x) divided by its sum over the last axis."""
    _check_last(axis, x, "softmax")
    return add_value("softmax", [x])


def dropout(
    x: Variable,
    p: float = 0.5,
    axis: None = None,
    training: bool = True,
    mode: str = "upscale_in_train",
    name: str | None = None,
) -> Variable:
    """Return zeros for a share p of the values in a training step."""
    if axis is not None:
        raise ValueError(f"dropout: axis={axis!r} is not in this runtime")
    if mode not in ("upscale_in_train", "downscale_in_infer"):
        raise ValueError(f"dropout: mode={mode!r}, expected upscale_in_train or downscale_in_infer")
    if not training or p == 0.0:
        return x
    return add_value("dropout", [x], {"rate": float(p), "upscales": mode == "upscale_in_train"})


def binary_cross_entropy(
    input: Variable,
    label: Variable,
    weight: None = None,
    reduction: Reduction = "mean",
    name: str | None = None,
) -> Variable:
    """Return -y log(p) - (1 - y) log(1 - p), for p=`input` and y=`label`, reduced; no part is above 100."""
    where = "binary_cross_entropy"
    _refuse(where, weight=weight)
    return _reduce(add_value(where, [input, label]), reduction, where)


def binary_cross_entropy_with_logits(
    logit: Variable,
    label: Variable,
    weight: None = None,
    reduction: Reduction = "mean",
    pos_weight: None = None,
    name: str | None = None,
) -> Variable:
    """Return binary_cross_entropy of sigmoid(logit), reduced; exact for large scores."""
    where = "binary_cross_entropy_with_logits"
    _refuse(where, weight=weight, pos_weight=pos_weight)
    return _reduce(add_value("sigmoid_cross_entropy", [logit, label]), reduction, where)


def square_error_cost(input: Variable, label: Variable) -> Variable:
    """Return (input - label) ** 2, item by item."""
    return tensor.square(combine("subtract", input, label))


def mse_loss(
    input: Variable, label: Variable, reduction: Reduction = "mean", name: str | None = None
) -> Variable:
    """Return square_error_cost, reduced."""
    return _reduce(square_error_cost(input, label), reduction, "mse_loss")


def softmax_with_cross_entropy(
    logits: Variable,
    label: Variable,
    soft_label: bool = False,
    ignore_index: int = -100,
    numeric_stable_mode: bool = True,
    return_softmax: bool = False,
    axis: int = -1,
) -> Variable | tuple[Variable, Variable]:
    """Return -log(probability of the label), from scores; `label` is a class for each row."""
    _refuse("softmax_with_cross_entropy", soft_label=soft_label, ignore_index=ignore_index + 100)
    _check_last(axis, logits, "softmax_with_cross_entropy")
    cost = add_value("softmax_with_cross_entropy", [logits, label])
    return (cost, softmax(logits)) if return_softmax else cost


def cross_entropy(
    input: Variable,
    label: Variable,
    weight: None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    soft_label: bool = False,
    axis: int = -1,
    use_softmax: bool = True,
    label_smoothing: float = 0.0,
    name: str | None = None,
) -> Variable:
    """Return -log(probability of the label), reduced; without `use_softmax` from probabilities."""
    where = "cross_entropy"
    _refuse(
        where,
        weight=weight,
        ignore_index=ignore_index + 100,
        soft_label=soft_label,
        label_smoothing=label_smoothing,
    )
    _check_last(axis, input, where)
    op = "softmax_with_cross_entropy" if use_softmax else "cross_entropy"
    return _reduce(add_value(op, [input, label]), reduction, where)


def hsigmoid_loss(
    input: Variable,
    label: Variable,
    num_classes: int,
    weight: Variable | ParamConfig,
    bias: Variable | ParamConfig | None = None,
    path_table: Variable | None = None,
    path_code: Variable | None = None,
    is_sparse: bool = False,
    name: str | None = None,
) -> Variable:
    """Return the cost of finding the label in a binary tree of all classes, for each sample.

    `weight` and `bias` are parameters, with num_classes - 1 rows. A tree of the program's own has a row for
    each inner node; `path_table` then has the nodes from the root to each label, -1 behind the last one, and
    `path_code` the turns. `is_sparse` has no effect: the gradient is that of the whole weight.
    """
    params = [_get_parameter(one, name or "hsigmoid_loss") for one in (weight, bias) if one is not None]
    path = [one for one in (path_table, path_code) if one is not None]
    return add_value("hsigmoid", [input, label, *path], {"classes": num_classes}, params)


def _get_parameter(given: object, where: str) -> ParamConfig:
    if isinstance(given, ParamConfig):
        return given
    if isinstance(given, Variable) and given.op == "parameter":
        return given.params[0]
    raise TypeError(f"{where}: {given!r} is not a parameter, as create_parameter makes")


def _reduce(cost: Variable, reduction: str, where: str) -> Variable:
    if reduction == "none":
        return cost
    if reduction not in ("mean", "sum"):
        raise ValueError(f"{where}: reduction={reduction!r}, expected mean, sum or none")
    return tensor.mean(cost) if reduction == "mean" else tensor.sum(cost)


def _check_last(axis: int, x: Variable, where: str) -> None:
    if axis not in (-1, len(x.shape) - 1):
        raise ValueError(
            f"{where}: axis={axis}: only the last axis of {x.name} {list(x.shape)} is possible here"
        )


def _refuse(where: str, **options: object) -> None:
    for name, value in options.items():
        if isinstance(value, Variable) or value:
            raise ValueError(f"{where}: {name} is not in this runtime; leave it out")
