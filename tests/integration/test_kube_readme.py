"""README's commands for a try on Kubernetes, as they are printed, with little text."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from pslaunch.node import codes
from support.jobs import PSLAUNCH
from support.kube import Kube
from support.others import ROOT
from support.process import started
from support.word2vec import make_workspace

BLOCKS = (ROOT / "README.md").read_text().split("```")[1::2]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """Make the workspace at its printed place, below `tmp_path`."""
    folder = tmp_path / "examples/word2vec/ws"
    make_workspace(folder)
    return folder


def hash_model(workspace: Path) -> str:
    return hashlib.sha256((workspace / "output/parameters.tar").read_bytes()).hexdigest()


def test_commands_of_the_readme_check_train_and_leave_nothing(
    cluster: Kube, workspace: Path, tmp_path: Path
) -> None:
    (block,) = (block for block in BLOCKS if "build/kube/kubeconfig" in block)
    check, apply = (shlex.split(line)[1:] for line in block.splitlines() if line.startswith("pslaunch "))
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["contexts"][0]["context"]["namespace"] = cluster.namespace
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    env = {**os.environ, "KUBECONFIG": str(tmp_path / "kubeconfig"), "NO_PROXY": cluster.address[0]}
    local = shutil.copytree(workspace, tmp_path / "local")
    numbers = ("--server_num=2", "--worker_num=2")
    subprocess.run(
        [*PSLAUNCH, "local", f"--job_workspace={local}", *numbers, "train.py"],
        check=True,
        capture_output=True,
    )
    checked = subprocess.run(
        [*PSLAUNCH, *check], cwd=tmp_path, env=env, check=True, capture_output=True, text=True
    )
    assert "the cluster can be used" in checked.stdout, checked.stdout
    with started([*PSLAUNCH, *apply], cwd=tmp_path, env=env) as launcher:
        assert launcher.wait(timeout_s=200.0) == 0, launcher.output()
        assert "trainer/0 | " in launcher.output()
    assert hash_model(workspace) == hash_model(local)
    assert cluster.list_names() == set()
    with started([*PSLAUNCH, *apply], cwd=tmp_path, env=env) as launcher:
        launcher.expect(r"^trainer/0 \| ", timeout_s=150.0)
        launcher.proc.send_signal(signal.SIGINT)
        assert launcher.wait(timeout_s=200.0) in (codes.INT, 0), launcher.output()  # it may be over
    assert cluster.list_names() == set()
