"""Evaluators by their v2 names: metrics of events, beside a cost that has the same label.

Their names in `metrics` are v2's: `name`, by default `__auc_evaluator_0__` and so on. With `weight`, a number
for each sample, each counts as so many, as in v2's Evaluator.cpp; not where that is NaN or infinite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..engine.graph import Value
from ..engine.ops.base import Array
from ..engine.ops.metric import AucCounts, find_buckets
from .building import Layer, Measure, Stage, chain, check_vectors, define, find_share

__all__ = ["auc", "classification_error", "precision_recall"]

BUCKETS = 2**14  # of probabilities, for an area; v2 has 2**24


def _show_errors(of: Any) -> None:
    def count(_: object, weights: Array, classes: Array) -> Array:
        right = (classes[:, :-1] == classes[:, -1:]).any(axis=1)
        return np.cumsum(np.bincount(right, weights, 2))  # of wrong ones, and of all

    _show(of, count, find_share, _join_classes(of, of.top_k, of.threshold))


def _show_area(of: Any) -> None:
    (x,) = check_vectors(of.input, of.where)

    def count(_: object, weights: Array, found: Array, labels: Array) -> Array:
        known = ~np.isnan(found[:, -1])  # NaN counts nowhere: its gradient is reported
        places = find_buckets(found[known, -1], labels[known, 0], BUCKETS - 1, x.value)
        return np.bincount(places, weights[known], 2 * BUCKETS).reshape(2, BUCKETS)

    label = _find_classes(f"{of.name}.label", of.label, 1, 0.0)
    _show(of, count, AucCounts.measure, x.value, label)


def _show_scores(of: Any) -> None:
    classes, label = max(2, of.input.size), of.positive_label
    if label is not None and not 0 <= label < classes:
        raise ValueError(f"{of.where}: positive_label={label}, expected 0 to {classes - 1}")

    def count(_: object, weights: Array, pairs: Array) -> Array:
        (found, labels), right = pairs.T, pairs[:, 0] == pairs[:, 1]
        parts = (found, right), (found, ~right), (labels, ~right)
        return np.stack([np.bincount(one[some], weights[some], classes) for one, some in parts])

    def measure(sums: Array) -> Mapping[str, float]:
        sums = np.column_stack([sums, sums.sum(axis=1)])  # micro-averages are of the last ones
        shares = [np.where(n > 0, sums[0], 1.0) / np.where(n > 0, n, 1.0) for n in sums[0] + sums[1:]]
        if label is not None:
            return _name_scores(".", *(float(one[label]) for one in shares))
        macro = _name_scores(".macro-average-", *(float(one[:-1].mean()) for one in shares))
        return macro | {".micro-average-precision": float(shares[0][-1])}

    _show(of, count, measure, _join_classes(of, 1, 0.5))


def _show(of: Any, count: Callable[..., Array], measure: Callable[..., Any], *values: Value) -> None:
    """Add a measure: count(step, the samples' weights, *arrays of `values`) gives the sums of a batch."""
    ones = Stage("full", {"shape": (0, 1), "to": "float", "value": 1.0})
    weight = chain(f"{of.name}.weight", values[:1], ones)
    if of.weight is not None:
        weight = check_vectors(of.weight, of.where)[0].value
    if weight.shape[1:] != (1,):
        raise ValueError(f"{of.where}: weight {weight.name} has {weight.size} numbers a sample, expected one")

    def weigh(step: object, weights: Array, *arrays: Array) -> Array:
        if (weights < 0).any():
            raise ValueError(f"{of.where}: weight {weight.name} has {weights.min()}, expected 0 or more")
        known = np.isfinite(weights[:, 0])
        return count(step, weights[known, 0], *(one[known] for one in arrays))

    of.input.measures.append(Measure(of.name, (weight, *values), of.label.value, weigh, measure))


def _name_scores(before: str, precision: float, recall: float) -> dict[str, float]:
    score = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return {f"{before}precision": precision, f"{before}recall": recall, f"{before}F1-score": score}


def _join_classes(of: Any, top_k: int, threshold: float) -> Value:
    """Return classes of each sample: the `top_k` that were found, and the right one behind them."""
    if max(2, of.input.size) != max(2, of.label.size):
        raise ValueError(f"{of.where}: input has {of.input.size} classes, label {of.label.size}")
    found = _find_classes(f"{of.name}.found", of.input, top_k, threshold)
    right = _find_classes(f"{of.name}.label", of.label, 1, threshold)
    return chain(of.name, [found, right], Stage("concat", {"axis": 1}))


def _find_classes(name: str, of: Layer, top_k: int, threshold: float) -> Value:
    if of.type is not None and of.type.kind == "integer":
        return chain(name, [of.value], Stage("reshape", {"shape": [0, 1]}))
    (one,) = check_vectors(of, f"evaluator {name}")
    if one.size > 1:
        return chain(name, [one.value], Stage("order", {"axis": 1, "k": top_k, "largest": True}))
    least = chain(f"{name}.least", [], Stage("full", {"shape": (), "to": "float", "value": threshold}))
    return chain(name, [one.value], Stage("greater_than", more=(least,)))


classification_error = define("evaluator.classification_error=classification_error_evaluator input label | "
                              "name weight top_k=1 threshold=0.5", _show_errors,
                              "None; events show the share of samples whose label is not among the classes "
                              "of the `top_k` highest of `input`. An input or a label that is one number is "
                              "class 1 above `threshold`, else 0")  # fmt: skip
auc = define("evaluator.auc=auc_evaluator input label | name weight", _show_area,
             "None; events show the area under the ROC curve of the last number of `input`, a probability; "
             "label 0 is below")  # fmt: skip
precision_recall = define(
    "evaluator.precision_recall=precision_recall_evaluator input label | positive_label weight name",
    _show_scores,
    "None; events show NAME.precision, NAME.recall and NAME.F1-score of the class `positive_label`. Without "
    "one: macro-average-precision, -recall and -F1-score, of means over classes, and "
    "micro-average-precision. A class without samples has 1, as in v2 (Evaluator.cpp)")  # fmt: skip
