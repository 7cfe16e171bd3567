"""An allreduce beside pservers: all trainers print the mean of their costs, which no pserver knows.

pslaunch mpi -hostfile machines -n 3 examples/mpi4py/mean_cost.py
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from mpi4py import MPI

import pslaunch.runtime as paddle

WORLD = MPI.COMM_WORLD
TRUTH = np.arange(1.0, 5.0, dtype=np.float32)


def read_samples() -> Iterator[tuple[object, object]]:
    """Yield this trainer's own samples of a line through 0."""
    numbers = np.random.default_rng(WORLD.rank)
    for _ in range(64):
        x = numbers.standard_normal(4, dtype=np.float32)
        yield x, [float(x @ TRUTH)]


def main() -> None:
    paddle.init(use_gpu=False, trainer_count=1)
    x = paddle.layer.data(name="x", type=paddle.data_type.dense_vector(4))
    y = paddle.layer.data(name="y", type=paddle.data_type.dense_vector(1))
    cost = paddle.layer.square_error_cost(input=paddle.layer.fc(input=x, size=1), label=y)
    parameters = paddle.parameters.create(cost)
    optimizer = paddle.optimizer.Momentum(momentum=0, learning_rate=0.05)
    trainer = paddle.trainer.SGD(cost, parameters, optimizer, is_local=False)
    costs: list[float] = []

    def handle(event: object) -> None:
        if isinstance(event, paddle.event.EndIteration):
            costs.append(event.cost)
        elif isinstance(event, paddle.event.EndPass):
            mean = WORLD.allreduce(sum(costs)) / WORLD.allreduce(len(costs))
            print(f"pass {event.pass_id}: mean cost of {WORLD.size} trainers {mean:.6f}", flush=True)
            costs.clear()

    trainer.train(paddle.batch(read_samples, 16), 3, handle)


main()
