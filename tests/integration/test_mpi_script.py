"""The script of `pslaunch mpi --script plain` under mpirun of both versions, without a launcher."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from integration.test_by_hand import PROGRAM, free_ports
from pslaunch import cli
from support import others
from support.cluster import TESTS
from support.jobs import PSLAUNCH
from support.process import started


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a program and a hostfile."""
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws/train.py").write_text(PROGRAM)
    (tmp_path / "machines").write_text("localhost slots=2\n")
    return tmp_path


def write_script(folder: Path, *options: str) -> None:
    own = ("--script=plain", "-o", "ws/start_mpi_train.sh", "-hostfile", "machines", "-n", "2")
    python = f"--python={sys.executable}"
    port = ("--port", str(free_ports(2)), "--ports_num_for_sparse=1")
    argv = [*PSLAUNCH, "mpi", *own, python, *port, "-x", f"PYTHONPATH={TESTS}", *options, "ws/train.py"]
    subprocess.run(argv, cwd=folder, check=True)


@pytest.mark.parametrize("major", [4, 5])
def test_script_trains_by_the_line_of_the_page(folder: Path, major: int) -> None:
    mpirun = str(others.mpirun(major))
    write_script(folder, f"--mpirun={mpirun}")
    line = [mpirun, "--allow-run-as-root", "-hostfile", "machines", "-n", "2", "ws/start_mpi_train.sh"]
    with started(["sh", "-c", 'cd "$0" && exec "$@"', str(folder), *line]) as job:
        logs = [folder / f"ws/log/train.{rank}.log" for rank in range(2)]
        assert job.wait() == 0, [job.output(), *(log.read_text() for log in logs)]
    digests = [re.findall("^digest (.*)$", log.read_text(), re.MULTILINE) for log in logs]
    assert digests[0] and digests[0] == digests[1]
    assert (folder / "ws/log/server.log").exists()


def test_failed_trainer_ends_the_pserver_of_the_script(folder: Path) -> None:
    mpirun = str(others.mpirun(4))
    (folder / "ws/train.py").write_text("raise SystemExit(7)")
    write_script(folder)
    line = [mpirun, "--allow-run-as-root", "-hostfile", "machines", "-n", "2", "ws/start_mpi_train.sh"]
    with started(["sh", "-c", 'cd "$0" && exec "$@"', str(folder), *line]) as job:
        assert job.wait() == 7, job.output()


@pytest.mark.parametrize(
    ("program", "options", "words"),
    [
        ("", ["-n", "2"], "--script=plain needs the hostfile of its mpirun: -hostfile FILE"),
        ("", ["-H", "a", "--server_num=0"], "--script=plain starts bundled pservers only"),
    ],
)
def test_script_without_its_needs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    program: str, options: list[str], words: str,
) -> None:  # fmt: skip
    others.mpirun(4)
    (tmp_path / "train.py").write_text(program)
    monkeypatch.chdir(tmp_path)
    assert cli._run(["mpi", "--script=plain", *options]) == 2
    assert words in capfd.readouterr().err and [p.name for p in tmp_path.iterdir()] == ["train.py"]
