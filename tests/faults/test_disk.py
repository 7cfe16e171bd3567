"""Every ending, third part: the disk of the logs is full, before the job starts, in its midst, at its end."""

from __future__ import annotations

import re
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from pslaunch.node import codes
from support.disks import fill, mounted, small_disk
from support.faults import control
from support.jobs import FabricPlace, Job, Place, finished, running, succeeded
from support.process import started
from support.trainings import TRAIN
from testbed import Hosts

TALKS = """
import os, signal, sitecustomize
here, there = os.pipe()
os.set_blocking(there, False)
signal.set_wakeup_fd(there)  # pause() would miss what comes just before it
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"told\\n"))
if os.environ["PSLAUNCH_RANK"] == "1":
    sitecustomize.moment("begin")
    os.write(1, b"more than the disk can take\\n" * int(os.environ.get("TIMES", "0")))
while True:
    os.read(here, 1)
"""
OPTIONS = ("--server_num=0", "--worker_num=2", "--grace=1", "--lost_after=60")
GONE_WITHIN_S = 1.0 + 2.0


@pytest.mark.parametrize("place", ["local", "local_cluster"], indirect=True)
def test_a_read_only_workspace_runs_with_another_log_dir(
    place: Place, workspace: Path, tmp_path: Path
) -> None:
    (workspace / "train.py").write_text("import os\nprint(os.listdir('.'))\n")
    logs = tmp_path / "logs"
    with mounted(workspace, "--bind", str(workspace)):
        subprocess.run(["mount", "-o", "remount,ro,bind", str(workspace)], check=True)
        job = succeeded(place, workspace, "--server_num=0", f"--log_dir={logs}")
    assert job.lines("trainer/0") == ["['train.py']"]
    assert (logs / "nodefile").read_text() == "0\n"
    assert len((logs / "nodes").read_text().split()) == place.nodes


@pytest.mark.parametrize("when", ["starting", "ending"])
def test_a_log_that_takes_nothing_ends_the_job_and_is_named(place: Place, workspace: Path, when: str) -> None:
    log = workspace / "log/train.1.log"
    with control("agent nodefile 1", "trainer/1 begin 1") as ctl:
        env = ctl.env() | {"TIMES": "1" if when == "starting" else "0"}
        with running(place, workspace, *OPTIONS, env=env, text=TALKS) as job:
            held = ctl.held()
            log.symlink_to("/dev/full")  # takes nothing, on any machine; logs of earlier jobs are gone by now
            held.tell()
            held = ctl.held()
            if when == "ending":
                job.launcher.proc.send_signal(signal.SIGINT)  # the program has something to say to that
                assert job.launcher.wait() == codes.INT
            held.tell()
            assert job.launcher.wait() == (codes.INT if when == "ending" else codes.IO)
            ctl.until_gone(GONE_WITHIN_S)
    if when == "starting":
        failure = job.end()["failure"]
        assert failure["what"] == "trainer/1" and str(log) in failure["text"]
        assert "No space left on device" in failure["text"] and "--log_dir" in failure["text"]


@pytest.mark.parametrize("variable", ["TMPDIR", "XDG_STATE_HOME"])
def test_a_full_disk_beside_that_of_the_job(workspace: Path, place: Place, variable: str) -> None:
    """The run folder has the job's secret and is named; what later shells would read is no reason to fail."""
    with (
        tempfile.TemporaryDirectory() as folder,  # a run folder's path is short
        small_disk(Path(folder, "small")) as disk,
    ):
        fill(disk)
        code, job = finished(place, workspace, "--server_num=0", env={variable: str(disk)}, text="pass")
        if variable == "TMPDIR":
            said = job.end()["reason"]
            assert code == codes.IO and f"can't use {disk}/pslaunch-" in said
            assert said.endswith("/secret: No space left on device; free some space there")
        else:
            assert code == 0, job.launcher.output()


def test_full_tmpdir_of_a_host_is_named_with_its_path(hosts: Hosts, workspace: Path) -> None:
    full = hosts[1]
    full.mount_small_disk(1 << 18, "/tmp")
    full.run("sh", "-c", "cat /dev/zero > /tmp/ballast || true")
    code, job = finished(FabricPlace(hosts), workspace, "--server_num=0", text="pass")
    said = job.launcher.output()
    assert code == codes.IO, said
    path = r"/tmp/pslaunch-\w+/secret: No space left on device; free some space there"
    assert re.search(rf"\({full.name}\).*can't use {path}", job.end()["reason"]), said
    assert "in order" not in said


def test_logs_of_an_earlier_job_make_room_for_the_next_one(place: Place, workspace: Path) -> None:
    with small_disk(workspace / "small") as disk:
        (disk / "log").mkdir()
        fill(disk, "log/train.log")
        succeeded(place, workspace, *OPTIONS, f"--log_dir={disk}/log", text="print('new')")
        assert (disk / "log/train.log").read_text() == "new\n"


SHOWS_LIMIT = "import resource; print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
MANY = ("--server_num=0", "--worker_num=24", "--grace=1")


@pytest.mark.parametrize("hard", [64, 1024])
def test_open_files_are_limited_by_the_hard_limit_alone(place: Place, workspace: Path, hard: int) -> None:
    (workspace / "train.py").write_text(SHOWS_LIMIT)
    argv = place.command(workspace, MANY, ())
    with started(["prlimit", f"--nofile=64:{hard}", *argv]) as launcher:
        check_limit(Job(launcher, place), launcher.wait(), hard)


def check_limit(job: Job, code: int, hard: int) -> None:
    if hard == 1024:
        assert code == codes.OK, job.launcher.output()
        assert [job.lines(f"trainer/{i}") for i in range(24)] == [["64 1024"]] * 24
    else:
        # Where the 64th is a file with a path, the system's words have it.
        words = r"Too many open files( \(\S+\))? \(of 64; raise the hard limit"
        assert re.search(words, job.end()["failure"]["text"])


def test_full_disk_keeps_written_files(place: Place, workspace: Path) -> None:
    with small_disk(workspace / "small") as disk, control("trainer/1 begin 1") as ctl:
        env = ctl.env() | {"TIMES": str(1 << 20 >> 4)}
        with running(place, workspace, *OPTIONS, f"--log_dir={disk}/log", env=env, text=TALKS) as job:
            ctl.held().tell()
            assert job.launcher.wait() == codes.IO
            ctl.until_gone(GONE_WITHIN_S)
            assert "No space left on device" in job.end()["reason"]
            log = (disk / "log/train.1.log").read_bytes()
            assert len(log) > 100_000 and set(log.split(b"\n")[:-1]) == {b"more than the disk can take"}


def test_a_disk_that_is_full_when_the_model_is_saved_ends_the_job_and_names_the_file(
    place: Place, workspace: Path
) -> None:
    with small_disk(workspace / "output") as disk, control() as ctl:
        fill(disk)
        code, job = finished(place, workspace, "--grace=1", env=ctl.env(), text=TRAIN)
        assert code == codes.IO, job.launcher.output()
        failure = job.end()["failure"]
        assert failure["what"] == "trainer/0"
        assert (
            f"{disk}/parameters.tar could not be saved: No space left on device; free some space there"
            in failure["text"]
        )
        assert "Traceback" not in job.launcher.output()
        assert [path.name for path in disk.iterdir()] == ["ballast"]
