"""A model server beside real trainings: it has the values of a step, whatever it asks and when."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import numpy as np
import pytest

import pslaunch.runtime as paddle
from pslaunch.runtime.files.manifest import read_manifest
from pslaunch.runtime.serving import Table
from support.cluster import TESTS
from support.fleet import make_local_blocks, train_by_hand
from support.jobs import Job, Place, running, succeeded
from support.models import WORDS, make_word, ngram_cost
from support.process import poll_until

# Trainer 0 says what the values are after each step, and in the middle waits until a reader has seen one.
PROGRAM = """
import hashlib, os, sys, time
import pslaunch.runtime as paddle
from support.models import ngram_cost, ngrams

paddle.init(trainer_count=1)
rank, mode = int(os.environ["PADDLE_INIT_TRAINER_ID"]), sys.argv[1]
cost = ngram_cost(sparse=True)
parameters = paddle.parameters.create(cost)
optimizer = paddle.optimizer.Adam(learning_rate=1e-2, is_async=mode == "async")
trainer = paddle.trainer.SGD(cost, parameters, optimizer, is_local=False)
steps = 0

def handler(event):
    global steps
    if not isinstance(event, paddle.event.EndIteration):
        return
    steps += 1
    if rank == 0 and mode == "sync":
        found = hashlib.sha256()
        for name in sorted(parameters.keys()):
            found.update(parameters[name].tobytes())
        print("step", steps, found.hexdigest(), flush=True)
    time.sleep(0.03)  # so that exports are on the disk some steps later
    while rank == 0 and steps == 20 and not os.path.exists("seen"):
        time.sleep(0.01)

trainer.train(paddle.batch(ngrams(16 * 14, seed=rank), 16), 3, handler)
"""
OPTIONS = ("--server_num=2", "--worker_num=2", "--export_steps=4", "--export_dir=out", "--env=PYTHONPATH")
VARIABLES = {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}


def digest(table: Table) -> str:
    found = hashlib.sha256()
    for name, shape in sorted(table.set.shapes.items()):
        found.update((table.lookup(range(WORDS), name) if shape.table else table.get(name)).tobytes())
    return found.hexdigest()


def follow(job: Job, folder: Path) -> dict[int, str]:
    """What a reader sees by steps, up to the end of the job; it lets the training go on after the first."""
    poll_until((folder / "out" / "newest").exists, describe=job.launcher.output)
    table = Table(folder / "out")
    found = {table.step: digest(table)}
    while job.launcher.proc.poll() is None or table.refresh():
        if table.refresh():
            found[table.step] = digest(table)
        (folder / "seen").touch()
    return found


def check_last(folder: Path) -> None:
    """Compare the last export with the parameters of the last pass, as values and by infer()."""
    table = Table(folder / "out")
    with (folder / "output" / "parameters.tar").open("rb") as f:
        saved = paddle.parameters.Parameters.from_tar(f)
    for name, shape in table.set.shapes.items():
        own = table.lookup(range(WORDS), name) if shape.table else table.get(name).reshape(saved[name].shape)
        np.testing.assert_array_equal(own, saved[name])
    parameters = paddle.parameters.create(make_prediction())
    parameters.follow(table)
    samples = [(i, 1, 2, 3) for i in range(20)]
    expected = paddle.infer(output_layer=make_prediction(), parameters=saved, input=samples)
    np.testing.assert_array_equal(
        paddle.infer(output_layer=make_prediction(), parameters=parameters, input=samples), expected
    )


def make_prediction() -> paddle.layer.Layer:
    found: list[paddle.layer.Layer] = []

    def take(hidden: paddle.layer.Layer, _: paddle.layer.Layer) -> paddle.layer.Layer:
        softmax = paddle.activation.Softmax()
        found.append(paddle.layer.fc(input=hidden, size=WORDS, name="predict", act=softmax))
        return paddle.layer.classification_cost(input=found[0], label=make_word("w4", WORDS))

    ngram_cost(sparse=True, make_cost=take)
    return found[0]


@pytest.mark.parametrize("place", ["local"], indirect=True)
def test_a_reader_beside_a_synchronous_training_has_the_values_of_a_step(
    place: Place, workspace: Path
) -> None:
    (workspace / "train.py").write_text(PROGRAM)
    with running(place, workspace, *OPTIONS, program=("train.py", "sync"), env=VARIABLES) as job:
        seen = follow(job, workspace)
        assert job.launcher.wait() == 0, job.launcher.output()
    said = dict(re.findall(r"^step (\d+) (\w+)$", "\n".join(job.lines("trainer/0")), re.M))
    assert len(seen) > 2
    assert max(seen) == 42 == len(said)  # not a multiple of 4: one more at the end
    assert seen == {step: said[str(step)] for step in seen}
    check_last(workspace)
    chains = [read_manifest(one).extra["chain"] for one in (workspace / "out").glob("export-*")]
    assert max(map(len, chains)) > 1, "there were no deltas"  # the newest itself may be a base


@pytest.mark.parametrize("place", ["local"], indirect=True)
def test_the_last_export_of_an_asynchronous_training_is_what_it_ends_with(
    place: Place, workspace: Path
) -> None:
    (workspace / "seen").touch()
    succeeded(place, workspace, *OPTIONS, program=("train.py", "async"), env=VARIABLES, text=PROGRAM)
    check_last(workspace)


@pytest.mark.parametrize("place", ["local"], indirect=True)
def test_exports_that_fail_are_said_and_the_training_ends_well(place: Place, workspace: Path) -> None:
    for name in ("seen", "out"):
        (workspace / name).touch()
    job = succeeded(place, workspace, *OPTIONS, program=("train.py", "sync"), env=VARIABLES, text=PROGRAM)
    said = job.log_of("trainer/0").read_text()
    assert re.search(r"WARNING: the export of step 4 has failed: port 0: .*out", said), said
    assert (workspace / "output" / "parameters.tar").exists()


FLEET = """
import numpy as np
import pslaunch.runtime as paddle
from pslaunch.runtime import fleet

fleet.init()
word = paddle.static.data("word", [None, 1], "int64")
row = paddle.static.nn.sparse_embedding(word, [2**32, 4])
score = paddle.static.nn.fc(paddle.reshape(row, [-1, 4]), 1)
loss = paddle.mean(paddle.square(score - 1.0))
fleet.distributed_optimizer(paddle.optimizer.Adam(0.1), fleet.DistributedStrategy()).minimize(loss)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    tested = paddle.static.default_main_program().clone(for_test=True)
    for step in range(9):
        exe.run(feed={"word": np.arange(8)[:, None] * 2**28 + step}, fetch_list=[loss])
        if step == 4 and fleet.is_first_worker():
            paddle.static.save_inference_model("model", [word], [score], exe)
    fleet.barrier_worker()
    feed = {"word": np.arange(8)[:, None] * 2**28}
    print("scores", exe.run(tested, feed=feed, fetch_list=[score])[0].tobytes().hex())
    fleet.stop_worker()
"""


def test_an_inference_model_of_a_huge_table_follows_the_training(tmp_path: Path) -> None:
    variables = {"PADDLE_INIT_EXPORT_STEPS": "5", "PADDLE_INIT_EXPORT_DIR": str(tmp_path / "out")}
    said = train_by_hand(tmp_path, *[block | variables for block in make_local_blocks(2, 2)], text=FLEET)
    found = re.search(r"^scores (\w+)$", said[2], re.M)
    assert found
    feed = {"word": np.arange(8)[:, None] * 2**28}
    for table, same in ((Table(tmp_path / "out"), True), (None, False)):
        program, _, results = paddle.static.load_inference_model(str(tmp_path / "model"), table=table)
        [scores] = paddle.static.Executor().run(program, feed=feed, fetch_list=results)
        assert (scores.tobytes().hex() == found[1]) == same
