"""Evaluators by their v2 names: metrics of events, beside a cost that has the same label.

Their names in `metrics` are v2's: `name`, by default `__auc_evaluator_0__` and so on.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..engine.graph import Value
from ..engine.ops.base import Array
from ..engine.ops.metric import compute_auc
from ..engine.plan import StepResult
from .building import Layer, Measure, Stage, chain, check_vectors, find_share, make_name

__all__ = ["auc", "classification_error", "precision_recall"]

BUCKETS = 2**14  # of probabilities, for an area; v2 has 2**24


def classification_error(
    input: Layer, label: Layer, name: str | None = None, top_k: int = 1, threshold: float = 0.5
) -> None:
    """Show the share of samples whose label is not among the classes of the `top_k` highest of `input`.

    An input or a label that is one number is class 1 above `threshold`, else 0.
    """
    own = make_name(name, "classification_error_evaluator")
    value = _join_classes(own, input, label, top_k, threshold)
    input.measures.append(Measure(own, value, label.value, _count_wrong, find_share))


def auc(input: Layer, label: Layer, name: str | None = None) -> None:
    """Show the area under the ROC curve of the last number of `input`, a probability; label 0 is below."""
    own, (x,) = make_name(name, "auc_evaluator"), check_vectors(input, "evaluator.auc")
    counts = Stage("auc_counts", {"of_last": 1, "thresholds": BUCKETS - 1})
    value = chain(own, [x.value, _find_classes(f"{own}.label", label, 1, 0.0)], counts)
    x.measures.append(
        Measure(own, value, label.value, lambda _, counts: counts, lambda sums: {"": compute_auc(*sums)})
    )


def precision_recall(
    input: Layer, label: Layer, positive_label: int | None = None, name: str | None = None
) -> None:
    """Show NAME.precision, NAME.recall and NAME.F1-score of the class `positive_label`.

    Without one: macro-average-precision, -recall and -F1-score, of means over classes, and
    micro-average-precision. A class without samples has 1, as in v2 (Evaluator.cpp).
    """
    own, classes = make_name(name, "precision_recall_evaluator"), max(2, input.size)
    if positive_label is not None and not 0 <= positive_label < classes:
        raise ValueError(f"evaluator.precision_recall: {positive_label=}, expected 0 to {classes - 1}")

    def count(step: StepResult, pairs: Array) -> Array:
        found, labels = pairs.T
        parts = found[found == labels], found[found != labels], labels[found != labels]
        return np.stack([np.bincount(one, minlength=classes) for one in parts])

    def measure(sums: Array) -> Mapping[str, float]:
        right, *others = sums
        shares = [np.where(right + one > 0, right / np.maximum(right + one, 1), 1.0) for one in others]
        if positive_label is not None:
            return _name_scores(".", *(float(one[positive_label]) for one in shares))
        macro = _name_scores(".macro-average-", *(float(one.mean()) for one in shares))
        return macro | {".micro-average-precision": float(right.sum() / max(1, sums[:2].sum()))}

    value = _join_classes(own, input, label, 1, 0.5)
    input.measures.append(Measure(own, value, label.value, count, measure))


def _name_scores(before: str, precision: float, recall: float) -> dict[str, float]:
    score = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return {f"{before}precision": precision, f"{before}recall": recall, f"{before}F1-score": score}


def _count_wrong(step: StepResult, classes: Array) -> Array:
    return np.array([np.count_nonzero((classes[:, :-1] != classes[:, -1:]).all(axis=1)), len(classes)])


def _join_classes(name: str, input: Layer, label: Layer, top_k: int, threshold: float) -> Value:
    """Return classes of each sample: the `top_k` that were found, and the right one behind them."""
    if max(2, input.size) != max(2, label.size):
        raise ValueError(f"evaluator {name}: input has {input.size} classes, label {label.size}")
    found = _find_classes(f"{name}.found", input, top_k, threshold)
    right = _find_classes(f"{name}.label", label, 1, threshold)
    return chain(name, [found, right], Stage("concat", {"axis": 1}))


def _find_classes(name: str, of: Layer, top_k: int, threshold: float) -> Value:
    if of.type is not None and of.type.kind == "integer":
        return chain(name, [of.value], Stage("reshape", {"shape": [0, 1]}))
    (one,) = check_vectors(of, f"evaluator {name}")
    if one.size > 1:
        return chain(name, [one.value], Stage("order", {"axis": 1, "k": top_k, "largest": True}))
    least = chain(f"{name}.least", [], Stage("full", {"shape": (), "to": "float", "value": threshold}))
    return chain(name, [one.value], Stage("greater_than", more=(least,)))
