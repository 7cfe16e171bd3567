"""Snapshots of real trainings: killed at any moment and started again, they end with the same bits."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pslaunch.runtime.files.manifest import read_manifest
from support.cluster import TESTS, Cluster, find_digests, run_job
from support.fleet import make_local_blocks, train_by_hand
from support.jobs import QUICK, Event, Place, hash_model, running, succeeded
from support.process import Started, started

# It draws at random wherever a program can: in its reader, in layers, and in its handler, from another
# generator, as its calls are not repeated for batches that a snapshot has.
PROGRAM = """
import os, random, time
import numpy as np
import pslaunch.runtime as paddle
from support.models import digest, ngram_cost, ngrams

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


def lines(output: str, begin: str) -> dict[str, str]:
    """What a trainer has said of batches or passes, by their numbers."""
    return dict(re.findall(rf"^{begin} ([\d ]+) (\S+)$", output, re.M))


def with_snapshots(cluster: Cluster, steps: int, **more: str) -> Cluster:
    found = {"PADDLE_INIT_SNAPSHOT_STEPS": str(steps), **more}
    return replace(cluster, variables={**cluster.variables, **found})


def has_cut(events: Sequence[Event]) -> bool:
    return any(e.get("cut", 0) >= 2 for e in events)


def sets(folder: Path) -> list[Path]:
    """The whole ones, in order."""
    return sorted(path.parent for path in folder.glob(".pslaunch/snapshots/*/manifest.json"))


def kill_after(cluster: Cluster, folder: Path, line: str, victim: int) -> Sequence[Started]:
    """Run until trainer 0 says this line, then kill one process, and at last all; the trainers."""
    with cluster.serving(folder) as pservers, cluster.training(PROGRAM, folder) as trainers:
        trainers[0].expect(line)
        processes = [*pservers, *trainers]
        processes[victim].proc.send_signal(signal.SIGKILL)
        return trainers


@pytest.mark.parametrize("place", ["local_cluster"], indirect=True)
def test_a_node_that_is_lost_with_its_disk_restarts_from_copies_and_others_resume_without_a_shared_folder(
    place: Place, workspace: Path, tmp_path: Path
) -> None:
    options = ("--worker_num=2", "--max_restarts=1", "--env=PYTHONPATH", *QUICK)
    variables = {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    succeeded(place, workspace, "--server_num=2", *options, env=variables, text=PROGRAM)
    plain = hash_model(place.workspaces(workspace)[0])
    first, second = (folder / ".pslaunch/snapshots" for folder in place.workspaces(workspace)[:2])
    parts = {"manifest.json", "shard-00000-000.bin", "shard-00001-000.bin"}

    cut = ("--server_num=2", "--snapshot_steps=2", "--snapshot_copies=2", *options)
    with running(place, workspace, *cut, env=variables) as job:
        job.until(has_cut, "a snapshot")
        assert job.node_of("pserver/1") == job.node_of("trainer/1") == 1
        agent, pserver = job.guards("pserver/1")[1], job.pid("pserver/1")
        os.kill(agent, signal.SIGKILL)
        os.kill(pserver, signal.SIGKILL)
        second.rename(tmp_path / "lost")
        assert job.launcher.wait() == 0, job.launcher.output()
    (restart,) = job.restarts()
    assert restart["step"] >= 2
    assert "the training goes on from step" in job.log_of("trainer/0").read_text()
    assert hash_model(place.workspaces(workspace)[0]) == plain
    for folder in (first, second):
        newest = max(path.parent for path in folder.glob("*/manifest.json"))
        assert {path.name for path in newest.iterdir()} == parts
        shutil.rmtree(folder)

    alone = ("--server_num=2", "--snapshot_steps=2", *options)
    succeeded(place, workspace, *alone, env=variables)
    newest = max(path.parent for path in first.glob("*/manifest.json"))
    assert {path.name for path in newest.iterdir()} == parts - {"shard-00001-000.bin"}
    job = succeeded(place, workspace, "--server_num=4", "--resume", *options, env=variables)
    assert (
        f"the training goes on from step {int(newest.name.rpartition('-')[2])}"
        in job.log_of("trainer/0").read_text()
    )
    assert hash_model(place.workspaces(workspace)[0]) == plain


SHAPES = [Cluster(trainers=2), Cluster(trainers=2, pservers=2, ports_num=2, ports_num_for_sparse=1)]


@pytest.mark.parametrize("cluster", SHAPES, ids=["one", "many"])
def test_a_training_that_is_killed_and_started_again_has_the_same_bits(
    cluster: Cluster, tmp_path: Path
) -> None:
    plain = run_job(cluster, PROGRAM, tmp_path)
    cut = with_snapshots(cluster, 3)
    whole = run_job(cut, PROGRAM, tmp_path)
    assert find_digests(whole) == find_digests(plain)
    assert [len(list(folder.glob("shard-*.bin"))) for folder in sets(tmp_path)] == [
        cluster.pservers * (cluster.ports_num + cluster.ports_num_for_sparse)
    ] * 2

    rng = random.Random(0)
    folder = tmp_path / "killed"
    folder.mkdir()
    heard: list[dict[str, str]] = [{}, {}]
    for at in ("batch 0 4", "batch 1 0", "batch 2 3"):
        found = with_snapshots(cut, 3, **({"PADDLE_INIT_RESUME": "1"} if sets(folder) else {}))
        trainers = kill_after(found, folder, at, rng.randrange(cluster.pservers + 2))
        for said, trainer in zip(heard, trainers, strict=True):
            said |= lines(trainer.output(), "batch")
    assert sets(folder)
    (other,) = (shape for shape in SHAPES if shape is not cluster)  # with other numbers of pservers and ports
    outputs = run_job(with_snapshots(other, 3, PADDLE_INIT_RESUME="1"), PROGRAM, folder)
    assert find_digests(outputs) == find_digests(plain)
    for before, output, said in zip(plain, outputs, heard, strict=True):
        assert lines(output, "pass").items() <= lines(before, "pass").items()
        assert (said | lines(output, "batch")).items() == lines(before, "batch").items()
        assert len(lines(output, "batch")) < len(lines(before, "batch")), "it began at the start"


# A program with a loop of its own: it makes all its calls again.
LOOP = """
import sys, time
import numpy as np
import pslaunch.runtime as paddle
from pslaunch.runtime import fleet

fleet.init()
word = paddle.static.data("word", [None, 1], "int64")
row = paddle.static.nn.sparse_embedding(word, [2**32, 4])
score = paddle.static.nn.fc(paddle.reshape(row, [-1, 4]), 3, activation="tanh")
loss = paddle.mean(paddle.square(paddle.static.nn.fc(score, 1) - 1.0))
rate = paddle.optimizer.lr.ExponentialDecay(0.1, 0.9)
strategy = fleet.DistributedStrategy()
strategy.a_sync = sys.argv[1] != "sync"
if sys.argv[1] == "geo":
    strategy.a_sync_configs = {"k_steps": 2}
method = paddle.optimizer.SGD if strategy.a_sync else paddle.optimizer.Adam
fleet.distributed_optimizer(method(rate), strategy).minimize(loss)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    rng = np.random.default_rng(fleet.worker_index())
    for turn in range(3):
        for step in range(5 + fleet.worker_index()):
            feed = {"word": rng.integers(0, 2**32, (8, 1)) % 50}
            (found,) = exe.run(feed=feed, fetch_list=[loss])
            print(f"batch {turn} {step} {float(found):.9g}", flush=True)
            rate.step()
            time.sleep(0.03)
        fleet.barrier_worker()
    tested = paddle.static.default_main_program().clone(for_test=True)
    (found,) = exe.run(tested, feed={"word": np.arange(50)[:, None]}, fetch_list=[row])
    print("digest", found.tobytes().hex())
    fleet.stop_worker()
"""


def run_loop(
    folder: Path, servers: int, kill_at: str = "", mode: str = "sync", workers: int = 2, /, **variables: str
) -> list[str]:
    """Run the program on servers and workers, up to this line of worker 0 if given; what workers say."""
    (folder / "train.py").write_text(LOOP)
    blocks = [{**block, **variables} for block in make_local_blocks(servers, workers)]
    if not kill_at:
        return train_by_hand(folder, *blocks, program=("train.py", mode))[servers:]
    with contextlib.ExitStack() as stack:
        argv = [sys.executable, "train.py", mode]
        found = [stack.enter_context(started(argv, cwd=folder, env=os.environ | block)) for block in blocks]
        found[servers].expect(kill_at)
        return [process.output() for process in found[servers:]]


@pytest.mark.parametrize(("before", "after"), [(2, 2), (1, 3)])
def test_a_loop_of_the_programs_own_goes_on_where_the_snapshot_is(
    tmp_path: Path, before: int, after: int
) -> None:
    plain = run_loop(tmp_path, 1)
    steps = {"PADDLE_INIT_SNAPSHOT_STEPS": "2"}
    run_loop(tmp_path, before, "batch 1 3", **steps)
    assert sets(tmp_path)
    outputs = run_loop(tmp_path, after, PADDLE_INIT_RESUME="1", **steps)
    assert len(find_digests(plain)) == 1
    assert find_digests(outputs) == find_digests(plain)
    for one, whole in zip(outputs, plain, strict=True):
        found = re.search(r"the first (\d+) training runs are in the snapshot", one)
        assert found, one
        said, expected = (list(lines(text, "batch").values()) for text in (one, whole))
        assert len(said) == len(expected)
        n = int(found[1])
        assert said[n:] == expected[n:]
        assert set(said[:n]) == {expected[n - 1]}


@pytest.mark.parametrize("mode", ["async", "geo"])
def test_asynchronous_trainings_go_on_from_what_each_worker_has_noted(tmp_path: Path, mode: str) -> None:
    variables = {"PADDLE_INIT_SNAPSHOT_STEPS": "4"}
    run_loop(tmp_path, 2, "batch 2 2", mode, **variables)
    (manifest,) = (read_manifest(folder) for folder in sets(tmp_path)[-1:])
    assert set(manifest.extra["trainers"]) == {"0", "1"}
    outputs = run_loop(tmp_path, 2, "", mode, 3, PADDLE_INIT_RESUME="1", **variables)
    *before, fresh = (re.search(r"the first (\d+) training runs are in the snapshot", one) for one in outputs)
    assert fresh is None, "a worker that was not there begins at the start"
    for found in before:
        assert found, outputs
        assert int(found[1]) >= 4


def test_what_a_training_can_not_begin_with_is_named(tmp_path: Path) -> None:
    cluster = Cluster(trainers=2)
    resumed = with_snapshots(cluster, 3, PADDLE_INIT_RESUME="1")

    def refused(found: Cluster, pattern: str, text: str = PROGRAM) -> None:
        with found.serving(tmp_path), found.training(text, tmp_path) as trainers:
            assert trainers[0].wait() == 78, trainers[0].output()
            assert re.search(pattern, trainers[0].output()), trainers[0].output()

    refused(resumed, r"resume: \S+/.pslaunch/snapshots has no snapshot of which pservers have all parts")
    run_job(with_snapshots(cluster, 3), PROGRAM, tmp_path)
    *_, older, newest = sets(tmp_path)
    refused(replace(resumed, trainers=3), "is of 2 trainers, this job has 3: synchronous")

    part = newest / "shard-00000-000.bin"
    whole = part.read_bytes()
    part.write_bytes(whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:])
    refused(resumed, rf"{part} is damaged: .*; without that snapshot the training goes on from the one")
    part.write_bytes(whole)
    other = PROGRAM.replace("Adam(learning_rate=1e-2, **poly)", "AdaGrad(learning_rate=1e-2)")
    refused(resumed, "is of another training: method of \\S+ is adam there, adagrad here", other)
    (newest / "manifest.json").unlink()  # a cut that is not whole
    outputs = run_job(
        replace(resumed, variables={**resumed.variables, "PADDLE_INIT_RESUME": str(older.parent)}),
        PROGRAM,
        tmp_path,
    )
    step = int(older.name.rpartition("-")[2])
    assert f"the training goes on from step {step}: {older}" in outputs[0]
    assert len(sets(tmp_path)) == 2, "the newest ones are kept"
