"""Packages of any size on a real cluster: in a ConfigMap, or over the launcher's line to pod 0."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from pslaunch.backends.k8s_manifests import MAX_PACKAGE_BYTES
from pslaunch.node import codes
from support.jobs import PSLAUNCH, Job, finished, running
from support.kube import Kube, KubePlace
from support.packages import fill_package
from support.process import poll_until
from support.proxy import CuttingProxy
from support.pservers import HOST
from testbed.kube.cluster import PYTHON

MIB = 1024 * 1024
TRAINERS = ("--server_num=0", "--worker_num=2")
HASH = """
import hashlib
with open("data", "rb") as f:
    print(hashlib.sha256(f.read()).hexdigest(), flush=True)
"""


def write_package(workspace: Path, data_bytes: int) -> None:
    (workspace / "train.py").write_text(HASH)
    (workspace / "data").write_bytes(random.Random(1).randbytes(data_bytes))


def hash_data(workspace: Path) -> str:
    return hashlib.sha256((workspace / "data").read_bytes()).hexdigest()


def find_way(job: Job) -> str:
    """Return the said way of the package."""
    (said,) = (e["text"] for e in job.events() if e.get("text", "").startswith("the package goes"))
    return str(said)


@pytest.mark.parametrize(
    ("packed_bytes", "way"),
    [
        (MAX_PACKAGE_BYTES, "into a ConfigMap: 921,600 bytes when compressed"),
        (MAX_PACKAGE_BYTES + 1, "over the line to pod 0: it is over 900 KiB when compressed"),
    ],
)
def test_package_around_the_limit_reaches_all_pods(
    cluster: Kube, workspace: Path, packed_bytes: int, way: str
) -> None:
    (workspace / "train.py").write_text(HASH)
    fill_package(workspace, packed_bytes)
    code, job = finished(KubePlace(cluster, 2), workspace, *TRAINERS)
    assert code == 0, job.launcher.output()
    assert find_way(job) == f"the package goes {way}"
    assert job.lines("trainer/0") == job.lines("trainer/1") == [hash_data(workspace)]


def test_large_package_reaches_all_pods(cluster: Kube, workspace: Path) -> None:
    write_package(workspace, 64 * MIB)
    code, job = finished(KubePlace(cluster, 2), workspace, *TRAINERS)
    assert code == 0, job.launcher.output()
    assert job.lines("trainer/0") == job.lines("trainer/1") == [hash_data(workspace)]


def test_interrupt_during_the_transfer_leaves_nothing(cluster: Kube, workspace: Path) -> None:
    write_package(workspace, MIB)
    with (workspace / "zeros").open("wb") as f:
        f.truncate(256 * MIB)  # for longer than the signal takes
    with running(KubePlace(cluster, 2), workspace, *TRAINERS) as job:
        job.until(lambda events: any(e["event"] == "dispatch" for e in events), "the transfer")
        job.launcher.proc.send_signal(signal.SIGINT)
        assert job.launcher.wait() == codes.INT, job.launcher.output()
    kinds = {e["event"] for e in job.events()}
    assert "process" not in kinds and not any((workspace / "output").iterdir())
    assert cluster.list_names() == set()


def test_transfer_to_a_detached_job_goes_on_after_each_cut(
    cluster: Kube, workspace: Path, tmp_path: Path
) -> None:
    write_package(workspace, 24 * MIB)
    proxy = CuttingProxy(socket.create_server((HOST, 0)), cluster.address, [6 * MIB] * 64)
    try:
        kubeconfig = cluster.lead_through(proxy.endpoint, tmp_path / "config")
        done = apply_detached(cluster, kubeconfig, workspace, "--nodes=2", "--worker_num=2")
        assert done.returncode == 0, done.stdout + done.stderr
        assert proxy.cut >= 3, done.stdout
        (name,) = (n.partition(" ")[2] for n in cluster.list_names() if n.startswith("job "))
        poll_until(
            lambda: hash_data(workspace) in cluster.read_log(cluster.list_pods(name)[0].metadata.name),
            describe=lambda: cluster.describe(name),
        )
        cluster.wait_for_end(name)
        ended = cluster.list_pods(name)[0].status.container_statuses[0].state.terminated
        assert ended.exit_code == 0 and json.loads(ended.message)["event"] == "end"
    finally:
        proxy.close()
        cluster.empty()


def apply_detached(
    cluster: Kube, kubeconfig: Path, workspace: Path, *options: str
) -> subprocess.CompletedProcess[str]:
    where = [f"--kubeconfig={kubeconfig}", f"--namespace={cluster.namespace}"]
    own = [*where, f"--image={PYTHON}", "--server_num=0", "--linger=1", "--detach", *options]
    argv = [*PSLAUNCH, "k8s", "apply", *own, "train.py"]
    return subprocess.run(argv, cwd=workspace, capture_output=True, text=True, check=False, timeout=240)


def test_rendered_package_over_the_limit_is_refused_with_the_remedy(workspace: Path) -> None:
    write_package(workspace, MAX_PACKAGE_BYTES)
    argv = [*PSLAUNCH, "k8s", "render", f"--image={PYTHON}", "train.py"]
    done = subprocess.run(argv, cwd=workspace, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (codes.USAGE, "")
    for words in ("is over 900 KiB when compressed", ".pslaunchignore", "--job_workspace", "k8s apply"):
        assert words in done.stderr
