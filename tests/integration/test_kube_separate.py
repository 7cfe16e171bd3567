"""Attached jobs whose pservers have pods, and a Job, of their own."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

from integration.test_kube_jobs import LEARN, find_hashes
from pslaunch.node import codes
from support.jobs import PSLAUNCH, LocalPlace, finished
from support.kube import Kube
from support.process import Started, started
from testbed.kube.cluster import PYTHON

FAIL = """
import os, signal, sys
if os.uname().nodename.endswith("-server-1"):
    sys.exit(9)
print("ready", flush=True)
signal.pause()
"""
WAIT = "import signal; print('ready', flush=True); signal.pause()"


@contextlib.contextmanager
def applied(cluster: Kube, workspace: Path, *options: str) -> Iterator[Started]:
    """An attached job of two trainers and two pservers, each in a pod."""
    where = (f"--kubeconfig={cluster.kubeconfig}", f"--namespace={cluster.namespace}", f"--image={PYTHON}")
    pods = ("--separate", "--server_num=2", "--worker_num=2", "--grace=1")
    with started([*PSLAUNCH, "k8s", "apply", *where, *pods, *options], cwd=workspace) as launcher:
        yield launcher
        cluster.wait_until_gone()


def list_logs(workspace: Path) -> list[str]:
    return sorted(str(path.relative_to(workspace)) for path in (workspace / "log").glob("*/*.log"))


def test_bits_are_those_of_local_and_all_logs_come(cluster: Kube, workspace: Path) -> None:
    (workspace / "train.py").write_text(LEARN)
    code, job = finished(LocalPlace(1), workspace, "--server_num=2", "--worker_num=2")
    assert code == 0, job.launcher.output()
    here = find_hashes(job.launcher.output().replace('"', "\n").splitlines())
    with applied(cluster, workspace, "--memory=300Mi", "--server_memory=200Mi") as launcher:
        assert launcher.wait() == 0, launcher.output()
        assert find_hashes(launcher.output().splitlines()) == here
    assert len({Path(log).parts[1] for log in list_logs(workspace)}) == 4  # nodes


def test_failed_pserver_ends_both_jobs(cluster: Kube, workspace: Path) -> None:
    (workspace / "train.py").write_text(FAIL)
    with applied(cluster, workspace, "--server=script") as launcher:
        assert launcher.wait() == 9, launcher.output()
        assert "FAILED: pserver/1 on node 3" in launcher.output()


def test_interrupt_removes_both_jobs(cluster: Kube, workspace: Path) -> None:
    (workspace / "train.py").write_text(WAIT)
    with applied(cluster, workspace, "--server=script") as launcher:
        launcher.until(lambda said: said.count("| ready") == 4, "all programs")
        jobs = cluster.batch.list_namespaced_job(cluster.namespace).items
        names = sorted(job.metadata.name for job in jobs)
        (owner,) = next(job for job in jobs if job.metadata.name == names[1]).metadata.owner_references
        assert names == [owner.name, f"{owner.name}-server"]
        launcher.proc.send_signal(signal.SIGINT)
        assert launcher.wait() == codes.INT
