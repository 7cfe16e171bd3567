"""`pslaunch.launch`: jobs of this machine from scripts, threads and asyncio, and what is left of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import pslaunch
from pslaunch.node import codes
from pslaunch.node.head import events
from support.jobs import until_nothing_runs
from support.pages import DOCS
from support.process import started, until_gone

ALONE: dict[str, Any] = {"server_num": 0, "grace": 5}
WAITING = "import signal\nprint('begun', flush=True)\nsignal.pause()\n"


@pytest.fixture
def program(workspace: Path) -> Path:
    """A program that waits until it is ended."""
    path = workspace / "train.py"
    path.write_text(WAITING)
    return path


def until_begun(job: pslaunch.Job) -> None:
    next(event for event in job.events() if event["event"] == "line" and event["text"] == "begun")


def test_a_job_that_succeeds(program: Path) -> None:
    program.write_text("import os, sys\nprint(sys.argv[1:], os.environ['A'])\n")
    job = pslaunch.launch(program, worker_num=2, args=["--lr", 0.1], env={"A": "x y"}, **ALONE)
    events = [*job.events()]
    assert (events[0]["event"], events[-1]["event"]) == ("job", "end")
    assert [*job.events()] == events
    assert job.wait() == 0
    assert job.logs("trainer/1") == ["['--lr', '0.1'] x y"]
    status = job.status()
    assert (status["state"], status["code"], status["host"]) == ("ended", 0, "localhost")
    assert [(p["process"], p["state"]) for p in status["processes"]] == [
        ("trainer/0", "exited"),
        ("trainer/1", "exited"),
    ]
    job.stop()  # nothing more to do


def test_a_job_stopped_before_it_began_says_so(program: Path) -> None:
    job = pslaunch.launch(program, **ALONE)
    job.stop()
    with pytest.raises(pslaunch.JobError, match="asked to end"):
        job.wait()


def test_a_program_that_ends_before_its_job_is_told(program: Path) -> None:
    code = f"import pslaunch; pslaunch.launch({str(program)!r}, server_num=0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "job.wait() waits for its end" in done.stderr
    until_nothing_runs(5.0)


def test_a_failure_has_its_cause_and_place(program: Path) -> None:
    program.write_text("import os\nprint('no data')\nexit(3 * (os.environ['RANK'] == '1'))\n")
    with pytest.raises(pslaunch.JobError) as caught, pslaunch.launch(program, worker_num=2, **ALONE) as job:
        next(event for event in job.events() if event["event"] == "end")  # its process has not ended yet
    e = caught.value
    assert (e.exit_code, e.process, e.host, e.tail) == (3, "trainer/1", "localhost", ("no data",))
    assert e.cause == "trainer/1 ended with 3"
    assert "FAILED: trainer/1 on node 0 (localhost)" in str(e) and "no data" in str(e)


def test_a_slow_reader_is_told_what_it_missed(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program.write_text("for n in range(100):\n    print(n)\n")
    monkeypatch.setattr(events, "MAX_EVENTS", 10)  # that are kept here
    job = pslaunch.launch(program, **ALONE)
    job.wait()
    note, first, *rest = job.events()
    assert (note["event"], note["missing"]) == ("note", first["n"]) and len(rest) == 9


def test_a_job_that_can_not_begin_says_why(program: Path) -> None:
    with pslaunch.launch(program, **ALONE) as job:
        until_begun(job)
        with pytest.raises(pslaunch.JobError, match=re.escape(str(job.status()["job"]))) as caught:
            pslaunch.launch(program, **ALONE).wait()  # the folder of its logs is in use
    with pytest.raises(pslaunch.JobError, match="Argument list too long"):
        pslaunch.launch(program, args=["x" * 200_000], **ALONE).wait()  # Linux takes 128 KiB
    assert caught.value.exit_code != 0 and not caught.value.process


@pytest.mark.parametrize("kill", [False, True])
def test_a_job_is_stopped_in_mid_run(program: Path, kill: bool) -> None:
    ignoring = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    program.write_text((ignoring if kill else "") + WAITING)
    job = pslaunch.launch(program, server_num=0, grace=1000 if kill else 5, env={"TOKEN": "s3cret"})
    until_begun(job)
    assert job.status()["state"] == "running"
    assert b"s3cret" not in Path(f"/proc/{job._launcher.pid}/cmdline").read_bytes()  # which all users read
    job.stop(kill=kill)
    assert job.status()["state"] == "ended"
    with pytest.raises(pslaunch.JobError) as caught:
        job.wait()
    assert caught.value.exit_code in (codes.TERM, codes.INT)


def test_leaving_the_block_ends_the_job(program: Path) -> None:
    with pytest.raises(KeyError), pslaunch.launch(program, **ALONE) as job:
        until_begun(job)
        raise KeyError
    assert job.status()["code"] == codes.TERM
    with contextlib.suppress(pslaunch.JobError), pslaunch.launch(program, **ALONE) as job:
        job.stop()  # told: no error when the block is left
    assert job.status()["state"] in ("ended", "lost")


def test_two_jobs_at_once_from_threads(program: Path, tmp_path: Path) -> None:
    both = threading.Barrier(2)

    def run(log_dir: Path) -> None:
        with pslaunch.launch(program, log_dir=log_dir, **ALONE) as job:
            until_begun(job)
            both.wait(60)
        found.append(job.status()["code"])

    found: list[int] = []
    threads = [threading.Thread(target=run, args=[tmp_path / name]) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [codes.TERM, codes.TERM]


def test_asyncio(program: Path) -> None:
    async def run() -> None:
        async with pslaunch.launch(program, **ALONE) as job:
            async for event in job.events_async():
                if event["event"] == "line":
                    break
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(job.wait_async(), 0.01)
        assert job.status()["code"] == codes.TERM
        assert not [t for t in threading.enumerate() if t.name.startswith("asyncio")]  # none can be cancelled
        with pytest.raises(pslaunch.JobError):
            await job.wait_async()

    asyncio.run(run())


CALLER = """
import sys, pslaunch
job = pslaunch.launch(sys.argv[1], server_num=0, grace=5)
next(event for event in job.events() if event["event"] == "line")
print(job._launcher.pid, flush=True)
job.wait()
"""


def test_a_killed_caller_leaves_nothing(program: Path) -> None:
    # A child that it forked, as multiprocessing does, still holds its end of the pipe.
    fork = "import os, signal\nif not os.fork():\n    signal.pause()\n"
    with started(
        [sys.executable, "-c", CALLER.replace("print(", f"{fork}print(", 1), str(program)]
    ) as caller:
        launcher = int(caller.expect(r"^(\d+)$")[1])
        os.kill(caller.pid, signal.SIGKILL)
        until_gone(launcher, within_s=30)
        caller.kill()
    until_nothing_runs(within_s=10)


def test_a_killed_command_line_is_an_error(program: Path) -> None:
    job = pslaunch.launch(program, **ALONE)
    until_begun(job)
    job._launcher.kill()
    with pytest.raises(pslaunch.JobError, match="exit code 137"):
        job.wait()
    assert job.status()["state"] == "lost"
    until_nothing_runs(within_s=30)


PROGRAM = """
import os, sys

def train(rate):
    print("called with", rate + 1)

if __name__ == "__main__":
    print("begun", flush=True)
    float(sys.argv[2] if sys.argv[1:] else 0)
"""
SAID = ("", "begun\n", "could not convert string to float: 'fast'", "", "job\nnode\n")
EXAMPLES = re.findall(r"```python\n(.*?)```", (DOCS / "api.md").read_text(), re.DOTALL)


@pytest.mark.parametrize(("code", "said"), [*zip(EXAMPLES, SAID, strict=True)])
def test_the_examples_of_the_page_run(program: Path, code: str, said: str) -> None:
    program.write_text(PROGRAM)
    with started([sys.executable, "-c", code], cwd=program.parent) as caller:
        assert caller.wait() == 0, caller.output()
    assert said in caller.output()
    if "launch(train" in code:
        assert "called with 1.1" in (program.parent / "log/train.1.log").read_text()
