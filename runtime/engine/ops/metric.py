"""Metrics. They count in whole numbers, so that sums over steps and over trainers have no order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..arrays import F32, Ids
from ..graph import BATCH, Value
from .base import ID, Op, Shape, Step, describe


class AucCounts(Op, op="auc_counts", takes=("float", "id"), gives="id", options=("of_last", "thresholds")):
    """Samples by predicted probability, in `thresholds` + 1 buckets: row 0 those with label 0, row 1 the
    others. The probability is the last item of each row. `of_last`: counts are sums over so many last steps,
    0: over all so far. In training NaN counts nowhere: its gradient is reported.
    """

    @staticmethod
    def find_shape(attrs: Mapping[str, Any], x: Value, label: Value) -> Shape:
        _check_shapes(x, label)
        return (2, attrs["thresholds"] + 1)

    def forward(self, step: Step, x: F32, labels: Ids) -> Ids:
        thresholds: int = self.value.attrs["thresholds"]
        labels = labels.reshape(-1)
        if step.draw is not None and np.isnan(x[:, -1]).any():
            known = ~np.isnan(x[:, -1])
            x, labels = x[known], labels[known]
        buckets = (x[:, -1] * np.float32(thresholds)).astype(np.int64)
        if len(x) and (buckets.min() < 0 or buckets.max() > thresholds):
            raise ValueError(f"input {describe(self.value.inputs[0])} has values beyond 0 to 1")
        flat = (labels != 0) * (thresholds + 1) + buckets
        name, last = self.value.name, self.value.attrs["of_last"]
        if last == 0:
            total: Ids = step.counts.setdefault(name, np.zeros((2, thresholds + 1), ID))
            total += self._count(flat)
            return total
        if last > 1:
            before = step.counts.get(name, np.zeros((0, 2), ID))  # steps since, and place, of each sample
            own = np.stack([np.zeros_like(flat), flat], axis=1)
            step.counts[name] = np.concatenate([before[before[:, 0] < last - 1] + [1, 0], own])
            flat = step.counts[name][:, 1]
        return self._count(flat)

    def _count(self, places: Ids) -> Ids:
        size = self.value.attrs["thresholds"] + 1
        return np.bincount(places, minlength=2 * size).astype(ID).reshape(2, size)


class Auc(Op, op="auc", takes=("id",)):
    """Area under the ROC curve, from the counts of auc_counts; 0 if all labels are equal."""

    @staticmethod
    def find_shape(attrs: Mapping[str, Any], *inputs: Value) -> Shape:
        return ()

    def forward(self, step: Step, counts: Ids) -> F32:
        return np.array(compute_auc(*counts), dtype=np.float32)


class Accuracy(Op, op="accuracy", takes=("float", "id"), options=("k",)):
    """Share of samples with a label among the `k` largest items of the row; of equal ones the first wins."""

    @staticmethod
    def find_shape(attrs: Mapping[str, Any], x: Value, label: Value) -> Shape:
        _check_shapes(x, label)
        if not 1 <= attrs["k"] <= x.shape[1]:
            raise ValueError(f"k={attrs['k']}, expected 1 to {x.shape[1]}, the items of each row")
        return ()

    def forward(self, step: Step, x: F32, labels: Ids) -> F32:
        each, count = labels.reshape(-1, 1), x.shape[1]
        if len(x) and (each.min() < 0 or each.max() >= count):
            raise ValueError(f"input {describe(self.value.inputs[1])} has labels beyond 0 to {count - 1}")
        own = np.take_along_axis(x, each, axis=1)
        ahead = ~(x <= own) | ((x == own) & (np.arange(count) < each))  # NaN is ahead, and never right
        right = np.count_nonzero(ahead.sum(axis=1) < self.value.attrs["k"])
        return np.array(right / max(1, len(x)), dtype=np.float32)


def _check_shapes(x: Value, label: Value) -> None:
    if len(x.shape) != 2 or not x.has_batch or label.shape not in ((BATCH,), (BATCH, 1)):
        raise ValueError(f"{describe(x)} and {describe(label)} are not probabilities and a label each")


def compute_auc(low: Ids, high: Ids) -> float:
    """Return the area under the ROC curve, from the counts of label 0 and of the others; 0 without one."""
    below, above = low.astype(np.float64), high.astype(np.float64)
    # Twice the pairs in the right order, bucket by bucket; those of one bucket count half.
    right = np.cumsum(above * (2 * np.cumsum(below) - below))[-1]
    pairs = 2 * below.sum() * above.sum()
    return float(right / pairs) if pairs else 0.0
