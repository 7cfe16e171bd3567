"""Pods that do not come, are taken away or do not reach each other, on the run's cluster."""

from __future__ import annotations

from pathlib import Path

from faults.test_kube import BOTH, HELD, WAIT, place
from pslaunch.node import codes
from support.jobs import QUICK, running
from support.kube import Kube, KubePlace


def hold(workspace: Path) -> str:
    """Write a job whose pods wait for `place`; return the option for them."""
    (workspace / "train.py").write_text(WAIT)
    (workspace / "held.yaml").write_text(HELD)
    return f"--patch={workspace}/held.yaml"


def test_second_pod_without_a_machine_gives_the_reason_of_the_scheduler(
    cluster: Kube, workspace: Path
) -> None:
    options = (*BOTH, *QUICK, hold(workspace), "--wait_timeout=8")
    with running(KubePlace(cluster, 2), workspace, *options) as job:
        place(cluster, 1, "node9")
        place(cluster, 0)
        assert job.launcher.wait() == codes.PREFLIGHT, job.launcher.output()
        assert "no machine suits it: 0/2 nodes" in job.end()["reason"], job.launcher.output()
