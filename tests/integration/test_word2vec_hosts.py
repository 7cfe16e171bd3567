"""examples/word2vec on hosts by SSH, as its pages say: conf.py is filled in, then `sh run.sh`."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pslaunch.node import codes
from support.jobs import PSLAUNCH
from support.process import started
from testbed import Hosts

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/word2vec"


@pytest.fixture
def example(tmp_path: Path, hosts: Hosts) -> Path:
    """A copy of the example with a small workspace; conf.py names the hosts, all else in it stays."""
    folder = tmp_path / "word2vec"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("ws", "__pycache__"))
    prepare = [sys.executable, str(folder / "prepare.py"), "--corpus", str(ROOT / "LICENSE")]
    subprocess.run(prepare, check=True, capture_output=True)
    conf = (folder / "conf.py").read_text()
    names = ", ".join(f'"{host.user}@{host.name}"' for host in hosts)
    conf, n = re.subn(r"HOSTS = \[.*?\]", f"HOSTS = [{names}]", conf, flags=re.DOTALL)
    conf, m = re.subn(r'ROOT_DIR = ".*"', f'ROOT_DIR = "{hosts.root_dir}"', conf)
    assert (n, m) == (1, 1)
    (folder / "conf.py").write_text(conf)
    return folder


def test_run_sh_trains_on_hosts(example: Path, hosts: Hosts, wheelhouse: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    argv = hosts.as_user(
        ["sh", str(example / "run.sh"), f"--wheelhouse={wheelhouse}", f"--fetch_output={model}"]
    )
    with started(argv, env=env, cwd=Path("/")) as launcher:
        assert launcher.wait(timeout_s=110) == codes.OK, launcher.output()
    logs = [host.root / "word2vec/log" for host in hosts]
    assert all("pass 4" in (log / "train.log").read_text() for log in logs)
    assert all((log / "paddle_pserver2.INFO").exists() for log in logs)
    assert (model / "pass-00004").is_dir()

    # With other kernels of numpy and other threads than on the hosts: the same bits.
    other = {**os.environ, "OPENBLAS_CORETYPE": "Haswell"}
    flags = ["--ports_num=2", "--num_passes=5", "--trainer_count=3", "--server_num=3", "--worker_num=3"]
    here = [*PSLAUNCH, "local", *flags, "--job_workspace=.", "--ports_num_for_sparse=1"]
    subprocess.run(here, cwd=example / "ws", env=other, check=True, capture_output=True, timeout=110)
    assert sha256(model / "parameters.tar") == sha256(example / "ws/output/parameters.tar")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
