"""Costs. Each gives one number for each row of its input."""

from __future__ import annotations

import numpy as np

from ... import _core
from ..arrays import F32, Ids
from ..graph import Graph, Value
from .base import Grads, Op, Shape, Step, as_rows, describe
from .elementwise import activate, take_logs

LEAST = np.float32(1e-30)  # of a probability, for its logarithm
# PaddlePaddle's, of binary_cross_entropy: of a logarithm, and of p (1 - p) in its derivative.
LEAST_LOG, LEAST_SPREAD = np.float32(-100.0), np.float32(1e-12)


def find_logs(probability: F32, step: Step) -> F32:
    """Return the logarithms of probabilities, smaller ones taken as LEAST."""
    return take_logs(np.maximum(probability, LEAST), step.threads)


class _LabelCost(Op, takes="float id"):
    """A cost of scores or probabilities, [..., classes], with the class of each row: [...] or [..., 1]."""

    def find_shape(self, x: Value, label: Value) -> Shape:
        rows = x.shape[:-1]
        if len(x.shape) < 2 or label.shape not in (rows, (*rows, 1)):
            raise ValueError(f"label {describe(label)} has not one class for each row of {describe(x)}")
        return (*rows, 1)


class SoftmaxCrossEntropy(_LabelCost, op="softmax_with_cross_entropy", overwrites=True):
    """-log(probability of the label), from scores: exact near probabilities of 0 and 1."""

    def forward(self, step: Step, scores: F32, label: Ids) -> F32:
        labels = self.check_ids(label, scores.shape[-1]).reshape(-1)
        x = as_rows(self.take_copy(scores))
        cost: F32 = np.empty(len(x), dtype=np.float32)
        step.errors += _core.cross_entropy(x, labels, cost, step.threads)
        self._probability = x
        return cost.reshape(*scores.shape[:-1], 1)

    def backward(self, step: Step, grad: F32, result: F32, scores: F32, label: Ids) -> Grads:
        back = self._probability
        back[np.arange(len(back)), label.reshape(-1)] -= np.float32(1.0)
        if not self.is_loss:
            back *= grad.reshape(-1, 1)
        return back.reshape(scores.shape), None


class CrossEntropy(_LabelCost, op="cross_entropy"):
    """-log(probability of the label), from probabilities; from the scores of a softmax if it made them."""

    @classmethod
    def choose(cls, value: Value, program: Graph, *, trains: bool) -> tuple[type[Op], tuple[Value, ...]]:
        x, label = value.inputs
        return (SoftmaxCrossEntropy, (x.inputs[0], label)) if x.op == "softmax" else (cls, value.inputs)

    def forward(self, step: Step, probability: F32, label: Ids) -> F32:
        x = as_rows(probability)
        labels = self.check_ids(label, x.shape[1]).reshape(-1)
        picked = x[np.arange(len(x)), labels]
        # NaN never counts as the right answer.
        step.errors += int(np.count_nonzero(~(picked >= x.max(axis=1))))
        return np.negative(find_logs(picked, step)).reshape(*probability.shape[:-1], 1)

    def backward(self, step: Step, grad: F32, result: F32, probability: F32, label: Ids) -> Grads:
        x, labels = as_rows(probability), label.reshape(-1)
        places = np.arange(len(x))
        back = np.zeros_like(x)
        back[places, labels] = -grad.reshape(-1) / np.maximum(x[places, labels], LEAST)
        return back.reshape(probability.shape), None


def _find_common_shape(op: Op, x: Value, y: Value) -> Shape:
    if x.shape != y.shape:
        raise ValueError(f"inputs {describe(x)} and {describe(y)} differ in shape")
    return x.shape


class SquareError(Op, op="square_error", takes="float float"):
    """Sum of the squared differences of two vectors."""

    def find_shape(self, x: Value, y: Value) -> Shape:
        return (*_find_common_shape(self, x, y)[:-1], 1)

    def forward(self, step: Step, x: F32, y: F32) -> F32:
        difference = np.subtract(x, y, out=self.get_buffer("difference", x.shape))
        rows = as_rows(difference)
        cost: F32 = np.empty(len(rows), dtype=np.float32)
        _core.dot_rows(rows, rows, cost, step.threads)
        return cost.reshape(*x.shape[:-1], 1)

    def backward(self, step: Step, grad: F32, result: F32, x: F32, y: F32) -> Grads:
        back = np.float32(2.0) * self.get_buffer("difference", x.shape)
        if not self.is_loss:
            back *= grad
        return back, -back if self.needs[1] else None


class LogLoss(Op, op="log_loss", takes="float float", options="epsilon"):
    """-y log(p + epsilon) - (1 - y) log(1 - p + epsilon), for probabilities p and labels y from 0 to 1."""

    find_shape = _find_common_shape

    def forward(self, step: Step, p: F32, y: F32) -> F32:
        high, low = (take_logs(one, step.threads) for one in self._shift(p))
        return np.negative(y * high + (np.float32(1.0) - y) * low)

    def backward(self, step: Step, grad: F32, result: F32, p: F32, y: F32) -> Grads:
        high, low = self._shift(p)
        return grad * ((np.float32(1.0) - y) / low - y / high), None

    def _shift(self, p: F32) -> tuple[F32, F32]:
        epsilon = np.float32(self.attrs["epsilon"])
        return p + epsilon, np.float32(1.0) - p + epsilon


class BinaryCrossEntropy(Op, op="binary_cross_entropy", takes="float float"):
    """-y log(p) - (1 - y) log(1 - p), for probabilities p and labels y; no logarithm is below -100."""

    find_shape = _find_common_shape

    def forward(self, step: Step, p: F32, y: F32) -> F32:
        both = p.copy(), np.asarray(np.float32(1.0) - p)
        high, low = (np.maximum(take_logs(one, step.threads), LEAST_LOG) for one in both)
        return np.negative(y * high + (np.float32(1.0) - y) * low)

    def backward(self, step: Step, grad: F32, result: F32, p: F32, y: F32) -> Grads:
        spread: F32 = np.maximum(p * (np.float32(1.0) - p), LEAST_SPREAD)
        return np.asarray(grad * (p - y) / spread, np.float32), None


class SigmoidCrossEntropy(Op, op="sigmoid_cross_entropy", takes="float float"):
    """-y log(p) - (1 - y) log(1 - p), for p = sigmoid(score) and labels y from 0 to 1; always finite."""

    find_shape = _find_common_shape

    def forward(self, step: Step, scores: F32, y: F32) -> F32:
        # max(score, 0) - y score - log(sigmoid(|score|)) is the same, without the logarithm of a tiny number.
        rest = take_logs(activate("sigmoid", np.abs(scores), step.threads), step.threads)
        return np.asarray(np.maximum(scores, np.float32(0.0)) - scores * y - rest)

    def backward(self, step: Step, grad: F32, result: F32, scores: F32, y: F32) -> Grads:
        return grad * (activate("sigmoid", scores, step.threads) - y), None
