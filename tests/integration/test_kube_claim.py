"""A volume claim that all pods of a job share, as hosts share an NFS."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from support.jobs import PSLAUNCH
from support.kube import Kube
from support.process import poll_until
from testbed.kube.cluster import PYTHON

SHARE = """
import os, time
rank = os.environ["PADDLE_TRAINER_ID"]
open(f"seen-{rank}", "w").close()
while not all(os.path.exists(f"seen-{other}") for other in "01"):
    time.sleep(0.05)
print(f"trainer {rank} sees both in", os.getcwd())
"""


@pytest.fixture
def claim(cluster: Kube) -> Iterator[tuple[str, Path]]:
    """A claim whose volume is a folder of this machine, which both nodes have: its name, and the folder."""
    folder, name = (
        cluster.kubeconfig.with_name(f"shared-{cluster.namespace}"),
        f"shared-{os.urandom(3).hex()}",
    )
    folder.mkdir()
    folder.chmod(0o777)  # for the user of the pods
    common: dict[str, Any] = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {
        **common,
        "capacity": {"storage": "1Gi"},
        "hostPath": {"path": str(folder), "type": "Directory"},
        "claimRef": {"name": name, "namespace": cluster.namespace},
        "persistentVolumeReclaimPolicy": "Retain",
    }
    demand = {**common, "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}}
    cluster.admin.create_persistent_volume({"metadata": {"name": name}, "spec": volume})
    try:
        cluster.admin.create_namespaced_persistent_volume_claim(
            cluster.namespace, {"metadata": {"name": name}, "spec": demand}
        )
        yield name, folder
    finally:
        cluster.empty()  # of pods that use it
        with contextlib.suppress(client.ApiException):
            cluster.admin.delete_namespaced_persistent_volume_claim(name, cluster.namespace)
        cluster.admin.delete_persistent_volume(name)
        poll_until(
            lambda: name not in {v.metadata.name for v in cluster.admin.list_persistent_volume().items},
            describe=f"volume {name} stays",
        )
        shutil.rmtree(folder)


def test_pods_share_the_workspace_on_a_claim(cluster: Kube, claim: tuple[str, Path], tmp_path: Path) -> None:
    name, folder = claim
    (folder / "ws").mkdir()
    (folder / "ws").chmod(0o777)
    (folder / "ws/train.py").write_text(SHARE)
    where = (f"--kubeconfig={cluster.kubeconfig}", f"--namespace={cluster.namespace}", f"--image={PYTHON}")
    what = (f"--pvc={name}:/data", "--job_workspace=/data/ws", "--nodes=2", "--server_num=0")
    done = subprocess.run(
        [*PSLAUNCH, "k8s", "apply", *where, *what, "train.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"nothing is sent: /data/ws is in the volume claim {name}" in done.stdout
    for rank in range(2):
        assert f"trainer/{rank} | trainer {rank} sees both in /data/ws\n" in done.stdout, done.stdout
    assert {path.name for path in (folder / "ws").glob("seen-*")} == {"seen-0", "seen-1"}
