"""Pods of examples/clusters on a real cluster, by the commands of its page: kubectl, ssh, Open MPI."""

from __future__ import annotations

import io
import json
import re
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pslaunch.ship.wheel import make_wheel
from support.kube import Kube
from support.kubectl import LIMIT_S, Shell
from support.pages import DOCS
from support.sshd import needs_openssh
from support.wheelhouse import make_wheelhouse
from testbed.kube import of_run
from testbed.kube.cluster import MPI

EXAMPLES = Path(__file__).parents[2] / "examples"
# Imported by the launcher for `pslaunch mpi`.
NEEDS = ("annotated-doc", "pathspec", "shellingham", "typer")
PODS = ("head.yaml", "mpi-nodes.yaml")
TRAIN = """
import os, socket
print("rank", os.environ["OMPI_COMM_WORLD_RANK"], "on", socket.gethostname(), flush=True)
"""

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
def shell(cluster: Kube, tmp_path: Path) -> Shell:
    """A shell in a copy of the examples' folder, whose kubectl is the cluster's administrator."""
    for name in ("clusters", "eks"):
        shutil.copytree(EXAMPLES / name, tmp_path / name, ignore=shutil.ignore_patterns("access", "ws"))
    return Shell(cluster, cluster.admin_config, tmp_path / "clusters", tmp_path / "tools")


@pytest.fixture
def mpi_pods(shell: Shell) -> Iterator[None]:
    """The head and three nodes, ready, with access/ as the page makes it; removed at the end."""
    of_run.load(MPI)
    shell.run("sh make_key.sh")
    files = " ".join(f"-f {file}" for file in PODS)
    keys = "--from-file=authorized_keys=access/key.pub --from-file=key=access/key"
    try:
        shell.run(f"kubectl create secret generic mpi-key {keys}")
        for file in PODS:
            shell.run(f"sed 's|image: pslaunch-mpi:1|image: {MPI}|' {file} | kubectl apply -f -")
        for name in ("mpi-head", "mpi-nodes"):
            shell.run(f"kubectl rollout status --timeout={LIMIT_S - 10:.0f}s statefulset/{name}")
        shell.run("python3 write_conf.py mpi --exec")
        yield
    finally:
        shell.run(f"kubectl delete --ignore-not-found --cascade=foreground {files}")
        shell.run("kubectl delete --ignore-not-found secret mpi-key")


def pack_launcher(folder: Path) -> bytes:
    """Return the home folder of a head as a tar file: our launcher, what it imports, and a program."""
    wheels = [path.read_bytes() for path in make_wheelhouse(folder / "wheels", NEEDS).iterdir()]
    for wheel in (*wheels, make_wheel()):
        with zipfile.ZipFile(io.BytesIO(wheel)) as packed:
            packed.extractall(folder / "home/lib")
    (folder / "home/ws").mkdir()
    (folder / "home/ws/train.py").write_text(TRAIN)
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as packed:
        packed.add(folder / "home", ".")
    return made.getvalue()


@needs_openssh
@pytest.mark.usefixtures("mpi_pods")
def test_pslaunch_mpi_runs_on_the_pods_from_their_head(shell: Shell, tmp_path: Path) -> None:
    assert len((shell.folder / "access/machines").read_text().splitlines()) == 3
    shell.run("scp -q -F access/ssh_config access/machines mpi-head-0:")
    shell.run("scp -q -F access/ssh_config access/known_hosts mpi-head-0:.ssh/")
    shell.run("ssh -F access/ssh_config mpi-head-0 tar -x", pack_launcher(tmp_path))
    launcher = "PYTHONPATH=lib python3 -m pslaunch mpi"
    job = "-hostfile machines -n 3 --server_num=0 ws/train.py"
    said = shell.run(f"ssh -F access/ssh_config mpi-head-0 '{launcher} {job}'")
    for i in range(3):
        assert f"rank {i} on mpi-nodes-{i}" in said, said


def test_api_server_accepts_the_manifests_of_the_page_for_eks(shell: Shell, cluster: Kube) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (DOCS / "eks.md").read_text(), re.DOTALL)
    said = shell.run(
        "kubectl apply --server-side --dry-run=server -o json -f -", "---\n".join(blocks).encode()
    )
    found = {thing["kind"]: thing for thing in json.loads(said)["items"]}
    assert sorted(found) == ["Job", "PersistentVolumeClaim", "ServiceAccount", "StorageClass"]
    user = str(found["Job"]["spec"]["template"]["spec"]["securityContext"]["runAsUser"])
    assert found["StorageClass"]["parameters"]["uid"] == user
    pod = {"metadata": {"name": "data"}, "spec": found["Job"]["spec"]["template"]["spec"]}
    for name in ("serviceAccountName", "serviceAccount"):  # it is not there
        del pod["spec"][name]
    cluster.admin.create_namespaced_pod(cluster.namespace, pod, dry_run="All")  # restricted


def test_api_server_accepts_the_overlay_for_eks(shell: Shell, cluster: Kube) -> None:
    said = shell.run("kubectl apply --server-side --dry-run=server -o json -k ../eks")
    found = json.loads(said)["items"]
    assert sorted(thing["kind"] for thing in found) == ["Service"] * 3 + ["StatefulSet"] * 3 + [
        "StorageClass"
    ]
    for thing in found:
        if thing["kind"] == "StatefulSet":
            pod: dict[str, Any] = thing["spec"]["template"]
            assert pod["spec"]["nodeSelector"] == {"eks.amazonaws.com/nodegroup": "pslaunch"}
            pod["metadata"]["name"] = thing["metadata"]["name"]
            cluster.admin.create_namespaced_pod(cluster.namespace, pod, dry_run="All")  # restricted
