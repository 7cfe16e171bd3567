"""Free jobs under mpirun: from a later shell of this machine, and to their end whatever is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pslaunch.node import codes
from support import leaks
from support.jobs import QUICK, SOON_LOST, run_pslaunch, until_nothing_runs
from support.openmpi import MpiPlace
from support.process import poll_until
from support.shells import Shell, list_files
from support.trainings import WAITING
from testbed import Hosts

THREE = ("--server_num=0", "--worker_num=3")
LOGS = ["log/0-node1/events.jsonl", *(f"log/{i}-node{i + 1}/train.log" for i in range(3))]


class Detached(NamedTuple):
    """A job of three trainers that continues by itself."""

    shell: Shell
    id: str

    def get_status(self) -> dict[str, Any]:
        return dict(json.loads(self.shell.ok("status", self.id, "--json")))


@pytest.fixture
def place(request: pytest.FixtureRequest, hosts: Hosts) -> MpiPlace:
    """Return hosts with this version of Open MPI."""
    return MpiPlace(hosts, request.param, "--detach")


def find_job(out: str) -> str:
    """Return the job's id from what a launcher printed, maybe after words of mpirun."""
    return next(str(said["job"]) for said in map(json.loads, out.splitlines()) if "job" in said)


def detach(place: MpiPlace, hosts: Hosts, workspace: Path, state: Path, *options: str) -> Detached:
    (workspace / "train.py").write_text(WAITING)
    shell = Shell(hosts, state)
    words = place.command(workspace, (*THREE, *(options or QUICK)), ())
    out = shell.ok(*words[words.index("mpi") :])
    return Detached(shell, find_job(out))


@pytest.fixture
def job(place: MpiPlace, hosts: Hosts, workspace: Path, tmp_path: Path) -> Iterator[Detached]:
    """Return a job that is ended after the test."""
    found = detach(place, hosts, workspace, tmp_path / "state")
    yield found
    found.shell.run("stop", "--kill", found.id)


@pytest.mark.parametrize("place", [5], indirect=True)
def test_later_shell_sees_the_job_fetches_from_it_and_ends_it(job: Detached, tmp_path: Path) -> None:
    shell = job.shell
    (listed,) = [json.loads(line) for line in shell.ok("jobs", "--json").splitlines()]
    assert (listed["job"], listed["state"], listed["backend"], listed["nodes"]) == (
        job.id, "running", "mpi", 3
    )  # fmt: skip
    assert {p["state"] for p in job.get_status()["processes"]} == {"running"}
    poll_until(lambda: shell.ok("logs", job.id, "trainer/2") == "ready\n", describe="its output")
    (secret,) = (tmp_path / "state").rglob("*.secret")
    assert secret.stat().st_mode & 0o777 == 0o600

    shell.ok("fetch", job.id, str(tmp_path / "got"))
    assert list_files(tmp_path / "got") == [*LOGS, "output/model-0"]

    assert "has ended" in shell.ok("stop", job.id)
    until_nothing_runs(45.0)
    status = job.get_status()
    assert (status["state"], status["code"]) == ("ended", codes.TERM)
    assert not secret.exists()
    assert shell.ok("logs", job.id, "trainer/1") == "ready\n"  # the file on its node


def find_process(words: str) -> int:
    (pid,) = (pid for pid, said in leaks.marked_processes().items() if re.match(words, said))
    return pid


@pytest.mark.parametrize(
    ("place", "who"),
    [(4, r"\S*(mpi|prte)run -n "), (5, r"\S+python\S* .*pslaunch\.backends\.leash ")],
    indirect=["place"],
)
def test_killed_mpirun_ends_the_job(job: Detached, who: str) -> None:
    os.kill(find_process(who), signal.SIGKILL)
    until_nothing_runs(45.0)
    status = job.get_status()
    assert (status["state"], status["code"]) == ("ended", codes.NODE_LOST)
    assert "lost its rank process" in status["reason"]
    for folder in Path(tempfile.gettempdir()).glob("pslaunch-mpirun-*-sessions"):
        folder.rmdir()  # with the leash killed nobody is left to remove it; mpirun has emptied it


def test_job_whose_head_is_not_reached_from_here_is_not_left_alone(
    hosts: Hosts, workspace: Path, tmp_path: Path
) -> None:
    hosts[0].hide_port(7165)
    (workspace / "train.py").write_text("import signal\nsignal.pause()")
    place = MpiPlace(hosts, 5, "--detach", "--port=7164", on=[hosts[0]])
    shell = Shell(hosts, tmp_path / "state")
    words = place.command(workspace, ("--server=script", *QUICK), ())
    done = shell.run(*words[words.index("mpi") :])
    assert done.returncode == codes.PREFLIGHT, done.stdout + done.stderr
    until_nothing_runs(45.0)
    status = json.loads(shell.ok("status", find_job(done.stdout), "--json"))
    assert (status["state"], status["code"]) == ("ended", codes.PREFLIGHT)
    assert "can't connect to the job's head on node1" in status["reason"] and "port 7165" in status["reason"]


def test_lost_head_ends_the_job_and_its_mpirun(hosts: Hosts, workspace: Path, tmp_path: Path) -> None:
    job = detach(MpiPlace(hosts, 5, "--detach"), hosts, workspace, tmp_path / "state", *SOON_LOST)
    hosts[0].crash()
    until_nothing_runs(45.0)
    listed = json.loads(job.shell.ok("jobs", "--json"))
    assert (listed["job"], listed["state"]) == (job.id, "unknown") and "node1" in listed["reason"]


def test_files_that_are_shared_with_this_machine_are_read_without_mpirun(
    workspace: Path, tmp_path: Path
) -> None:
    (workspace / "train.py").write_text(WAITING.replace("signal.pause()", ""))
    own = ("--allow-run-as-root", f"--root_dir={tmp_path / 'root'}", "--nics=lo")
    words = ("--json", "--head=node", *own, "--server_num=0", str(workspace / "train.py"))
    job = find_job(run_pslaunch("mpi", *words, check=True).stdout)
    run_pslaunch("fetch", job, str(tmp_path / "got"), env={"PATH": str(tmp_path)}, check=True)
    assert list_files(tmp_path / "got") == [
        "log/0-localhost/events.jsonl",
        "log/0-localhost/train.log",
        "output/model-0",
    ]
