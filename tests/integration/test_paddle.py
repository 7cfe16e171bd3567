"""An unmodified PaddlePaddle Fleet program under `pslaunch local`: it trains, and it ends as it should.

The endings are those that PaddlePaddle's own launcher gets wrong: workers that crash give 0, a server that is
killed or a worker that raises while another is in a barrier hang, and TERM leaves all of them behind.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.jobs import Job, LocalPlace, running, until_nothing_runs
from support.others import paddle_python, program

pytestmark = pytest.mark.slow
GLOO = "--env=PADDLE_WITH_GLOO=1"  # workers wait for each other, and barriers are barriers
WAIT_S = 90.0  # PaddlePaddle looks for its server every 3 s
GONE_S = 2.0


@contextlib.contextmanager
def fleet(workspace: Path, *options: str, wrong: str = "") -> Iterator[Job]:
    """The program with one server and two workers; `wrong` are options of its own."""
    name = program("fleet_train.py", workspace)
    command = [f"--python={paddle_python()}", "--server_num=1", "--worker_num=2", *options]
    with running(LocalPlace(1), workspace, *command, program=[name, *wrong.split()]) as job:
        yield job
    until_nothing_runs(GONE_S)


def until_training(job: Job) -> None:
    workers = ["trainer/0", "trainer/1"]

    def both(events: list[dict[str, object]]) -> bool:
        said = {e["process"] for e in events if e["event"] == "line" and e["text"] == "training"}
        return said >= set(workers)

    job.until(both, "both workers train", timeout_s=WAIT_S)


def test_asynchronous_training_ends_with_0_and_results_of_both(workspace: Path) -> None:
    with fleet(workspace, GLOO) as job:
        assert job.launcher.wait(timeout_s=WAIT_S) == 0, job.launcher.output()
        assert job.end()["reason"] == "all trainers ended with 0"
        for rank in (0, 1):
            text = "\n".join(job.lines(f"trainer/{rank}"))
            found = re.search(rf"^worker {rank}: loss (\S+) -> (\S+)$", text, re.MULTILINE)
            assert found and float(found[2]) < float(found[1]) / 2, text
    assert "training" in (workspace / "log/train.1.log").read_text()
    assert (workspace / "log/server.log").read_text()


def test_workers_that_crash_fail_the_job(workspace: Path) -> None:
    with fleet(workspace, wrong="--crash 0 1") as job:
        assert job.launcher.wait(timeout_s=WAIT_S) == 128 + signal.SIGABRT, job.launcher.output()
        failure = job.end()["failure"]
        assert failure["what"] in ("trainer/0", "trainer/1")
        assert failure["text"] == "was killed by SIGABRT"
        assert any("Process abort signal" in line for line in failure["tail"])


def test_a_worker_that_raises_frees_the_other_from_its_barrier(workspace: Path) -> None:
    with fleet(workspace, GLOO, wrong="--fail 1") as job:
        code = job.launcher.wait(timeout_s=WAIT_S)
        failure = job.end()["failure"]
        # A Python that ends while PaddlePaddle's threads still push gives 1 or crashes: its own code counts.
        assert code == failure["code"] != 0
        # Its sockets are closed before its Python has unwound: PaddlePaddle in the other may crash first.
        assert failure["what"] == "trainer/1" or failure["signal"], failure
        assert "RuntimeError: worker 1 has lost its data" in (workspace / "log/train.1.log").read_text()


def test_a_server_that_is_killed_ends_the_job(workspace: Path) -> None:
    with fleet(workspace, wrong="--endless") as job:
        until_training(job)
        os.kill(job.pid("pserver/0"), signal.SIGKILL)
        assert job.launcher.wait(timeout_s=WAIT_S) == 128 + signal.SIGKILL
        failure = job.end()["failure"]
        assert (failure["what"], failure["text"]) == ("pserver/0", "was killed by SIGKILL")
