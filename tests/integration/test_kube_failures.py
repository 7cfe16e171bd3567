"""Failures of pods on a real cluster: said with the cluster's words and the remedy, and nothing is left."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pslaunch.node import codes
from support.jobs import QUICK, finished, running
from support.kube import Kube, KubePlace
from testbed.kube.cluster import PYTHON
from testbed.net import HERE

SAID_S = 45.0  # on a busy machine, from the cluster's event to the end of the command
LATE = ("--wait_timeout=8",)
PATCH = """kind: Job
spec: {template: {spec: {containers: [{name: node, env: [
  {name: A, valueFrom: {secretKeyRef: {name: nothing, key: k}}}]}]}}}
"""
SAVED = """
import os, signal
with open(os.environ["PSLAUNCH_OUTPUT_DIR"] + "/model", "w") as f:
    f.write("the model")
print("ready", flush=True)
signal.pause()
"""
PACKAGES = "/opt/pslaunch/lib/python3.11/site-packages"
NO_NUMPY = f"""kind: Job
spec: {{template: {{spec: {{
  volumes: [{{name: none, emptyDir: {{}}}}],
  containers: [{{name: node, volumeMounts: [{{name: none, mountPath: {PACKAGES}}}]}}]}}}}}}
"""


def apply(cluster: Kube, workspace: Path, *options: str, image: str = PYTHON) -> tuple[int, str, float]:
    """Run a job as the limited user; return its code, its last words and its time."""
    (workspace / "train.py").write_text("")
    (workspace / "secret.yaml").write_text(PATCH)
    what = (f"--image={image}", "--server_num=0", "--grace=1")
    began_s = time.monotonic()
    done = cluster.run("k8s", "apply", *cluster.where, *what, *options, cwd=workspace)
    took_s = time.monotonic() - began_s
    cluster.wait_until_gone()
    return done.returncode, done.stderr + done.stdout, took_s


def find_warning(cluster: Kube, since_s: float) -> float:
    """Return the time of the first event that warns of a pod of a job, or the given one if there is none."""
    events = cluster.core.list_namespaced_event(cluster.namespace).items
    times = [e.first_timestamp.timestamp() for e in events if e.type == "Warning" and e.first_timestamp]
    return min((time_s for time_s in times if time_s > since_s), default=since_s)


@contextlib.contextmanager
def having_quota(cluster: Kube, **hard: str) -> Iterator[None]:
    """Keep the namespace within a quota."""
    quota: dict[str, Any] = {"metadata": {"name": "small"}, "spec": {"hard": hard}}
    cluster.admin.create_namespaced_resource_quota(cluster.namespace, quota)
    try:
        yield
    finally:
        cluster.admin.delete_namespaced_resource_quota("small", cluster.namespace)


@pytest.mark.parametrize(
    ("options", "image", "words"),
    [
        (
            (),
            "pslaunch.test/absent:1",
            ("-0 on node", "its image can't be pulled", "pslaunch.test/absent:1", "--image"),
        ),
        (
            ("--agent_python=/usr/bin/python9",),
            PYTHON,
            ("its image has no suitable Python", "--agent_python"),
        ),
        (("--service_account=nobody",), PYTHON, ('serviceaccount "nobody" not found', "--service_account")),
    ],
    ids=["absent", "python", "account"],
)
def test_failure_ends_the_job_with_its_cause(
    cluster: Kube, workspace: Path, options: tuple[str, ...], image: str, words: tuple[str, ...]
) -> None:
    began_s = time.time()
    code, said, took_s = apply(cluster, workspace, *options, image=image)
    known_s = find_warning(cluster, began_s) - began_s
    assert code == codes.PREFLIGHT and took_s - known_s < SAID_S, (took_s, known_s, said)
    assert [word for word in words if word not in said] == [], said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--node_selector=disk=ssd",), ("no machine suits it: 0/2 nodes", "check --node_selector")),
        (("--pvc=nothing:/data",), ('persistentvolumeclaim "nothing" not found', "check --pvc")),
        (("--patch=secret.yaml",), ('secret "nothing" not found', "check secretKeyRef in --patch")),
    ],
    ids=["selector", "claim", "secret"],
)
def test_obstacle_is_said_and_ends_the_job_after_the_wait(
    cluster: Kube, workspace: Path, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    code, said, took_s = apply(cluster, workspace, *options, *LATE)
    assert code == codes.PREFLIGHT and 8.0 < took_s < 8.0 + SAID_S, (took_s, said)
    assert [word for word in words if word not in said] == [], said
    assert said.count(words[0]) > 1, said  # before the end, and as its cause


def test_quota_and_missing_limits_are_named(cluster: Kube, workspace: Path) -> None:
    with having_quota(cluster, pods="1"):
        code, said, _ = apply(cluster, workspace, "--nodes=2")
    assert (code, "exceeded quota: small" in said) == (codes.PREFLIGHT, True), said
    with having_quota(cluster, **{"limits.cpu": "4"}):
        code, said, _ = apply(cluster, workspace)
        assert (code, "give --cpu and --memory" in said) == (codes.PREFLIGHT, True), said


def test_patch_below_the_security_level_is_named(cluster: Kube, workspace: Path) -> None:
    patch = "kind: Job\nspec: {template: {spec: {securityContext: {seccompProfile: null}}}}\n"
    (workspace / "patch.yaml").write_text(patch)
    code, said, _ = apply(cluster, workspace, "--patch=patch.yaml")
    assert (code, "violates PodSecurity" in said) == (codes.PREFLIGHT, True), said


def test_image_without_numpy_gives_78(cluster: Kube, workspace: Path) -> None:
    (workspace / "train.py").write_text("import numpy")
    (workspace / "patch.yaml").write_text(NO_NUMPY)
    code, job = finished(KubePlace(cluster, 1), workspace, f"--patch={workspace}/patch.yaml", *QUICK)
    assert code == codes.PREFLIGHT, job.launcher.output()
    assert "its Python has no numpy" in job.launcher.output(), job.launcher.output()


def test_pull_that_takes_long_is_told(cluster: Kube, workspace: Path) -> None:
    """A registry that accepts connections, and says nothing."""
    here = f"{cluster.address[0].rpartition('.')[0]}.{HERE}"
    with socket.create_server((here, 0)) as registry:
        image = "{}:{}/team/image:1".format(*registry.getsockname())
        code, said, _ = apply(cluster, workspace, *LATE, image=image)
    assert code == codes.PREFLIGHT, said
    assert said.count("its image is being pulled: Pulling image") > 1, said  # once before the end


def evict(cluster: Kube, job: str) -> None:
    """Evict the second pod, as a drain does."""
    pod = cluster.list_pods(job)[1].metadata.name
    cluster.admin.create_namespaced_pod_eviction(pod, cluster.namespace, {"metadata": {"name": pod}})


def suspend(cluster: Kube, job: str, *, suspended: bool = True) -> None:
    """Suspend the Job or release it, as a queue does."""
    cluster.batch.patch_namespaced_job(job, cluster.namespace, {"spec": {"suspend": suspended}})


@pytest.mark.parametrize(
    ("take", "words"),
    [
        (evict, r"-\d.*: it was (evicted|deleted or evicted)"),
        (suspend, r"-0.*and 1 more.*: its job was suspended while it ran"),
    ],
    ids=["evicted", "suspended"],
)
def test_pods_that_are_taken_away_end_the_job_with_that_reason_and_its_files_are_fetched(
    cluster: Kube, workspace: Path, take: Callable[[Kube, str], None], words: str
) -> None:
    (workspace / "train.py").write_text(SAVED)
    again = ("--max_restarts=1", "--restart_after=0") if take is suspend else ()  # which is no restart
    options = ("--server_num=0", "--worker_num=2", *QUICK, *again)
    with running(KubePlace(cluster, 2), workspace, *options) as job:
        job.until_printed("ready", ["trainer/0", "trainer/1"])
        name = str(job.get_job()["job"])
        take(cluster, name)
        assert job.launcher.wait() == codes.NODE_LOST, job.launcher.output()
        assert re.search(f"pod {name}{words}", job.launcher.output()), job.launcher.output()
        assert not any("not fetched" in e.get("text", "") for e in job.events()), job.launcher.output()
    assert (workspace / "output/model").read_text() == "the model"
    assert [(workspace / f"log/{node}/train.log").read_text() for node in (0, 1)] == ["ready\n"] * 2
    cluster.wait_until_gone()
