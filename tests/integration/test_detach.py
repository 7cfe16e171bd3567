"""Jobs that go on by themselves, from any later shell: jobs, status, logs, stop."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pslaunch.node import codes
from pslaunch.run.jobs import NEWS
from support.jobs import PSLAUNCH, QUICK, LocalPlace, parent_of, run_pslaunch, running, until_nothing_runs
from support.process import poll_until, until_gone

TICKING = r"""
import os, signal, sys
os.write(1, b"ready\n")
while not os.path.exists(os.environ["GO"]):
    signal.sigtimedwait([], 0.05)
os.write(1, b"going\n")
sys.exit(int(open(os.environ["GO"]).read() or 0))
"""


def ok(*words: str) -> str:
    done = run_pslaunch(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextlib.contextmanager
def following(*words: str) -> Iterator[subprocess.Popen[str]]:
    """`pslaunch logs -f`; a test that fails ends it and shows its last words."""
    argv = [*PSLAUNCH, "logs", "-f", *words]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as follower:
        try:
            yield follower
        except BaseException:
            follower.kill()
            assert follower.stderr is not None
            print(follower.stderr.read())
            raise


class Free:
    """A detached job of two trainers on three nodes, which go on until they get a code."""

    def __init__(self, workspace: Path) -> None:
        self.go = workspace.parent / "go"
        (workspace / "train.py").write_text(TICKING)
        where = ("--nodes=3", f"--env=GO={self.go}", f"--job_workspace={workspace}")
        out = ok("local", "--json", "--detach", *QUICK, *where, "--server_num=0", "--worker_num=2")
        self.told = [json.loads(line) for line in out.splitlines()]
        self.id = str(self.told[0]["job"])

    def status(self) -> dict[str, Any]:
        return dict(json.loads(ok("status", self.id, "--json")))

    def end(self, code: int) -> None:
        beside = self.go.with_suffix(".new")
        beside.write_text(str(code))
        beside.rename(self.go)

    def until_ended(self) -> dict[str, Any]:
        return (
            poll_until(lambda: (s := self.status())["state"] == "ended" and s, describe="the job's end") or {}
        )


@pytest.fixture
def free(workspace: Path) -> Iterator[Free]:
    job = Free(workspace)
    yield job
    run_pslaunch("stop", "--kill", job.id)
    until_nothing_runs(5.0)


def test_it_goes_on_and_its_end_is_remembered(free: Free) -> None:
    *events, note = free.told
    assert len({e["n"] for e in events}) == len(events) and "n" not in note and free.id in note["text"]
    listed = [json.loads(line) for line in ok("jobs", "--json").splitlines()]
    assert [j["state"] for j in listed if j["job"] == free.id] == ["running"]
    assert {p["process"]: p["state"] for p in free.status()["processes"]} == {
        "trainer/0": "running",
        "trainer/1": "running",
    }
    with following(free.id) as follower:  # an observer that goes does not matter
        assert follower.stdout is not None
        follower.stdout.readline()
        follower.kill()
    free.end(0)
    status = free.until_ended()
    assert status["code"] == 0
    until_nothing_runs(5.0)
    assert ok("logs", free.id, "trainer/1").splitlines() == ["ready", "going"]


def test_a_failure_is_remembered_too(free: Free) -> None:
    alive = free.status()
    (listed,) = [j for j in map(json.loads, ok("jobs", "--json").splitlines()) if j["job"] == free.id]
    with following(free.id) as follower:
        assert follower.stdout is not None and follower.stdout.readline().endswith("| ready\n")
        free.end(3)
        told = follower.communicate(timeout=60)[1]
    assert follower.returncode == 3
    status = free.until_ended()
    assert status["code"] == 3 and "ended with 3" in status["reason"]
    logs = {p["process"]: p["log"] for p in alive["processes"]}
    failure = status["failure"]
    assert failure["log"] == logs[failure["what"]] and failure["tail"][-1] == "going"
    first, log, *tail, end = [line.removeprefix("pslaunch  | ") for line in told.splitlines()]
    assert re.fullmatch(rf"FAILED: {failure['what']} on node \d \(\S+\): ended with 3", first)
    assert log == f"  log: {failure['log']}, which ends with:" and tail[-1] == "    going"
    assert end.startswith("failed after ")
    assert list(listed) == list(alive) == list(status) == list(NEWS)
    assert status["elapsed_s"] >= alive["elapsed_s"] > 0
    assert (alive["code"], alive["failure"], listed["elapsed_s"]) == (None, None, None)
    assert logs == {p["process"]: p["log"] for p in status["processes"]}


def test_stop_ends_a_detached_job(free: Free) -> None:
    ended = {"job": free.id, "state": "ended", "code": codes.TERM, "reason": "pslaunch stop"}
    assert json.loads(ok("stop", free.id, "--json")) == ended
    until_nothing_runs(2.0)
    assert free.status()["code"] == codes.TERM
    assert "not running" in ok("stop", free.id)
    assert json.loads(ok("stop", free.id, "--json")) == ended


def test_launcher_reports_that_another_shell_stopped_its_job(workspace: Path) -> None:
    (workspace / "train.py").write_text(
        "import signal; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); signal.pause()"
    )
    with running(LocalPlace(1, "--head=node"), workspace, "--server_num=0", "--grace=600") as job:
        job.until_printed("ready", ["trainer/0"])
        assert "has ended" in ok("stop", "--kill", job.get_job()["job"])
        assert job.launcher.wait() == codes.TERM
        assert job.end()["reason"] == "pslaunch stop"


def test_when_node_0_dies_the_others_end_and_the_job_is_lost(free: Free) -> None:
    status = free.status()
    program = next(p["pid"] for p in status["processes"] if p["process"] == "trainer/0")
    os.kill(parent_of(program), signal.SIGKILL)
    until_gone(program, within_s=1 + 2)
    until_nothing_runs(1 + 2)
    assert free.status()["state"] == "lost"


def run_led(workspace: Path, *options: str) -> tuple[int, str]:
    """A job that was led by a node to its end: exit code and id."""
    done = run_pslaunch("local", "--json", "--head=node", *QUICK, f"--job_workspace={workspace}", *options)
    first = json.loads(done.stdout.splitlines()[0])
    assert first["event"] == "job", done.stdout + done.stderr
    return done.returncode, str(first["job"])


def test_results_of_a_later_job_are_never_taken_for_those_of_an_earlier_one(workspace: Path) -> None:
    (workspace / "train.py").write_text("import os; print('of', os.environ['PSLAUNCH_JOB_ID'])")
    options = ("--server_num=0", "--nodes=2", "--worker_num=2", "--keep_logs=0")
    jobs = [run_led(workspace, *options)[1] for _ in "12"]
    folder = workspace.parent / "results"
    assert ok("logs", jobs[1], "trainer/1") == f"of {jobs[1]}\n"
    assert "train.log" in ok("fetch", jobs[1], str(folder / "second"))
    for words in (("logs", jobs[0]), ("fetch", jobs[0], str(folder / "first"))):
        done = run_pslaunch(*words)
        assert (done.returncode, done.stdout) == (codes.IO, "")
        assert f"now has the files of job {jobs[1]}, no longer those of {jobs[0]}" in done.stderr
    assert not [path for path in (folder / "first").rglob("*") if path.is_file()]


def test_results_are_those_of_the_job_and_not_of_an_earlier_one(workspace: Path) -> None:
    (workspace / "train.py").write_text(
        "import os; n = len(os.listdir('output')); print(n) if n else open('output/model', 'w')"
    )
    jobs = [run_led(workspace, "--server_num=0")[1] for _ in "12"]
    folder = workspace.parent / "results"
    done, left_out = (
        run_pslaunch("fetch", jobs[1], str(folder)),
        f"model: of an earlier job, left in {workspace}/output",
    )
    assert done.returncode == 0 and "output" not in done.stdout, done.stdout + done.stderr
    assert f"not fetched: {left_out}" in done.stderr
    told = json.loads(ok("fetch", jobs[1], str(folder), "--json"))
    assert told == {"job": jobs[1], "brought": done.stdout.splitlines(), "left_out": [left_out]}


def test_a_job_that_nobody_reads_is_remembered_with_the_code_of_its_launcher(workspace: Path) -> None:
    (workspace / "train.py").write_text("import time\nwhile True: print(flush=True); time.sleep(0.01)")
    words = ("--head=node", *QUICK, "--server_num=0", f"--job_workspace={workspace}")
    argv = [*PSLAUNCH, "local", "--json", *words]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as launcher:
        assert launcher.stdout is not None
        job = json.loads(launcher.stdout.readline())["job"]
        launcher.stdout.close()
        assert launcher.wait() == codes.IO
    assert json.loads(ok("status", job, "--json"))["code"] == codes.IO


def test_job_without_a_started_program_has_no_output_and_reports_the_reason(workspace: Path) -> None:
    (workspace / "train.py").touch()
    (workspace / "output").mkdir()
    (workspace / "output/model").write_text("of an earlier job")
    with socket.create_server(("127.0.0.1", 0)) as holder:
        code, job = run_led(workspace, "--server_num=1", f"--port={holder.getsockname()[1]}")
    assert code == codes.SERVICE
    done = run_pslaunch("logs", job)
    assert (done.returncode, done.stdout) == (codes.FAILED, "")
    assert f"{job} ended before its programs ran: " in done.stderr and "already in use" in done.stderr
    done = run_pslaunch("fetch", job, str(workspace.parent / "results"))
    assert done.returncode == codes.FAILED and f"{job} ended before its programs ran: " in done.stderr
    assert [Path(path).name for path in done.stdout.splitlines()] == ["events.jsonl"]
    told = ok("status", job)
    assert "not started" in told and "waiting" not in told


@pytest.mark.parametrize("detach", [True, False])
def test_a_job_that_later_shells_could_not_find_is_not_left(workspace: Path, *, detach: bool) -> None:
    (workspace / "train.py").write_text("open('ran', 'w')")
    where = (f"--job_workspace={workspace}", "--server_num=0", "--nodes=2")
    own = ("--head=node", *(["--detach"] if detach else []), *QUICK)
    done = run_pslaunch("local", *own, *where, env={"XDG_STATE_HOME": "/proc/no"})
    assert (workspace / "ran").exists() != detach
    if detach:
        assert done.returncode == codes.IO and len(done.stderr.splitlines()) == 1
        assert re.search(r"find it: /proc/no/pslaunch/jobs/.*\.json: No such file", done.stderr), done.stderr
    else:
        assert done.returncode == 0
    until_nothing_runs(5.0)
