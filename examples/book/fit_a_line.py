"""Fit a line, of PaddlePaddle's book: the price of a house from 13 numbers, by one layer."""

from __future__ import annotations

import os

import pslaunch.runtime as paddle
from pslaunch.runtime.dataset import uci_housing

PASSES = int(os.environ.get("PASSES", "30"))


def main() -> None:
    """Train, show the cost of each pass, and some prices beside the predicted ones."""
    paddle.init(use_gpu=False, trainer_count=1)
    x = paddle.layer.data(name="x", type=paddle.data_type.dense_vector(13))
    y_predict = paddle.layer.fc(input=x, size=1, act=paddle.activation.Linear())
    y = paddle.layer.data(name="y", type=paddle.data_type.dense_vector(1))
    cost = paddle.layer.square_error_cost(input=y_predict, label=y)
    parameters = paddle.parameters.create(cost)
    trainer = paddle.trainer.SGD(
        cost=cost,
        parameters=parameters,
        update_equation=paddle.optimizer.Momentum(momentum=0, learning_rate=2e-3),
        is_local=not os.environ.get("PADDLE_INIT_PSERVERS"),
    )
    feeding = {"x": 0, "y": 1}

    def event_handler(event: object) -> None:
        if isinstance(event, paddle.event.EndPass):
            result = trainer.test(reader=paddle.batch(uci_housing.test(), 2), feeding=feeding)
            print(f"Test {event.pass_id}, Cost {result.cost:.3f}", flush=True)

    reader = paddle.batch(paddle.reader.shuffle(uci_housing.train(), buf_size=500), 2)
    trainer.train(reader, num_passes=PASSES, event_handler=event_handler, feeding=feeding)
    houses = [house for house, _ in zip(uci_housing.test()(), range(5), strict=False)]
    prices = paddle.infer(y_predict, parameters, [(numbers,) for numbers, _ in houses])
    for (_, price), found in zip(houses, prices, strict=True):
        print(f"label={price[0]:.2f}, predict={found[0]:.2f}")


if __name__ == "__main__":
    main()
