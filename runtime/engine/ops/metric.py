"""Metrics. They count in whole numbers, so that sums over steps and over trainers have no order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from ..arrays import F32, Ids
from ..graph import BATCH, Value
from .base import ID, Op, Shape, Step, describe
from .elementwise import activate

ONE = 2.0**20  # of sums that are no whole numbers


class Metric(Op):
    """State that a metric keeps over all runs, in whole numbers, and its value over all workers.

    metric: its name in reports. condense() makes of the state the numbers that are added over all workers,
    measure() the value of these sums, as numbers by the ends of their names.
    """

    metric: ClassVar[str] = ""
    condense: ClassVar[Callable[..., Ids]] = staticmethod(lambda state: state)
    measure: ClassVar[Callable[..., Mapping[str, float]]]

    def get_state(self, step: Step, shape: Shape) -> Ids:
        """Return the state, to be changed; at first zeros."""
        return step.counts.setdefault(self.value.name, np.zeros(shape, ID))


class AucCounts(Metric, op="auc_counts", takes="float id", gives="id", options="of_last thresholds"):
    """Samples by predicted probability, in `thresholds` + 1 buckets: row 0 those with label 0, row 1 the
    others. The probability is the last item of each row. `of_last`: counts are sums over so many last steps,
    0: over all so far. In training NaN counts nowhere: its gradient is reported.
    """

    metric = "auc"
    measure = staticmethod(lambda sums: {"": compute_auc(*sums)})

    def find_shape(self, x: Value, label: Value) -> Shape:
        _check_shapes(x, label)
        return (2, self.attrs["thresholds"] + 1)

    def forward(self, step: Step, x: F32, labels: Ids) -> Ids:
        thresholds: int = self.attrs["thresholds"]
        x, labels = _take_known(step, x, labels.reshape(-1))
        flat = find_buckets(x, labels, thresholds, self.value.inputs[0])
        name, last = self.value.name, self.attrs["of_last"]
        if last == 0:
            total = self.get_state(step, (2, thresholds + 1))
            total += self._count(flat)
            return total
        if last > 1:
            before = step.counts.get(name, np.zeros((0, 2), ID))  # steps since, and place, of each sample
            own = np.stack([np.zeros_like(flat), flat], axis=1)
            step.counts[name] = np.concatenate([before[before[:, 0] < last - 1] + [1, 0], own])
            flat = step.counts[name][:, 1]
        return self._count(flat)

    def _count(self, places: Ids) -> Ids:
        size = self.attrs["thresholds"] + 1
        return np.bincount(places, minlength=2 * size).astype(ID).reshape(2, size)


class Auc(Op, op="auc", takes="id"):
    """Area under the ROC curve, from the counts of auc_counts; 0 if all labels are equal."""

    find_shape = staticmethod(lambda counts: ())

    def forward(self, step: Step, counts: Ids) -> F32:
        return np.array(compute_auc(*counts), dtype=np.float32)


class ClickSums(Metric, op="click_sums", takes="float id"):
    """Sums over all samples so far, with prediction p and label y of 0 or 1: (p - y)^2, |p - y|, p,
    sigmoid(p), y, 1."""

    metric = "calibration"
    measure = staticmethod(lambda sums: {"": float(sums[2] / sums[4] / ONE) if sums[4] else np.nan})

    def find_shape(self, x: Value, label: Value) -> Shape:
        _check_shapes(x, label)
        return (6,)

    def forward(self, step: Step, x: F32, labels: Ids) -> F32:
        x, labels = _take_known(step, x, labels.reshape(-1))
        sums, wrong = self.get_state(step, (6,)), x - labels
        for i, one in enumerate((wrong * wrong, np.abs(wrong), x, activate("sigmoid", x, 1))):
            sums[i] += np.rint(np.cumsum(one, dtype=np.float64)[-1:].sum() * ONE).astype(ID)
        sums[4:] += labels.sum(), len(x)
        return (sums / [ONE, ONE, ONE, ONE, 1, 1]).astype(np.float32)


class UserSamples(Metric, op="user_samples", takes="float id id", gives="id", options="most"):
    """The last `most` samples: user, label, and the bits of the prediction. Gives the number of all."""

    metric = "user_auc"
    condense = staticmethod(lambda state: np.rint(np.array(sum_user_auc(state)) * [ONE, 1]).astype(ID))
    measure = staticmethod(lambda sums: {"": float(sums[0] / ONE / sums[1]) if sums[1] else np.nan})

    def find_shape(self, x: Value, label: Value, user: Value) -> Shape:
        _check_shapes(x, label)
        _check_shapes(x, user)
        return ()

    def forward(self, step: Step, x: F32, labels: Ids, users: Ids) -> Ids:
        most: int = self.attrs["most"]
        state = self.get_state(step, (most + 1, 3))  # the number of all in the last row
        x, labels, users = _take_known(step, x, labels.reshape(-1), users.reshape(-1))
        places = (state[-1, 0] + np.arange(len(x))) % most
        state[places] = np.stack([users, labels, np.ascontiguousarray(x).view(np.int32)], axis=1)
        state[-1, 0] += len(x)
        return np.asarray(state[-1, 0])


class UserAuc(Op, op="user_auc", takes="id"):
    """AUC of each user's samples, mean over users weighted by their samples, from those of user_samples.

    Users with equal labels do not count; 0 without others. PaddlePaddle's WuAUC (framework/fleet/metrics.h).
    """

    find_shape = staticmethod(lambda count: ())

    def forward(self, step: Step, count: Ids) -> F32:
        state = step.counts.get(self.value.inputs[0].name, np.zeros((1, 3), ID))
        total, samples = sum_user_auc(state)
        return np.array(total / max(1.0, samples), dtype=np.float32)


class Accuracy(Op, op="accuracy", takes="float id", options="k"):
    """Share of samples with a label among the `k` largest items of the row; of equal ones the first wins."""

    def find_shape(self, x: Value, label: Value) -> Shape:
        _check_shapes(x, label)
        if not 1 <= self.attrs["k"] <= x.shape[1]:
            raise ValueError(f"k={self.attrs['k']}, expected 1 to {x.shape[1]}, the items of each row")
        return ()

    def forward(self, step: Step, x: F32, labels: Ids) -> F32:
        each, count = labels.reshape(-1, 1), x.shape[1]
        if len(x) and (each.min() < 0 or each.max() >= count):
            raise ValueError(f"input {describe(self.value.inputs[1])} has labels beyond 0 to {count - 1}")
        own = np.take_along_axis(x, each, axis=1)
        ahead = ~(x <= own) | ((x == own) & (np.arange(count) < each))  # NaN is ahead, and never right
        right = np.count_nonzero(ahead.sum(axis=1) < self.attrs["k"])
        return np.array(right / max(1, len(x)), dtype=np.float32)


def _check_shapes(x: Value, label: Value) -> None:
    if len(x.shape) != 2 or not x.has_batch or label.shape not in ((BATCH,), (BATCH, 1)):
        raise ValueError(f"{describe(x)} and {describe(label)} are not probabilities and a label each")


def _take_known(step: Step, x: F32, *ids: Ids) -> tuple[Any, ...]:
    """Return the last item of each row, and ids; in training without the samples whose item is NaN."""
    x = x[:, -1]
    known: Any = ~np.isnan(x) if step.draw is not None else slice(None)
    found: list[Any] = [x, *ids]
    return tuple(one[known] for one in found)


def find_buckets(x: F32, labels: Ids, thresholds: int, of: Value) -> Ids:
    """Return the bucket of each probability, those of label 0 before those of others."""
    buckets = (x * np.float32(thresholds)).astype(np.int64)
    if len(x) and (buckets.min() < 0 or buckets.max() > thresholds):
        raise ValueError(f"input {describe(of)} has values beyond 0 to 1")
    found: Ids = (labels != 0) * (thresholds + 1) + buckets
    return found


def sum_user_auc(state: Ids) -> tuple[float, float]:
    """Return the sum of AUC times samples over the users with both labels, and the samples of these."""
    rows = state[: min(len(state) - 1, state[-1, 0])]
    x = rows[:, 2].astype(np.int32).view(np.float32)
    order = np.lexsort((x, rows[:, 0]))
    users, x, high = rows[order, 0], x[order], rows[order, 1] != 0
    is_first = np.ones(len(users), np.bool_)
    is_first[1:] = users[1:] != users[:-1]
    is_tie = ~is_first
    is_tie[1:] &= x[1:] == x[:-1]
    groups = np.flatnonzero(~is_tie)  # where equal predictions of a user begin
    if not len(groups):
        return 0.0, 0.0
    above, below = (np.add.reduceat(one.astype(np.float64), groups) for one in (high, ~high))
    owners = np.cumsum(is_first)[groups] - 1
    positive, negative = np.bincount(owners, above), np.bincount(owners, below)
    lower = np.cumsum(below) - below - (np.cumsum(negative) - negative)[owners]  # of the user
    right = np.bincount(owners, above * (2 * lower + below))  # twice the pairs in the right order
    both = (positive > 0) & (negative > 0)
    samples = (positive + negative)[both]
    mean = right[both] / (2 * positive[both] * negative[both])
    return float(np.cumsum(mean * samples)[-1:].sum()), float(samples.sum())


def compute_auc(low: Ids, high: Ids) -> float:
    """Return the area under the ROC curve, from the counts of label 0 and of the others; 0 without one."""
    below, above = low.astype(np.float64), high.astype(np.float64)
    # Twice the pairs in the right order, bucket by bucket; those of one bucket count half.
    right = np.cumsum(above * (2 * np.cumsum(below) - below))[-1]
    pairs = 2 * below.sum() * above.sum()
    return float(right / pairs) if pairs else 0.0
