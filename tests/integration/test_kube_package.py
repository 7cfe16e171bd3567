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
LARGE_BYTES = 300 * MIB
TRAINERS = ("--server_num=0", "--worker_num=2")
HASH = """
import hashlib
with open("data", "rb") as f:
    print(hashlib.sha256(f.read()).hexdigest(), flush=True)
"""


SEE = """
import glob, os
print(*sorted(glob.glob("part-*")), os.path.realpath("lib"), flush=True)
"""


def write_package(workspace: Path, data_bytes: int) -> None:
    (workspace / "train.py").write_text(HASH)
    piece = random.Random(1).randbytes(min(data_bytes, MIB))  # which no packing makes smaller
    (workspace / "data").write_bytes(piece * (data_bytes // len(piece)))


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


@pytest.mark.timeout(600)
def test_large_package_reaches_all_pods_with_links_and_own_shards(cluster: Kube, workspace: Path) -> None:
    write_package(workspace, LARGE_BYTES)
    (workspace / "train.py").write_text(HASH + SEE)
    for i in range(3):
        (workspace / f"part-{i}").write_text(str(i))
    lib = "/usr/lib/python3.11"  # of the image
    options = (*TRAINERS, "--shard=part-{}", f"--link=lib={lib}")
    code, job = finished(KubePlace(cluster, 2), workspace, *options, timeout_s=400.0)
    assert code == 0, job.launcher.output()
    hashed = hash_data(workspace)
    (workspace / "data").unlink()  # pytest keeps folders of earlier runs
    assert job.lines("trainer/0") == [hashed, f"part-0 part-2 {lib}"]
    assert job.lines("trainer/1") == [hashed, f"part-1 {lib}"]


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
