"""The asynchronous optimizer as the v2 pages print it, with 1, 2 and 4 trainers, and on every backend."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from support.jobs import Place, succeeded

REMOTE = ("fabric_furnished", "mpi_furnished", "k8s")
PROGRAM = """
import os
import numpy as np
import pslaunch.runtime as paddle

def reader():
    rng = np.random.default_rng(int(os.environ["PADDLE_INIT_TRAINER_ID"]))
    for word in rng.integers(0, 20, 320).tolist():
        yield word, (word + 1) % 20

def on_event(event):
    if isinstance(event, paddle.event.EndPass) and event.pass_id == 14:
        print("cost", event.cost, flush=True)

paddle.init()
word = paddle.layer.data(name="word", type=paddle.data_type.integer_value(20))
following = paddle.layer.data(name="next", type=paddle.data_type.integer_value(20))
attr = paddle.attr.Param(name="_proj", initial_std=0.1, sparse_update=True)
row = paddle.layer.embedding(input=word, size=32, param_attr=attr)
guess = paddle.layer.fc(input=row, size=20, act=paddle.activation.Softmax())
cost = paddle.layer.classification_cost(input=guess, label=following)
adagrad = paddle.optimizer.AdaGrad(
    is_async=True,
    async_lagged_grad_discard_ratio=1.6,
    learning_rate=3e-3,
    regularization=paddle.optimizer.L2Regularization(8e-4))
trainer = paddle.trainer.SGD(cost, paddle.parameters.create(cost), adagrad, is_local=False)
trainer.train(paddle.batch(reader, 16), num_passes=15, event_handler=on_event)
"""


@pytest.mark.seam
@pytest.mark.parametrize(
    ("place", "trainers"),
    [
        *(("local", trainers) for trainers in (1, 2, 4)),
        *((place, 4) for place in REMOTE),
    ],
    indirect=["place"],
)
def test_published_asynchronous_optimizer_learns(place: Place, workspace: Path, trainers: int) -> None:
    (workspace / "train.py").write_text(PROGRAM)
    job = succeeded(place, workspace, "--server_num=1", f"--worker_num={trainers}")
    for trainer in range(trainers):
        said = "\n".join(job.lines(f"trainer/{trainer}"))
        costs = [float(text) for text in re.findall(r"cost ([0-9.]+)", said)]
        assert len(costs) == 1 and costs[0] < 0.9 * math.log(20), said
