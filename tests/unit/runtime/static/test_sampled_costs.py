"""Costs that compute the scores of a few classes, by the names of both faces: learning, bits, errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pslaunch.runtime as paddle
from pslaunch.runtime.engine.parameters import Parameters
from pslaunch.runtime.layer import Layer
from pslaunch.runtime.paddle2 import static
from pslaunch.runtime.paddle2.nn import functional as F  # as in PaddlePaddle's pages
from pslaunch.runtime.paddle2.program.initializer import Assign
from support.models import WORDS, make_vector, make_word, ngram_cost, ngrams
from support.static import get_parameters, run_startup

pytestmark = [pytest.mark.asan, pytest.mark.usefixtures("fresh")]


def make_hsigmoid(hidden: Layer, word: Layer) -> Layer:
    return paddle.layer.hsigmoid(input=hidden, label=word, num_classes=WORDS, name="cost")


def make_nce(hidden: Layer, word: Layer) -> Layer:
    act = paddle.activation.Sigmoid()
    return paddle.layer.nce(input=hidden, label=word, num_classes=WORDS, act=act, name="cost")


LAYER = paddle.layer
SPARSE, HALF = paddle.attr.Param(sparse_update=True), paddle.attr.Extra(drop_rate=0.5)
COSTS = pytest.mark.parametrize("make", [make_hsigmoid, make_nce])


def train(
    make: Callable[[Layer, Layer], Layer], *, passes: int = 1, threads: int = 1
) -> tuple[Parameters, list[float]]:
    """Train on n-grams; return the parameters, and the cost of each pass."""
    paddle.init(trainer_count=threads)
    cost = ngram_cost(make_cost=make)
    parameters = paddle.parameters.create(cost)
    costs: list[float] = []

    def handle_event(event: object) -> None:
        if isinstance(event, paddle.event.EndPass):
            costs.append(event.cost)

    trainer = paddle.trainer.SGD(cost, parameters, paddle.optimizer.AdaGrad(learning_rate=1e-1))
    trainer.train(paddle.batch(ngrams(400), 100 if passes == 1 else 16), passes, handle_event)
    return parameters, costs


@COSTS
def test_training_of_an_ngram_model_reduces_the_cost(make: Callable[[Layer, Layer], Layer]) -> None:
    parameters, costs = train(make, passes=30)
    assert costs[-1] < 0.7 * costs[0]
    rows = WORDS - (make is make_hsigmoid)
    assert parameters.get_shape("_cost.w0") == (rows, 16)
    assert parameters.get_shape("_cost.wbias") == (1, rows)


def test_first_cost_of_hsigmoid_counts_the_turns() -> None:
    def make(hidden: Layer, word: Layer) -> Layer:
        start = paddle.attr.Param(initial_std=0.0)
        return paddle.layer.hsigmoid(input=hidden, label=word, param_attr=start)

    cost = ngram_cost(make_cost=make)
    trainer = paddle.trainer.SGD(cost, paddle.parameters.create(cost), paddle.optimizer.SGD())
    assert trainer.test(paddle.batch(ngrams(100), 50)).cost == pytest.approx(6 * math.log(2))


def test_noise_differs_from_step_to_step_and_follows_its_probabilities() -> None:
    shares = [0.0, 0.7, 0.0, 0.3]
    x, label = static.data("x", [None, 1]), static.data("label", [None, 1], "int64")
    weight = paddle.ParamAttr(name="w", initializer=Assign(np.zeros((4, 1), np.float32)))
    cost = static.nn.nce(
        x, label, 4, None, weight, False, num_neg_samples=50, sampler="custom_dist", custom_dist=shares
    )
    paddle.optimizer.SGD(learning_rate=1.0).minimize(paddle.mean(cost))
    executor = run_startup()
    feed: dict[str, Any] = {"x": np.ones((200, 1), np.float32), "label": np.ones((200, 1), np.int64)}
    parameters = get_parameters()
    grads = []
    for _ in range(2):
        parameters.set("w", np.zeros((4, 1), np.float32))
        executor.run(feed=feed)
        grads.append(-parameters.get("w")[:, 0])
    assert grads[0].tobytes() != grads[1].tobytes()
    for grad in grads:
        o, b = 0.5, 50 * np.array(shares)
        noise = 50 * np.array(shares) * o * (1 - o) / (o + b)
        np.testing.assert_allclose(grad[[0, 2]], 0.0)
        np.testing.assert_allclose(grad[3], noise[3] / 51, rtol=0.05)
        np.testing.assert_allclose(grad[1], (noise[1] - b[1] * (1 - o) / (o + b[1])) / 51, rtol=0.05)


def test_static_hsigmoid_of_a_given_tree_has_the_cost_of_the_complete_one() -> None:
    x, label = static.data("x", [None, 3]), static.data("label", [None, 1], "int64")
    nodes, turns = (static.data(name, [None, 3], "int64") for name in ("nodes", "turns"))
    start = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(4, 3)
    weight = paddle.create_parameter([4, 3], "float32", attr=paddle.ParamAttr("w", Assign(start)))
    first = paddle.nn.HSigmoidLoss(3, 5, weight_attr=paddle.ParamAttr("w", Assign(start)), bias_attr=False)
    costs = [first(x, label), F.hsigmoid_loss(x, label, 5, weight, None, nodes, turns)]
    feed: dict[str, Any] = {
        "x": np.array([[1, 2, 3], [3, 2, 1]], np.float32),
        "label": np.array([[0], [4]]),
        "nodes": np.array([[1, 0, -1], [3, 1, 0]]),
        "turns": np.array([[1, 0, 7], [1, 0, 0]]),
    }
    executor = run_startup()
    complete, given = executor.run(feed=feed, fetch_list=costs)
    assert complete.shape == (2, 1)
    np.testing.assert_array_equal(complete, given)
    feed["nodes"] = np.array([[1, 0, -1], [4, 1, 0]])
    with pytest.raises(ValueError, match="nodes has the node 4, which the weight lacks"):
        executor.run(feed=feed, fetch_list=costs[1:])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x, y, w: LAYER.hsigmoid(x, y), "label y is not a data layer of integer_value"),
        (lambda x, y, w: LAYER.hsigmoid(x, w, num_classes=9), "num_classes=9, but label w has 10"),
        (lambda x, y, w: LAYER.hsigmoid(x, make_word("v", 1)), "num_classes=1, expected at least 2"),
        (lambda x, y, w: LAYER.hsigmoid([x, y], w), "layer.concat joins several"),
        (lambda x, y, w: LAYER.hsigmoid(x, w, param_attr=SPARSE), "sparse_update is only for embeddings"),
        (lambda x, y, w: LAYER.nce(x, w, layer_attr=HALF), "drop_rate has no effect on a cost; give it to x"),
        (lambda x, y, w: LAYER.nce(x, w, act=paddle.activation.Tanh()), "expected Sigmoid"),
        (lambda x, y, w: LAYER.nce(x, w, num_neg_samples=0), "expected at least 1"),
        (
            lambda x, y, w: LAYER.nce(x, make_word("v", 3), neg_distribution=[0.5, 0.5]),
            "probabilities of 2 classes as noise, expected 3 with the sum 1",
        ),
        (lambda x, y, w: LAYER.nce(x, w, weight=y), r"weight y \[-1, 4\] is not one number for each row"),
    ],
)
def test_layers_that_do_not_fit_are_refused(call: Callable[..., Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call(make_vector("x"), make_vector("y"), make_word("w"))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x, y, w: static.nn.nce(x, y, 5, sampler="zipf"), "sampler='zipf', expected uniform"),
        (lambda x, y, w: static.nn.nce(x, y, 5, sampler="custom_dist"), "custom_dist=None do not fit"),
        (lambda x, y, w: static.nn.nce(x, y, 5, num_neg_samples=0), "expected at least 1"),
        (lambda x, y, w: static.nn.nce(y, y, 5), "y has id values, expected float"),
        (lambda x, y, w: F.hsigmoid_loss(x, y, 5, x), "is not a parameter, as create_parameter makes"),
        (lambda x, y, w: F.hsigmoid_loss(x, y, 4, w), r"weight w is \[4, 3\], expected \[3, 3\]"),
        (lambda x, y, w: F.hsigmoid_loss(x, y, 5, w, w), r"bias w is \[4, 3\], expected \[4, 1\]"),
        (lambda x, y, w: F.hsigmoid_loss(x, y, 5, w, None, y), "must both be given, or neither"),
        (lambda x, y, w: paddle.nn.HSigmoidLoss(3, 1), "num_classes=1, expected at least 2"),
    ],
)
def test_variables_that_do_not_fit_are_refused(call: Callable[..., Any], text: str) -> None:
    x, label = static.data("x", [None, 3]), static.data("y", [None, 1], "int64")
    weight = paddle.create_parameter([4, 3], "float32", attr="w")
    with pytest.raises((TypeError, ValueError), match=text):
        call(x, label, weight)
