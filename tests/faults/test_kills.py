"""Training that is killed and restarted, or resumed, ends with the bits of an undisturbed run: who, and when.

The trainer of rank 1 kills, so that the step is exact; the moment within the next step is as it happens.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from pslaunch.node import codes
from support.jobs import QUICK, LocalPlace, finished, hash_model, succeeded, until_nothing_runs
from support.word2vec import make_workspace

STEPS = 24  # of the example with little text: 8 passes of 3 batches
WHEN = {"first": 1, "at a cut": 10, "between": 13, "last": STEPS}
KILLS = """
import os, signal
import pslaunch.runtime as paddle
import train

def read_parent(pid):
    with open(f"/proc/{pid}/stat") as f:
        return int(f.read().rpartition(")")[2].split()[1])

def find(process):
    agent = os.getppid()
    guards = {"agent": agent, "keeper": read_parent(agent), "launcher": read_parent(read_parent(agent))}
    role, _, rank = process.partition("/")
    for pid in [] if process in guards else [int(name) for name in os.listdir("/proc") if name.isdecimal()]:
        try:
            words = open(f"/proc/{pid}/environ", "rb").read().split(b"\\0")
        except OSError:
            continue
        here = f"PSLAUNCH_JOB_ID={os.environ['PSLAUNCH_JOB_ID']}".encode() in words
        if here and {f"PSLAUNCH_ROLE={role}".encode(), f"PSLAUNCH_RANK={rank}".encode()} <= {*words}:
            return pid
    return guards[process]

whole = paddle.trainer.SGD.train

def train_and_kill(self, *args, event_handler, **named):
    steps = 0
    def handle(event):
        nonlocal steps
        event_handler(event)
        if isinstance(event, paddle.event.EndIteration):
            steps += 1
            if os.environ["PSLAUNCH_RANK"] == "1" and steps == int(os.environ["AT"]):
                os.kill(find(os.environ["WHO"]), signal.SIGKILL)
    return whole(self, *args, event_handler=handle, **named)

if os.environ["PSLAUNCH_EPOCH"] == "0" and os.environ["WHO"]:
    paddle.trainer.SGD.train = train_and_kill
train.main()
"""
NUMBERS = ("--server_num=2", "--worker_num=2", "--ports_num_for_sparse=1")


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The example's workspace, and the digest of its model."""
    folder = tmp_path_factory.mktemp("example") / "ws"
    make_workspace(folder)
    (folder / "kills.py").write_text(KILLS)
    train(folder, "", 0)
    return folder, hash_model(folder)


def train(workspace: Path, who: str, at: int, *options: str, code: int = codes.OK) -> Sequence[int]:
    """Run the example with a kill; return the steps from which it was restarted."""
    words = (*NUMBERS, *QUICK, f"--env=WHO={who}", f"--env=AT={at}", *options)
    got, job = finished(LocalPlace(1), workspace, *words, program=["kills.py"])
    assert got == code, job.launcher.output()
    return [e["step"] for e in job.events() if e["event"] == "restart" and e["state"] == "running"]


@pytest.fixture
def workspace(example: tuple[Path, str], tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    shutil.copytree(example[0], folder, ignore=shutil.ignore_patterns("output", "log", ".pslaunch"))
    return folder


@pytest.mark.parametrize("at", WHEN.values(), ids=WHEN.keys())
@pytest.mark.parametrize("who", ["pserver/1", "trainer/0", "trainer/1", "agent", "keeper"])
def test_a_restart(example: tuple[Path, str], workspace: Path, who: str, at: int) -> None:
    options = ("--snapshot_steps=5", "--max_restarts=1", "--restart_after=0")
    (step,) = train(workspace, who, at, *options)
    assert hash_model(workspace) == example[1]
    assert (step or 0) <= at


def test_another_job_goes_on_after_the_launcher_was_killed(
    example: tuple[Path, str], workspace: Path
) -> None:
    train(workspace, "launcher", 19, "--snapshot_steps=5", code=codes.SIGNAL_BASE + signal.SIGKILL)
    until_nothing_runs(10.0)
    job = succeeded(LocalPlace(1), workspace, *NUMBERS, "--resume", "--env=WHO=", program=["kills.py"])
    assert any(line.startswith("the training goes on from step") for line in job.lines("trainer/0"))
    assert hash_model(workspace) == example[1]
