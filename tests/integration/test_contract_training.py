"""The contract of every backend for training jobs: same bits, same logs, same endings."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from pslaunch.node import codes
from support.jobs import (
    QUICK,
    TRAINING_PLACES,
    LocalPlace,
    Place,
    StandingPlace,
    finished,
    hash_model,
    running,
    succeeded,
    until_nothing_runs,
)

pytestmark = [pytest.mark.asan, pytest.mark.parametrize("place", TRAINING_PLACES, indirect=True)]

TRAIN = """
import os, signal, sys, time
import numpy as np
import pslaunch.runtime as paddle

def reader():
    rng = np.random.default_rng(int(os.environ.get("PADDLE_INIT_TRAINER_ID", 0)))
    for row in rng.integers(0, 30, (160, 3)).tolist():
        yield tuple(row)

def on_event(event):
    if isinstance(event, paddle.event.EndIteration) and event.batch_id == 2:
        print("training", flush=True)
        HOOK

paddle.init()
attr = paddle.attr.Param(name="table", sparse_update=True, initial_std=0.1)
words = [paddle.layer.data(name=f"w{i}", type=paddle.data_type.integer_value(30)) for i in range(3)]
context = [paddle.layer.embedding(input=w, size=6, param_attr=attr) for w in words[:2]]
hidden = paddle.layer.fc(input=paddle.layer.concat(input=context), size=20, act=paddle.activation.Tanh())
guess = paddle.layer.fc(input=hidden, size=30, act=paddle.activation.Softmax())
cost = paddle.layer.classification_cost(input=guess, label=words[2])
adagrad = paddle.optimizer.AdaGrad(learning_rate=0.05)
trainer = paddle.trainer.SGD(cost, paddle.parameters.create(cost), adagrad, is_local=False)
trainer.train(paddle.batch(reader, 16), num_passes=2, event_handler=on_event)
"""


def write(workspace: Path, *, hook: str = "pass") -> None:
    (workspace / "train.py").write_text(TRAIN.replace("HOOK", hook))


def trained(place: Place, workspace: Path, *options: str) -> str:
    write(workspace)
    succeeded(place, workspace, *options)
    return hash_model(place.workspaces(workspace)[0])


@pytest.mark.seam
def test_bits_depend_neither_on_places_nor_on_numbers_of_pservers(place: Place, workspace: Path) -> None:
    two = "--worker_num=2"
    here = trained(LocalPlace(1), workspace, two)
    many = ("--server_num=3", "--ports_num=2", "--ports_num_for_sparse=2")
    assert trained(place, workspace, two, *many) == here


def test_a_restart_ends_with_the_bits_of_an_undisturbed_run(place: Place, workspace: Path) -> None:
    numbers = ("--server_num=2", "--worker_num=2")
    here = trained(LocalPlace(1), workspace, *numbers)
    write(workspace, hook="os.environ['PSLAUNCH_EPOCH'] == '0' and event.pass_id == 1 and signal.pause()")
    options = (*numbers, "--snapshot_steps=2", "--max_restarts=1", *QUICK)
    with running(place, workspace, *options) as job:
        job.until(lambda _: job.lines("trainer/0").count("training") == 2, "the second pass")
        os.kill(job.pid("pserver/1"), signal.SIGKILL)
        assert job.launcher.wait() == codes.OK, job.launcher.output()
    assert [e["epoch"] for e in job.events() if e["event"] == "restart"] == [1, 1]
    assert hash_model(place.workspaces(workspace)[0]) == here


SLOW_AFTER_NOTICE = """\
if event.pass_id == 1 and os.environ["PSLAUNCH_RANK"] == "0":
            while not os.path.exists(os.environ["PSLAUNCH_PROGRESS"] + ".cut"):
                time.sleep(0.01)
    if isinstance(event, paddle.event.EndIteration) and event.pass_id:
        time.sleep(0.05)  # the snapshot is whole some steps later"""


def test_a_request_to_end_waits_for_a_snapshot_from_which_another_job_goes_on(
    place: Place, workspace: Path
) -> None:
    numbers = ("--server_num=2", "--worker_num=2", "--num_passes=4")
    here = trained(LocalPlace(1), workspace, *numbers)
    write(workspace, hook=SLOW_AFTER_NOTICE)
    with running(place, workspace, *numbers, "--snapshot_steps=1000", "--grace=30") as job:
        job.until(lambda _: job.lines("trainer/0").count("training") == 2, "the second pass")
        job.launcher.proc.send_signal(signal.SIGTERM)
        assert job.launcher.wait() == codes.TERM, job.launcher.output()
    assert job.end()["reason"].endswith("(SIGTERM), after a snapshot of step 14")
    if place.name == "k8s":
        return  # its pods took the snapshot along
    write(workspace)
    again = succeeded(place, workspace, *numbers, "--resume")
    assert any(line.startswith("the training goes on from step 14: ") for line in again.lines("trainer/0"))
    assert again.lines("trainer/0").count("training") == 2  # of passes 2 and 3
    assert hash_model(place.workspaces(workspace)[0]) == here


def test_training_writes_its_logs_and_reports_progress(place: Place, workspace: Path) -> None:
    write(workspace)
    job = succeeded(place, workspace, "--server_num=1", "--worker_num=2", "--num_passes=1")
    log = job.log_of("trainer/0").parent
    assert "Server listening on" in job.log_of("pserver/0").read_text()
    assert (
        "training" in job.log_of("trainer/0").read_text()
        and "training" in job.log_of("trainer/1").read_text()
    )
    assert "pass 0" in (log / "paddle_trainer.INFO").read_text().lower()
    assert "connected" in (log / "paddle_pserver2.INFO").read_text()
    progress = [e for e in job.events() if e["event"] == "progress"]
    assert {e["process"] for e in progress if e.get("state") == "finished"} == {
        "pserver/0",
        "trainer/0",
        "trainer/1",
    }
    assert max(e.get("pass", 0) for e in progress) == 0  # --num_passes=1 won over the program's 2
    assert any("num_passes" in line for line in job.lines("trainer/0"))


@pytest.mark.parametrize(
    ("who", "how", "code"), [("pserver/0", signal.SIGKILL, 137), ("trainer/1", signal.SIGSEGV, 139)]
)
def test_a_killed_process_ends_the_job_and_is_named(
    place: Place, workspace: Path, who: str, how: signal.Signals, code: int
) -> None:
    write(workspace, hook="sys.stdin.read() if os.environ['PSLAUNCH_RANK'] == '0' else signal.pause()")
    with running(place, workspace, *QUICK, "--server_num=2", "--worker_num=2") as job:
        job.until_printed("training", ["trainer/1"])
        os.kill(job.pid(who), how)
        assert job.launcher.wait() == code
        failure = job.end()["failure"]
        assert failure["what"] == who and how.name in failure["text"]
    until_nothing_runs(1.0)


def test_two_jobs_at_once_do_not_disturb_each_other(place: Place, workspace: Path) -> None:
    other = workspace.parent / "other"
    other.mkdir()
    write(other, hook="sys.exit(9) if os.path.exists('go') else signal.pause()")
    alone = trained(LocalPlace(1), workspace, "--worker_num=2")
    with running(place, other, *QUICK, "--worker_num=2") as paused:
        paused.until_printed("training", ["trainer/0", "trainer/1"])
        assert trained(place, workspace, "--worker_num=2") == alone
        os.kill(paused.pid("trainer/0"), 0)
        paused.launcher.proc.send_signal(signal.SIGTERM)
        assert paused.launcher.wait() == codes.TERM


@pytest.mark.seam
@pytest.mark.standing
def test_a_busy_port_that_was_given_is_named_with_its_holder(place: StandingPlace, workspace: Path) -> None:
    write(workspace)
    with place.holding_port() as (port, pid):
        code, job = finished(place, workspace, f"--port={port}")
    assert code == codes.SERVICE
    text = job.end()["failure"]["text"]
    assert str(port) in text and f"pid {pid}" in text
