"""Requests to the API server that fail, and launchers that are killed between two of them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pslaunch.backends.k8s.job_records import BEGINNING
from pslaunch.node import codes
from support.jobs import PSLAUNCH, finished, running
from support.kube import Kube, KubePlace
from support.kube_proxy import SeeingProxy
from support.process import Started, started
from testbed.kube.cluster import PYTHON

CREATION = re.compile(rb"POST \S*/(jobs|secrets|configmaps|services)[ ?]")
LIST, WATCH = rb"GET \S*/pods\?(?!\S*watch=)", rb"GET \S*/pods\?\S*watch="
ALL = 100  # more than a job has; then its Job is released


def refuse(code: int, message: str) -> bytes:
    """Return an answer of the API server."""
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message}
    text = json.dumps(status, separators=(",", ":"))
    kind, length = "Content-Type: application/json", f"Content-Length: {len(text)}"
    return "\r\n".join([f"HTTP/1.1 {code} No", kind, "Connection: close", length, "", text]).encode()


@pytest.fixture
def see(cluster: Kube, tmp_path: Path) -> Iterator[Callable[[Callable[[bytes], bytes | None]], Path]]:
    """Return a kubeconfig whose requests go through a function."""
    with contextlib.ExitStack() as stack:

        def make(answer: Callable[[bytes], bytes | None]) -> Path:
            proxy = SeeingProxy(cluster, tmp_path, answer)
            stack.callback(proxy.close)
            return proxy.kubeconfig

        yield make


def run_to_the_end(cluster: Kube, kubeconfig: Path, workspace: Path) -> str:
    """Run a job of one pod, which succeeds; return its events as JSON."""
    (workspace / "train.py").write_text("print('done')")
    with running(KubePlace(cluster, 1, kubeconfig=kubeconfig), workspace, "--server_num=0") as job:
        assert job.launcher.wait() == 0, job.launcher.output()
        assert job.lines("trainer/0") == ["done"], job.launcher.output()
        return json.dumps(job.events())


@pytest.mark.parametrize("number", [1, ALL])
def test_objects_of_a_launcher_that_is_killed_before_all_are_there_are_swept(
    cluster: Kube, see: Callable[..., Path], workspace: Path, number: int
) -> None:
    (workspace / "train.py").write_text("")
    launchers: list[Started] = []
    created: list[bytes] = []

    def answer(request: bytes) -> None:
        if CREATION.match(request):
            created.append(request)
        if len(created) > number or b"PATCH " in request[:6]:
            os.kill(launchers[0].pid, signal.SIGKILL)
            raise ConnectionResetError

    where = (f"--kubeconfig={see(answer)}", f"--namespace={cluster.namespace}")
    environ = {**os.environ, "NO_PROXY": "*"}
    argv = [*PSLAUNCH, "k8s", "apply", *where, f"--image={PYTHON}", "--server_num=0"]
    argv.append(f"--job_dispatch_package={workspace}")
    with started(argv, env=environ) as launcher:
        launchers.append(launcher)
        assert launcher.wait() == 128 + signal.SIGKILL, launcher.output()
    assert len(created) >= min(number, 6), created
    try:
        (job,) = cluster.batch.list_namespaced_job(cluster.namespace).items
        assert job.spec.suspend and int(job.metadata.annotations[BEGINNING]) > 0
        over = {"metadata": {"annotations": {BEGINNING: "-1"}}}  # its minute has passed
        cluster.batch.patch_namespaced_job(job.metadata.name, cluster.namespace, over)
        listed = cluster.run("jobs", *cluster.where, "--json")
        assert (listed.returncode, listed.stdout) == (0, ""), listed.stderr
        cluster.wait_until_gone()
    finally:
        cluster.empty()


def test_job_goes_on_after_an_answer_that_its_list_is_too_old(
    cluster: Kube, see: Callable[..., Path], workspace: Path
) -> None:
    asked = {LIST: 0, WATCH: 0}

    def answer(request: bytes) -> bytes | None:
        for kind in asked:
            if re.match(kind, request):
                asked[kind] += 1
                return refuse(410, "too old") if asked[kind] == 2 else None
        return None

    said = run_to_the_end(cluster, see(answer), workspace)
    assert asked[LIST] > 2 and asked[WATCH] > 0
    assert "(410)" in said


def test_pods_that_do_not_come_are_watched_and_seldom_listed(
    cluster: Kube, see: Callable[..., Path], workspace: Path
) -> None:
    (workspace / "train.py").write_text("")
    asked = {LIST: 0, WATCH: 0}

    def answer(request: bytes) -> None:
        for kind in asked:
            asked[kind] += bool(re.match(kind, request))

    place = KubePlace(cluster, 1, kubeconfig=see(answer))
    code, job = finished(place, workspace, "--server_num=0", "--cpu=1000", "--wait_timeout=8")
    assert code == codes.PREFLIGHT, job.launcher.output()
    assert 3 <= asked[WATCH] <= 15 and asked[LIST] <= 20, asked


def test_api_server_that_is_away_before_the_head_is_found_delays_the_job(
    cluster: Kube, see: Callable[..., Path], workspace: Path
) -> None:
    released: list[bytes] = []
    asked: list[bytes] = []

    def answer(request: bytes) -> bytes | None:
        if request.startswith(b"PATCH "):
            released.append(request)
            if len(released) <= 3:
                raise ConnectionResetError
        elif re.match(LIST, request):
            asked.append(request)
            if len(asked) <= 3:
                raise ConnectionResetError
            if len(asked) == 4:  # a server that has just begun knows no rights
                return refuse(403, 'User "developer" cannot list resource "pods" in API group ""')
        return None

    said = run_to_the_end(cluster, see(answer), workspace)
    assert len(released) > 3 and len(asked) > 4
    assert "is not reached" in said and "has no right to list pods" in said


def test_creations_are_repeated_while_the_api_server_is_away(
    cluster: Kube, see: Callable[..., Path], workspace: Path
) -> None:
    lost: list[bytes] = []
    refused: list[bytes] = []

    def answer(request: bytes) -> bytes | None:
        made = re.match(rb'{.*?"kind": ?"(\w+)"', request)  # not before: a server waits for the rest
        kind = made[1] if made else b""
        if kind in (b"Job", b"Secret") and kind not in lost:
            lost.append(kind)
            return b""
        if kind in (b"ConfigMap", b"Service") and len(refused) < 6:
            refused.append(request)
            if len(refused) % 3:
                return refuse(503 if len(refused) % 2 else 429, "not now")
            raise ConnectionResetError
        return None

    run_to_the_end(cluster, see(answer), workspace)
    assert set(lost) == {b"Job", b"Secret"} and len(refused) >= 6, (lost, refused)
    cluster.wait_until_gone()


def test_program_that_goes_just_as_a_job_begins_is_brought_again(
    cluster: Kube, see: Callable[..., Path], workspace: Path
) -> None:
    """As its last owner's end removes it, on a server whose collector does not see the new owner in time."""
    deleted: list[str] = []

    def answer(request: bytes) -> None:
        if re.match(rb"PATCH \S*/jobs/", request) and not deleted:  # the release
            deleted.extend(shared.name for shared in cluster.list_shared()[:2])
            for name in deleted:
                cluster.core.delete_namespaced_config_map(name, cluster.namespace)

    run_to_the_end(cluster, see(answer), workspace)
    assert len(deleted) == 2
    cluster.wait_until_gone()
