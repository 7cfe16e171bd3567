"""The cluster of the tests is real: names, services, rights, pod security; and nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from support.kube import Kube, open_own
from support.process import poll_until, started
from testbed import sweep
from testbed.kube import why_not
from testbed.kube.cluster import PYTHON

SECURE = {
    "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True,
}  # fmt: skip
NON_ROOT = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
# Pod 1 asks pod 0 by the name of its service, which is there before any pod.
TALK = """
import os, socket, time
if os.environ["JOB_COMPLETION_INDEX"] == "0":
    with socket.create_server(("", 7163)) as server:
        server.accept()[0].sendall(b"heard")
else:
    end_s = time.monotonic() + 60
    while True:
        try:
            with socket.create_connection(("talk-head", 7163), 3) as sock:
                print(sock.recv(100).decode(), flush=True)
            break
        except OSError:  # refused, or lost until the service is known there
            assert time.monotonic() < end_s
            time.sleep(0.1)
"""
OWNER = """
import signal
from testbed.kube import Cluster
cluster = Cluster()
print("made", cluster.id, cluster.folder, flush=True)
signal.pause()
"""


def make_job(name: str, program: str, pods: int) -> dict[str, Any]:
    """A bare Indexed Job whose pods run a program of Python, each on another node."""
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
              "labelSelector": {"matchLabels": {"app": name}}}  # fmt: skip
    container = {
        "name": "main", "image": PYTHON, "imagePullPolicy": "Never", "command": ["python3", "-c", program],
        "securityContext": SECURE,
    }  # fmt: skip
    pod = {
        "restartPolicy": "Never", "securityContext": NON_ROOT, "automountServiceAccountToken": False,
        "containers": [container], "topologySpreadConstraints": [spread], "terminationGracePeriodSeconds": 1,
    }  # fmt: skip
    return {
        "metadata": {"name": name},
        "spec": {
            "completions": pods, "parallelism": pods, "completionMode": "Indexed", "backoffLimit": 0,
            "template": {"metadata": {"labels": {"app": name}}, "spec": pod},
        },
    }  # fmt: skip


@pytest.fixture
def job(cluster: Kube) -> Iterator[str]:
    """The name of a job that is deleted at the end."""
    yield "talk"
    cluster.batch.delete_namespaced_job("talk", cluster.namespace, propagation_policy="Foreground")
    cluster.core.delete_namespaced_service("talk-head", cluster.namespace)


def test_pods_of_two_nodes_reach_each_other_by_the_name_of_a_service(cluster: Kube, job: str) -> None:
    selector = {"app": job, "batch.kubernetes.io/job-completion-index": "0"}
    ports = [{"port": 7163}]
    cluster.core.create_namespaced_service(
        cluster.namespace,
        {"metadata": {"name": f"{job}-head"}, "spec": {"selector": selector, "ports": ports}},
    )
    cluster.batch.create_namespaced_job(cluster.namespace, make_job(job, TALK, 2))
    ended = cluster.wait_for_end(job)
    assert ended.status.succeeded == 2, cluster.describe(job)
    pods = cluster.list_pods(job)
    assert {pod.spec.node_name for pod in pods} == {"node1", "node2"}
    assert cluster.read_log(pods[1].metadata.name) == "heard\n"


def test_the_user_has_only_the_documented_rights(cluster: Kube) -> None:
    with pytest.raises(client.ApiException) as refused:
        cluster.core.list_namespace()
    assert refused.value.status == 403
    with pytest.raises(client.ApiException) as refused:
        cluster.batch.list_namespaced_job("default")
    assert refused.value.status == 403
    with pytest.raises(client.ApiException) as refused:
        cluster.core.list_namespaced_secret(cluster.namespace)
    assert refused.value.status == 403


def test_a_pod_that_is_not_restricted_is_refused(cluster: Kube) -> None:
    pod = {"metadata": {"name": "root"}, "spec": {"containers": [{"name": "main", "image": PYTHON}]}}
    with pytest.raises(client.ApiException) as refused:
        cluster.admin.create_namespaced_pod(cluster.namespace, pod)
    assert "violates PodSecurity" in refused.value.body


def list_traces(name: str) -> list[str]:
    """Name what exists of a cluster: links, processes, mounts, cgroups."""
    mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if name in line]
    groups = [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/{name}")]
    return [*sweep.links(name.removeprefix(sweep.LINK)), *mounts, *groups,
            *map(str, sweep.outer_processes(name.removeprefix(sweep.LINK)))]  # fmt: skip


def list_rules() -> str:
    """List this machine's own packet rules."""
    return subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
@pytest.mark.timeout(1200)  # of a busy machine
def test_nothing_stays_of_a_cluster_whose_maker_is_killed() -> None:
    if reason := why_not():
        pytest.skip(reason)
    rules = list_rules()
    argv = [sys.executable, "-c", OWNER]
    path = str(Path(__file__).parents[1])
    with started(argv, env={**os.environ, "PYTHONPATH": path}) as owner:
        made = owner.expect(r"^made (\w+) (\S+)$", timeout_s=200.0)
        name, folder = sweep.LINK + made[1], Path(made[2])
        assert list_traces(name) and folder.exists()
        os.kill(owner.pid, signal.SIGKILL)
        poll_until(
            lambda: not list_traces(name) and not folder.exists(),
            describe=lambda: f"left: {list_traces(name)}, {folder}", timeout_s=60.0,
        )  # fmt: skip
    assert list_rules() == rules


def test_cgroups_of_containers_go_with_their_cluster(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    set_id, container = uuid.uuid4().hex[: sweep.ID_DIGITS], uuid.uuid4().hex
    hierarchies = {path.parent for path in Path("/sys/fs/cgroup").glob("**/cgroup.procs")}
    groups = [path / sweep.NAMESPACE / container for path in hierarchies if path.parent.name == "cgroup"]
    for folder in (tmp_path / "node1" / sweep.CONTAINERS / container, *groups):
        folder.mkdir(parents=True)
    sweep.sweep(set_id, str(tmp_path))
    assert groups and not [path for path in groups if path.exists()]


@pytest.mark.timeout(1200)
def test_a_node_that_crashes_is_gone_from_the_cluster_and_leaves_no_process() -> None:
    with open_own() as cluster:
        cluster.nodes[1].crash()
        assert not [line for line in sweep.links(cluster.id) if line.endswith(".2")]
        assert cluster.ask("/readyz") == "ok"
    assert not list_traces(cluster.cgroup)
