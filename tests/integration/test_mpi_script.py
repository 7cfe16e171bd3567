"""The script of `pslaunch mpi --script` under mpirun of both versions."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.test_by_hand import PROGRAM
from pslaunch import cli
from support import others
from support.cluster import TESTS
from support.jobs import PSLAUNCH
from support.openmpi import make_options
from support.process import started
from support.pservers import find_free_ports
from testbed import Hosts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a program and a hostfile."""
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws/train.py").write_text(PROGRAM)
    (tmp_path / "machines").write_text("localhost slots=2\n")
    return tmp_path


def write_script(folder: Path, *options: str) -> None:
    own = ("--script", "-o", "ws/start_mpi_train.sh", "-hostfile", "machines", "-n", "2")
    python = f"--python={sys.executable}"
    port = ("--port", str(find_free_ports(2)), "--ports_num_for_sparse=1")
    argv = [*PSLAUNCH, "mpi", *own, python, *port, "-x", f"PYTHONPATH={TESTS}", *options, "ws/train.py"]
    subprocess.run(argv, cwd=folder, check=True)


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


@pytest.fixture
def page(hosts: Hosts) -> Iterator[Path]:
    """A folder that all hosts share, as after the page's steps, with a program and a plain hostfile."""
    path = hosts.folder / "page"
    (path / "ws").mkdir(parents=True)
    (path / "ws/train.py").write_text(PROGRAM)
    (path / "ws/machines").write_text("".join(f"{host.name}\n" for host in hosts))
    yield path
    shutil.rmtree(path)


def test_line_of_the_page_trains_on_hosts_beside_a_pserver_of_somebody_else(hosts: Hosts, page: Path) -> None:
    options = [word for word in make_options(hosts, 5) if not word.startswith(("--root_dir", "--mpirun"))]
    for host in hosts:
        host.show_installation()
    own = ("--script", "-o", "ws/start_mpi_train.sh", "-hostfile", "ws/machines", "-n", "3")
    words = ("--ports_num_for_sparse=1", "-x", f"PYTHONPATH={TESTS}", f"--python={sys.executable}")
    mpirun = str(others.mpirun(5))
    argv = [*PSLAUNCH, "mpi", *own, *words, f"--mpirun={mpirun}", "ws/train.py"]
    subprocess.run(argv, cwd=page, check=True)
    line = hosts.as_user([mpirun, *options, "-hostfile", "machines", "-n", "3", "./start_mpi_train.sh"])
    theirs = [sys.executable, "-m", "pslaunch.runtime.pserver", "--port=7300", "--num_gradient_servers=1"]
    with hosts[0].running(*theirs) as pserver:
        pserver.expect("Server listening")
        with started(["sh", "-c", 'cd "$0" && exec "$@"', str(page / "ws"), *line]) as job:
            code = job.wait()
            logs = {log.name: log.read_text() for log in (page / "ws/log").iterdir()}
            assert code == 0, (job.output(), logs)
        digests = [re.findall("^digest (.*)$", logs[f"train.{i}.log"], re.MULTILINE) for i in range(3)]
        assert digests[0] and digests == digests[:1] * 3 and "server.log" in logs
        assert pserver.proc.poll() is None


def test_failed_trainer_ends_the_pserver_of_the_script(folder: Path) -> None:
    mpirun = str(others.mpirun(4))
    (folder / "ws/train.py").write_text("import pslaunch.runtime\nraise SystemExit(7)")
    write_script(folder)
    line = [mpirun, "--allow-run-as-root", "-hostfile", "machines", "-n", "2", "ws/start_mpi_train.sh"]
    with started(["sh", "-c", 'cd "$0" && exec "$@"', str(folder), *line]) as job:
        assert job.wait() == 7, job.output()


@pytest.mark.parametrize(
    ("program", "options", "words"),
    [
        ("import paddle", ["-n", "2"], "--script needs the hostfile of its mpirun: -hostfile FILE"),
        ("", ["-H", "a", "--server_num=0"], "--script starts bundled pservers only"),
    ],
)
def test_script_without_its_needs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    program: str, options: list[str], words: str,
) -> None:  # fmt: skip
    others.mpirun(4)
    (tmp_path / "train.py").write_text(program)
    monkeypatch.chdir(tmp_path)
    assert cli._run(["mpi", "--script", *options]) == 2
    assert words in capfd.readouterr().err and [p.name for p in tmp_path.iterdir()] == ["train.py"]
