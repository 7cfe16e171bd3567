"""Files of a job on a user's machine: whose they are, and what is executed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from support.jobs import PSLAUNCH, run_pslaunch

PROGRAM = "import os; print('umask', oct(os.umask(0)))"


def test_folders_of_a_job_are_closed_to_others_whatever_the_umask(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    argv = [*PSLAUNCH, "local", "--server_num=0", str(tmp_path / "train.py")]
    done = subprocess.run(argv, umask=0, capture_output=True, text=True, check=True)
    assert "umask 0o0\n" in done.stdout  # the program has the user's
    made = [path for path in tmp_path.rglob("*") if path.name != "train.py"]
    assert {"log", "output", ".pslaunch", "nodefile"} <= {path.name for path in made}
    assert not [path for path in made if path.stat().st_mode & 0o022]


def read_plan(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    own = ("--dry_run", "--job_workspace=/ws", "--server_num=0")
    return run_pslaunch("fabric", *own, *options, "train.py", cwd=folder)


@pytest.mark.parametrize(("mode", "owner"), [(0o666, 0), (0o664, 0), (0o644, 12345)])
def test_conf_py_of_others_is_executed_only_by_name(tmp_path: Path, mode: int, owner: int) -> None:
    if os.geteuid():
        pytest.skip("needs root, to give a file away")
    conf = tmp_path / "conf.py"
    conf.write_text("HOSTS = ['node1']\nopen('executed', 'w')\n")
    conf.chmod(mode)
    os.chown(conf, owner, owner if owner else 12345)
    refused = read_plan(tmp_path)
    assert refused.returncode == 2 and "conf.py would be executed" in refused.stderr, refused
    assert not (tmp_path / "executed").exists()
    assert read_plan(tmp_path, "--conf=conf.py").returncode == 0
    assert (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("hostfile", "more"),
    [("machines\ntouch executed #", ()), ("ma\u202echines", ()), ("machines", ("-x", "A;B=1"))],
)
def test_script_of_a_name_that_is_none_is_refused(
    tmp_path: Path, hostfile: str, more: tuple[str, ...]
) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / hostfile).write_text("localhost slots=2\n")
    own = ("--script", "-hostfile", hostfile, "-n", "2", *more, "--server=bundled", "train.py")
    done = run_pslaunch("mpi", *own, cwd=tmp_path)
    assert done.returncode == 2 and not done.stdout, done
    assert "can't be printed" in done.stderr or "no variable of this name" in done.stderr, done
