"""Costs of many classes that compute a few scores: hierarchical sigmoid and noise-contrastive estimation.

The formulas are PaddlePaddle's: HierarchicalSigmoidLayer and NCELayer of v2, hsigmoid_loss and nce of Fleet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import _core
from ..arrays import F32, Ids, sum_rows
from ..graph import BATCH, Value
from .base import ANY_ROWS, ID, Array, Draw, Grads, Op, Shape, Step, describe
from .cost import LEAST, find_logs
from .elementwise import activate, sum_axis

_ONE = np.float32(1.0)


class _SampledCost(Op, has_bias=True):
    """A cost of each row of x from its scores with some rows of a weight, the same number for each.

    The parameters are the weight [rows, dim], then a bias for each of these rows if there is one.
    """

    # choose_rows(step, label, *others) returns the rows of the weight, [n, k].
    # measure(step, scores, rows, *others) returns the costs of scores [n, k] and their derivatives.
    choose_rows: Callable[..., Ids]
    measure: Callable[..., tuple[F32, F32]]

    def forward(self, step: Step, x: F32, *others: Array) -> F32:
        weight, *bias = (step.params[config.name] for config in self.params)
        rows: Ids = np.ascontiguousarray(self.choose_rows(step, *others))
        self._rows, self._samples = rows.reshape(-1), np.repeat(np.arange(len(x)), rows.shape[1])
        self._x, self._weights = (self.get_buffer(use, (rows.size, x.shape[1])) for use in ("x", "weight"))
        _core.gather_rows(np.ascontiguousarray(x), self._samples, [self._x], step.threads)
        _core.gather_rows(weight, self._rows, [self._weights], step.threads)
        scores: F32 = np.empty(rows.size, dtype=np.float32)
        _core.dot_rows(self._x, self._weights, scores, step.threads)
        for one in bias:
            scores += one.reshape(-1)[self._rows]
        costs, self._slopes = self.measure(step, scores.reshape(rows.shape), rows, *others)
        return sum_axis(costs, 1, step.threads).reshape(-1, 1)

    def backward(self, step: Step, grad: F32, result: F32, x: F32, *others: Array) -> Grads:
        (weight, *bias), threads = self.params, step.threads
        slopes = (self._slopes * grad).reshape(-1, 1)
        step.add_param_grad(weight, sum_rows(weight.rows, self._rows, [self._x * slopes], threads))
        for one in bias:
            step.add_param_grad(one, sum_rows(weight.rows, self._rows, [slopes], threads))
        back = sum_rows(len(x), self._samples, [self._weights * slopes], threads) if self.needs[0] else None
        return back, *[None for _ in others]


def _check_forms(x: Value, label: Value, *others: Value) -> None:
    """Raise ValueError unless x is [batch, dim], and the others have one row for each of its rows."""
    if len(x.shape) != 2 or not x.has_batch:
        raise ValueError(f"input {describe(x)} is not one vector for each sample")
    for one in (label, *others):
        if not one.has_batch or len(one.shape) > 2:
            raise ValueError(f"input {describe(one)} has not one row for each row of {describe(x)}")


class HSigmoid(_SampledCost, op="hsigmoid", takes="float id id id", optional=2, options="classes"):
    """Sum of -log(probability of each turn) on the way from the root of a binary tree to the label's leaf.

    Without a path the tree is complete, and with c = label + classes bit j of c is a turn at the inner node
    (c >> (j + 1)) - 1, up to the highest bit of c (SimpleCode of PaddlePaddle). A path is given by the nodes
    of each sample, up to the first one below 0, and by their turns. Scores s of a turn t are limited to
    +-40, and cost log(1 + exp(s)) - t s. As in PaddlePaddle each place behind a path's end costs log(2).
    """

    def find_shape(self, x: Value, label: Value, *path: Value) -> Shape:
        _check_forms(x, label, *path)
        if label.size != 1:
            raise ValueError(f"label {describe(label)} is not one class for each row of {describe(x)}")
        if path and (len(path) != 2 or path[0].shape != path[1].shape):
            raise ValueError("path_table and path_code must both be given, or neither, and have one shape")
        if not path and self.attrs["classes"] < 2:
            raise ValueError(f"num_classes={self.attrs['classes']}, expected at least 2")
        return BATCH, 1

    def find_params(self, x: Value, label: Value, *path: Value) -> Sequence[Shape]:
        rows = ANY_ROWS if path else self.attrs["classes"] - 1  # the inner nodes
        return (rows, x.shape[-1]), (rows, 1)

    def choose_rows(self, step: Step, label: Ids, *path: Ids) -> Ids:
        if path:
            nodes, turns = path
            self._used = np.logical_and.accumulate(nodes >= 0, axis=1)
            for bad in nodes[nodes >= self.params[0].rows]:
                raise ValueError(f"{self.value.inputs[2].name} has the node {bad}, which the weight lacks")
        else:
            classes: int = self.attrs["classes"]
            codes = self.check_ids(label, classes).reshape(-1, 1) + classes
            places = np.arange((classes - 1).bit_length())
            nodes, turns = (codes >> (places + 1)) - 1, (codes >> places) & 1
            self._used = nodes >= 0
        self._turns = ((turns != 0) & self._used).astype(np.float32)
        return np.where(self._used, nodes, 0)

    def measure(self, step: Step, scores: F32, *_: Array) -> tuple[F32, F32]:
        scores = np.clip(scores, -40, 40) * self._used
        low = activate("sigmoid", -scores, step.threads)  # the probability of no turn
        return -find_logs(low, step) - self._turns * scores, ((_ONE - low) - self._turns) * self._used


class Nce(_SampledCost, op="nce", takes="float id float", optional=1, options="classes noise samples"):
    """Sum of the costs of telling the labels of a sample from `samples` classes drawn as noise.

    With o = sigmoid(score), q the probability of a class as noise and b = samples * q, a label costs
    -log(o / (o + b)) and noise -log(b / (o + b)), times the weight of the sample. `noise`: "uniform",
    "log_uniform", which is log((class + 2) / (class + 1)) / log(classes), or all probabilities.
    """

    def __init__(self, value: Value, needs: Sequence[bool] = ()) -> None:
        super().__init__(value, needs)
        shares = find_noise(self.attrs["noise"], self.attrs["classes"])
        self._ends, self._b = np.cumsum(shares), (self.attrs["samples"] * shares).astype(np.float32)

    def find_shape(self, x: Value, label: Value, *weight: Value) -> Shape:
        _check_forms(x, label, *weight)
        for one in weight:
            if one.size != 1:
                raise ValueError(f"weight {describe(one)} is not one number for each row of {describe(x)}")
        if self.attrs["samples"] < 1:
            raise ValueError(f"num_neg_samples={self.attrs['samples']}, expected at least 1")
        return BATCH, 1

    def find_params(self, x: Value, *_: Value) -> Sequence[Shape]:
        return (self.attrs["classes"], x.shape[-1]), (self.attrs["classes"], 1)

    def choose_rows(self, step: Step, label: Ids, *_: Array) -> Ids:
        classes, samples = self.attrs["classes"], self.attrs["samples"]
        labels = self.check_ids(label, classes).reshape(len(label), self.value.inputs[1].size)
        draw = step.draw or Draw(seed=0, trainer=0, step=0)
        words = draw.draw_words(self.value.name, len(label) * samples).reshape(len(label), samples)
        points = (words >> np.uint64(11)) * (self._ends[-1] * 2.0**-53)
        noise = np.searchsorted(self._ends, points, side="right")
        return np.concatenate([labels, np.minimum(noise, classes - 1)], axis=1, dtype=ID)

    def measure(self, step: Step, scores: F32, rows: Ids, label: Ids, *weight: F32) -> tuple[F32, F32]:
        o, b = activate("sigmoid", scores, step.threads), self._b[rows]
        is_label = np.arange(rows.shape[1]) < rows.shape[1] - self.attrs["samples"]
        both = np.maximum(o + b, LEAST)
        costs = -find_logs(np.where(is_label, o, b) / both, step)
        slopes = np.where(is_label, -b, o) * (_ONE - o) / both
        for one in weight:
            costs, slopes = costs * one.reshape(-1, 1), slopes * one.reshape(-1, 1)
        return costs, slopes


def find_noise(noise: Any, classes: int) -> npt.NDArray[np.float64]:
    """Return the probability of each class as noise; raises ValueError if `noise` does not give it."""
    if classes < 2:
        raise ValueError(f"{classes} classes, expected at least 2")
    if noise == "uniform":
        return np.full(classes, 1.0 / classes)
    if noise == "log_uniform":
        # By a series of odd powers: the same bits with any C library.
        z = 1.0 / (2.0 * np.arange(classes) + 3.0)
        logs = np.zeros(classes)
        for j in range(17, -1, -1):
            logs = logs * (z * z) + 2.0 / (2 * j + 1)
        logs *= z
        return np.asarray(logs / np.cumsum(logs[:-1])[-1])
    shares = np.asarray(noise, dtype=np.float64)
    if shares.shape != (classes,) or not (shares.min() >= 0.0 and abs(shares.sum() - 1.0) < 1e-5):
        raise ValueError(
            f"the probabilities of {shares.size} classes as noise, expected {classes} with the sum 1"
        )
    return shares
