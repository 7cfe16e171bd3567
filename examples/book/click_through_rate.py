"""Click-through rate: a wide part, over crossed ids, beside a deep one, with tables on the pservers.

The samples are drawn here, seeded, and stand in for the log of a site.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

import pslaunch.runtime as paddle

PASSES = int(os.environ.get("PASSES", "5"))
USERS, ADS, PLACES = 200, 50, 10
Sample = tuple[int, int, list[int], list[float], list[float]]


def read_clicks(seed: int) -> Iterator[Sample]:
    """User, ad, places of the wide vector (ad and place crossed), two numbers, and the click."""
    truth = np.random.RandomState(0)
    age, kind, seen = truth.normal(size=USERS), truth.normal(size=ADS), truth.normal(size=PLACES)
    rng = np.random.RandomState(seed)
    for _ in range(4000):
        user, ad, place = rng.randint(USERS), rng.randint(ADS), rng.randint(PLACES)
        numbers = rng.normal(size=2)
        score = age[user] + kind[ad] + seen[place] + numbers[0] - 1
        clicked = float(rng.uniform() < 1 / (1 + np.exp(-score)))
        yield user, ad, [ad * PLACES + place], numbers.tolist(), [clicked]


def build_network() -> Any:
    """The cost of the probability of a click; its evaluators show in the metrics of events."""
    type_of, tables = paddle.data_type, paddle.attr.Param(initial_std=0.1, sparse_update=True)
    user = paddle.layer.data("user", type_of.integer_value(USERS))
    ad = paddle.layer.data("ad", type_of.integer_value(ADS))
    wide = paddle.layer.data("wide", type_of.sparse_binary_vector(ADS * PLACES))
    numbers = paddle.layer.data("numbers", type_of.dense_vector(2))
    rows = [paddle.layer.embedding(input=one, size=16, param_attr=tables) for one in (user, ad)]
    deep = paddle.layer.mixed(
        size=64,
        input=[paddle.layer.full_matrix_projection(input=one) for one in (*rows, numbers)],
        act=paddle.activation.Relu(),
        bias_attr=True,
        layer_attr=paddle.attr.Extra(drop_rate=0.1),
    )
    linear = paddle.activation.Linear()
    first = paddle.layer.fc(input=wide, size=1, act=linear, param_attr=tables)
    score = paddle.layer.addto(input=[first, paddle.layer.fc(input=deep, size=1, act=linear)])
    predict = paddle.layer.addto(input=score, act=paddle.activation.Sigmoid())
    click = paddle.layer.data("click", type_of.dense_vector(1))
    paddle.evaluator.auc(name="auc", input=predict, label=click)
    paddle.evaluator.classification_error(name="error", input=predict, label=click)
    return paddle.layer.multi_binary_label_cross_entropy_cost(input=predict, label=click)


def main() -> None:
    """Train, each trainer on clicks of its own, and show cost and metrics of each pass."""
    paddle.init(use_gpu=False)
    cost = build_network()
    trainer = paddle.trainer.SGD(
        cost=cost,
        parameters=paddle.parameters.create(cost),
        update_equation=paddle.optimizer.Adam(learning_rate=2e-3),
        is_local=not os.environ.get("PADDLE_INIT_PSERVERS"),
    )
    own = int(os.environ.get("PADDLE_INIT_TRAINER_ID", "0"))

    def event_handler(event: object) -> None:
        if isinstance(event, paddle.event.EndPass):
            result = trainer.test(reader=paddle.batch(lambda: read_clicks(99), 200))
            print(f"Test {event.pass_id}, Cost {result.cost:.3f}, {result.metrics}", flush=True)

    reader = paddle.batch(lambda: read_clicks(1 + own), 100)
    trainer.train(reader, num_passes=PASSES, event_handler=event_handler)


if __name__ == "__main__":
    main()
