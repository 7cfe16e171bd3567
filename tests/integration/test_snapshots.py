"""Snapshots of real trainings: killed at any moment and started again, they end with the same bits."""

from __future__ import annotations

import random
import re
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from support.cluster import Cluster, run_job
from support.process import Started

# It draws at random wherever a program can: in its reader, in layers, and in its handler, from another
# generator, as its calls are not repeated for batches that a snapshot has.
PROGRAM = """
import json, os, random, sys, time
import numpy as np
import pslaunch.runtime as paddle
from support.models import digest, ngram_cost, ngrams

options = json.loads(sys.argv[1])
paddle.init(trainer_count=1, log_period=1)
rank = int(os.environ["PADDLE_INIT_TRAINER_ID"])
random.seed(rank)
np.random.seed(rank)
cost = ngram_cost(sparse=True, drop_rate=0.2)
parameters = paddle.parameters.create(cost)
poly = {"learning_rate_schedule": "poly", "learning_rate_decay_a": 0.01, "learning_rate_decay_b": 0.5}
optimizer = paddle.optimizer.Adam(learning_rate=1e-2, **poly)
trainer = paddle.trainer.SGD(cost, parameters, optimizer, is_local=False)
samples = paddle.reader.shuffle(ngrams(16 * (7 + 2 * rank), seed=rank), 100)

def draw():
    for sample in samples():
        if random.random() < 0.9:
            yield sample

def handler(event):
    if isinstance(event, paddle.event.EndIteration):
        print("drawn", np.random.rand())
        time.sleep(0.03)  # so that cuts are on the disk some steps later
        print(f"batch {event.pass_id} {event.batch_id} {event.cost:.9g}", flush=True)
    if isinstance(event, paddle.event.EndPass):
        print(f"pass {event.pass_id} {event.cost:.9g}", flush=True)

trainer.train(paddle.batch(draw, 16), 3, handler)
print("digest", digest(parameters))
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


def lines(output: str, begin: str) -> dict[str, str]:
    """What a trainer has said of batches or passes, by their numbers."""
    return dict(re.findall(rf"^{begin} ([\d ]+) (\S+)$", output, re.M))


def digests(outputs: Sequence[str]) -> set[str]:
    return {found for text in outputs for found in re.findall(r"^digest (\w+)$", text, re.M)}


def with_snapshots(cluster: Cluster, steps: int, **more: str) -> Cluster:
    found = {"PADDLE_INIT_SNAPSHOT_STEPS": str(steps), **more}
    return replace(cluster, variables={**cluster.variables, **found})


def sets(folder: Path) -> list[Path]:
    """The whole ones, in order."""
    return sorted(path.parent for path in folder.glob(".pslaunch/snapshots/*/manifest.json"))


def kill_after(cluster: Cluster, program: Path, folder: Path, line: str, victim: int) -> Sequence[Started]:
    """Run until trainer 0 says this line, then kill one process, and at last all; the trainers."""
    with cluster.serving(folder) as pservers, cluster.training(program, folder) as trainers:
        trainers[0].expect(line)
        processes = [*pservers, *trainers]
        processes[victim].proc.send_signal(signal.SIGKILL)
        return trainers


SHAPES = [Cluster(trainers=2), Cluster(trainers=2, pservers=2, ports_num=2, ports_num_for_sparse=1)]


@pytest.mark.parametrize("cluster", SHAPES, ids=["one", "many"])
def test_a_training_that_is_killed_and_started_again_has_the_same_bits(
    cluster: Cluster, program: Path, tmp_path: Path
) -> None:
    plain = run_job(cluster, program, tmp_path)
    cut = with_snapshots(cluster, 3)
    whole = run_job(cut, program, tmp_path)
    assert digests(whole) == digests(plain)
    assert [len(list(folder.glob("shard-*.bin"))) for folder in sets(tmp_path)] == [
        cluster.pservers * (cluster.ports_num + cluster.ports_num_for_sparse)
    ] * 2

    rng = random.Random(0)
    folder = tmp_path / "killed"
    folder.mkdir()
    heard: list[dict[str, str]] = [{}, {}]
    for at in ("batch 0 4", "batch 1 0", "batch 2 3"):
        found = with_snapshots(cut, 3, **({"PADDLE_INIT_RESUME": "1"} if sets(folder) else {}))
        trainers = kill_after(found, program, folder, at, rng.randrange(cluster.pservers + 2))
        for said, trainer in zip(heard, trainers, strict=True):
            said |= lines(trainer.output(), "batch")
    assert sets(folder)
    outputs = run_job(with_snapshots(cut, 3, PADDLE_INIT_RESUME="1"), program, folder)
    assert digests(outputs) == digests(plain)
    for before, output, said in zip(plain, outputs, heard, strict=True):
        assert lines(output, "pass").items() <= lines(before, "pass").items()
        assert (said | lines(output, "batch")).items() == lines(before, "batch").items()
        assert len(lines(output, "batch")) < len(lines(before, "batch")), "it began at the start"
