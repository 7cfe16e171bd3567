"""Jobs on a real cluster from later shells: found by label, asked, stopped and deleted."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from integration.test_contract import POLITE
from integration.test_kube_failures import suspend
from integration.test_kube_rendered import Applied
from pslaunch.backends.k8s.job_records import BEGINNING
from pslaunch.backends.k8s.manifests import MAX_PACKAGE_BYTES
from pslaunch.backends.k8s.pod_exec import PodExec
from pslaunch.backends.k8s.pods import list_job_objects
from pslaunch.node import codes
from support.jobs import PSLAUNCH, running
from support.kube import Kube, KubePlace
from support.process import poll_until, started
from testbed.kube.cluster import PYTHON

WAITING = """
import os, signal
print("ready", flush=True)
with open("output/model", "w") as f:
    f.write("the model")
while not os.path.exists("/tmp/go"):
    signal.sigtimedwait([], 0.05)
"""


def make_suspended(cluster: Kube, name: str, **annotations: str) -> None:
    """Create a Job as a launcher does before all else, and an object that it owns."""
    labels = {"app.kubernetes.io/managed-by": "pslaunch", "app.kubernetes.io/instance": name}
    metadata: dict[str, Any] = {"name": name, "labels": labels}
    container = {"name": "node", "image": PYTHON}
    pods = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    job = {"metadata": {**metadata, "annotations": annotations}, "spec": {"suspend": True, "template": pods}}
    made = cluster.batch.create_namespaced_job(cluster.namespace, job)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": made.metadata.uid}
    owned = {"metadata": {**metadata, "ownerReferences": [owner]}}
    cluster.core.create_namespaced_config_map(cluster.namespace, owned)


def test_job_that_no_launcher_released_is_swept(cluster: Kube) -> None:
    kept = {f"{kind} {name}" for kind in ("job", "configmap") for name in ("begun", "paused")}
    make_suspended(cluster, "swept", **{BEGINNING: "0"})
    make_suspended(cluster, "begun", **{BEGINNING: "600"})
    make_suspended(cluster, "paused")
    try:
        with cluster.open() as opened:
            poll_until(lambda: len(list_job_objects(opened)) == 2, describe="swept is there")
            cluster.wait_until_gone(kept)
            assert [job["metadata"]["name"] for job in list_job_objects(opened, "begun")] == ["begun"]
    finally:
        for name in ("begun", "paused"):
            cluster.batch.delete_namespaced_job(name, cluster.namespace, propagation_policy="Background")


class Detached:
    """A detached job, whose programs go on until they may end; asked from another machine."""

    def __init__(self, cluster: Kube, workspace: Path, home: Path, *options: str) -> None:
        self._cluster, self._home = cluster, home
        self.where = cluster.where
        done = self.run(*cluster.apply, "--server_num=0", "--detach", "--json", *options, cwd=workspace)
        assert done.returncode == 0, done.stdout + done.stderr
        self.told = [json.loads(line) for line in done.stdout.splitlines()]
        (self.id,) = (name.partition(" ")[2] for name in cluster.list_names() if name.startswith("job "))

    def run(self, *words: str, cwd: Path | None = None, own: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command; as on another machine if not `own`."""
        return self._cluster.run(*words, cwd=cwd, state=self._home / ("own" if own else "other"))

    def ask(self, verb: str, *words: str) -> list[Any]:
        """Return the answer of a command on another machine."""
        job = () if verb == "jobs" else (self.id,)
        done = self.run(verb, *job, *words, *self.where, "--json", own=False)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def let_end(self) -> None:
        with self._cluster.open() as opened:
            for pod in self._cluster.list_pods(self.id):
                touch = PodExec(opened, pod.metadata.name, ["touch", "/tmp/go"])
                assert not touch.describe_end(), touch.describe_end()
                os.close(touch.fd)

    def until_ended(self) -> Any:
        def find() -> Any:
            (status,) = self.ask("status")
            return status["state"] == "ended" and status

        return poll_until(find, describe="the end", timeout_s=60.0)


@pytest.fixture
def detach(cluster: Kube, workspace: Path, tmp_path: Path) -> Iterator[Callable[..., Detached]]:
    """Starts a job, which is gone at the end."""
    (workspace / "train.py").write_text(WAITING)
    yield functools.partial(Detached, cluster, workspace, tmp_path / "state")
    cluster.empty()


def test_detached_job_is_found_asked_and_stopped_from_anywhere(
    detach: Callable[..., Detached], cluster: Kube
) -> None:
    job = detach("--nodes=2", "--worker_num=2")
    assert job.told[-1]["text"] == "its output and logs can be fetched until 600 s after its end (--linger)"
    (found,) = job.ask("jobs")
    facts = [found[name] for name in ("job", "state", "backend", "nodes")]
    assert facts == [job.id, "running", "k8s", 2], found
    (status,) = job.ask("status")
    assert [p["state"] for p in status["processes"]] == ["running"] * 2
    poll_until(lambda: [e["text"] for e in job.ask("logs", "trainer/1")] == ["ready"], describe="no line")
    assert job.id in job.run("jobs").stdout  # by the note on the machine that began it
    ended = json.loads(job.run("stop", job.id, "--json").stdout)
    assert (ended["state"], ended["code"]) == ("ended", codes.TERM)
    assert cluster.list_names() == set()
    assert f"{job.id}  ended 143" in job.run("jobs").stdout
    assert job.ask("jobs") == []


def test_files_of_an_ended_job_are_fetched_from_anywhere(
    detach: Callable[..., Detached], cluster: Kube, tmp_path: Path
) -> None:
    job = detach()
    with started([*PSLAUNCH, "logs", "-f", job.id, *job.where]) as follower:
        follower.expect("^trainer/0 . ready$")
        job.let_end()
        assert follower.wait() == 0, follower.output()
    ended = job.until_ended()
    assert (ended["code"], ended["reason"]) == (0, "all trainers ended with 0")
    job.ask("fetch", str(tmp_path / "here"))
    assert (tmp_path / "here/output/model").read_text() == "the model"
    assert [path.read_text() for path in (tmp_path / "here/log").glob("*/train.log")] == ["ready\n"]
    done = job.run("delete", job.id)
    assert done.returncode == 0, done.stderr
    assert cluster.list_names() == set()
    assert "ended 0" in job.run("jobs").stdout  # its end was noted


def test_files_of_a_job_that_lost_a_pod_are_fetched(
    detach: Callable[..., Detached], cluster: Kube, tmp_path: Path
) -> None:
    job = detach("--nodes=2", "--worker_num=2")
    lost = cluster.list_pods(job.id)[1].metadata.name
    cluster.admin.delete_namespaced_pod(lost, cluster.namespace, grace_period_seconds=0)
    assert job.until_ended()["code"] == codes.NODE_LOST

    def find_signalled() -> bool:  # pod 0 by the cluster, since the Job has failed
        return bool(cluster.list_pods(job.id)[0].metadata.deletion_timestamp)

    poll_until(find_signalled, describe=lambda: cluster.describe(job.id))
    done = job.run("fetch", job.id, str(tmp_path / "here"))
    assert (done.returncode, f"{job.id}-1: the pod is gone" in done.stderr) == (codes.IO, True), done.stderr
    assert (tmp_path / "here/output/model").read_text() == "the model"
    assert (tmp_path / "here/log/0/train.log").read_text() == "ready\n"
    assert job.run("stop", job.id).returncode == 0
    assert cluster.list_names() == set()


def test_detached_job_that_is_suspended_ends_and_begins_anew_once_it_is_released(
    detach: Callable[..., Detached], cluster: Kube
) -> None:
    job = detach()
    suspend(cluster, job.id)
    ended = job.until_ended()
    assert (ended["code"], "its Job was suspended" in ended["reason"]) == (codes.NODE_LOST, True), ended
    suspend(cluster, job.id, suspended=False)

    def has_begun_anew() -> bool:  # beside the old pod, which waits for a fetch
        (status,) = job.ask("status")
        return status["state"] == "running" and len(cluster.list_pods(job.id)) == 2

    poll_until(has_begun_anew, describe=lambda: cluster.describe(job.id))
    assert job.run("stop", job.id, *job.where).returncode == 0
    assert cluster.list_names() == set()


def test_files_that_ended_with_their_pods_are_named(
    detach: Callable[..., Detached], cluster: Kube, tmp_path: Path
) -> None:
    job = detach("--linger=0", "--ttl=2")
    assert "its files end with its pods" in job.told[-1]["text"]
    job.let_end()
    cluster.wait_for_end(job.id)
    done = job.run("fetch", job.id, str(tmp_path / "here"))
    assert (done.returncode, "--linger" in done.stderr or "--ttl" in done.stderr) == (codes.IO, True), (
        done.stderr
    )
    cluster.wait_until_gone()
    done = job.run("fetch", job.id, str(tmp_path / "here"))
    # The first fetch has noted the end here, unless the Job was gone before it.
    words = (f"has no job {job.id} any more", "no pod of it runs any more")
    assert done.returncode == codes.IO and any(text in done.stderr for text in words), done.stderr


@pytest.mark.parametrize(("holding", "code"), [("--detach", 3), ("--lease=60", 0)])
def test_job_that_keeps_no_files_and_ends_at_once_has_its_own_code(
    cluster: Kube, workspace: Path, tmp_path: Path, holding: str, code: int
) -> None:
    (workspace / "train.py").write_text(f"raise SystemExit({code})")
    options = ("--server_num=0", holding, "--linger=0")
    done = cluster.run(*cluster.apply, *options, cwd=workspace, state=tmp_path)
    goes_on = "continues by itself" in done.stdout  # its end came after all
    assert done.returncode == (0 if goes_on else code), done.stdout + done.stderr
    assert code or "its files end with its pods" in done.stdout, done.stdout
    if goes_on:
        cluster.empty()
    assert cluster.list_names() == set(), done.stdout + done.stderr


def test_jobs_run_and_stop_without_exec(
    detach: Callable[..., Detached], cluster: Kube, no_exec: None, workspace: Path
) -> None:
    (workspace / "train.py").write_text(POLITE)
    job = detach()
    (found,) = job.ask("jobs")
    assert (found["job"], found["state"]) == (job.id, "running")
    refused = job.run("logs", job.id, *job.where, own=False)
    assert refused.returncode == codes.RIGHTS
    assert "resources: [pods/exec]" in refused.stderr
    attached = job.run(*cluster.apply, cwd=workspace)
    assert attached.returncode == codes.RIGHTS and "resources: [pods/exec]" in attached.stderr
    (workspace / "data").write_bytes(os.urandom(MAX_PACKAGE_BYTES))  # for the line
    large = job.run(*cluster.apply, "--detach", cwd=workspace)
    assert large.returncode == codes.RIGHTS and "resources: [pods/exec]" in large.stderr
    (pod,) = cluster.list_pods(job.id)
    log = cluster.core.read_namespaced_pod_log(
        pod.metadata.name, cluster.namespace, follow=True, _preload_content=False
    )
    job.ask("stop")
    assert "leaving trainer" in log.read().decode()  # it had the time to save
    assert cluster.list_names() == set()


@pytest.fixture
def no_exec(cluster: Kube) -> Iterator[None]:
    """Takes the right to run programs in pods from the user, for one test."""
    rights = client.RbacAuthorizationV1Api(cluster.admin.api_client)
    role = rights.read_namespaced_role("pslaunch", cluster.namespace)
    rules = list(role.rules)
    role.rules = [rule for rule in rules if "pods/exec" not in rule.resources]
    role = rights.replace_namespaced_role("pslaunch", cluster.namespace, role)
    try:
        yield
    finally:
        role.rules = rules
        rights.replace_namespaced_role("pslaunch", cluster.namespace, role)


class Rendered:
    """A rendered job that was applied by hand; asked without a note of it on this machine."""

    def __init__(self, cluster: Kube, workspace: Path, home: Path) -> None:
        self._cluster, self._workspace, self._home = cluster, workspace, home
        self._applied = Applied(cluster)
        self.name = self._applied.name

    def apply(self, *options: str) -> None:
        self._applied.create(self._workspace, *options)
        self._applied.create_secret()

    def ask(self, verb: str, *words: str, code: int = 0) -> str:
        """Return what a verb prints about the job, or says of its failure with `code`."""
        job = () if verb == "jobs" else (self.name,)
        where = self._cluster.where
        done = self._cluster.run(verb, *job, *words, *where, cwd=self._workspace, state=self._home)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stderr if code else done.stdout

    def find_state(self) -> tuple[str, str | None]:
        """Return state and reason as `status` gives them, which are those of `jobs` too."""
        status = json.loads(self.ask("status", "--json"))
        (listed,) = map(json.loads, self.ask("jobs", "--json").splitlines())
        assert {status["state"], listed["state"]} <= {"waiting", "running", "unknown"}, (status, listed)
        return status["state"], status["reason"]


@pytest.fixture
def rendered(cluster: Kube, workspace: Path, tmp_path: Path) -> Rendered:
    (workspace / "train.py").write_text(WAITING)
    return Rendered(cluster, workspace, tmp_path / "state")


def test_rendered_job_is_found_and_removed_by_its_label(rendered: Rendered, cluster: Kube) -> None:
    rendered.apply("--server_num=0")
    poll_until(lambda: rendered.find_state() == ("running", None), describe="no head", timeout_s=120.0)
    status = functools.partial(rendered.ask, "status")
    poll_until(
        lambda: re.search(r"trainer/0 on node 0 .* running", status()), describe=status, timeout_s=120.0
    )
    poll_until(lambda: rendered.ask("logs") == "trainer/0 | ready\n", describe="no line of it")
    assert f"{rendered.name}  running" in rendered.ask("jobs")
    assert rendered.ask("stop") == f"{rendered.name} has ended\n"
    assert cluster.list_names() == set()


def test_job_with_a_pod_without_a_machine_shows_its_reason_and_is_stopped(
    rendered: Rendered, cluster: Kube
) -> None:
    rendered.apply("--server_num=0", "--node_selector=disk=ssd")
    words = "no machine suits it: 0/2 nodes"

    def is_told() -> bool:
        state, reason = rendered.find_state()
        return state == "waiting" and words in str(reason)

    poll_until(is_told, describe=lambda: str(rendered.find_state()), timeout_s=120.0)
    for verb in ("status", "jobs"):
        assert re.search(rf"^{rendered.name}  waiting.*{words}", rendered.ask(verb), re.M)
    for command in (["logs"], ["fetch", "here"]):
        said = rendered.ask(*command, code=codes.FAILED)
        assert f"no program of {rendered.name} has been started yet: pod " in said and words in said
    ended = json.loads(rendered.ask("stop", "--json"))
    assert (ended["state"], ended["code"]) == ("ended", codes.TERM)
    assert cluster.list_names() == set()


def test_attached_job_is_protected_from_a_second_one_and_removed_by_its_launcher_when_a_shell_stops_it(
    cluster: Kube, workspace: Path
) -> None:
    (workspace / "train.py").write_text(WAITING)
    with running(KubePlace(cluster, 1), workspace, "--server_num=0") as job:
        job.until_printed("ready", ["trainer/0"])
        name = str(job.get_job()["job"])
        second = cluster.run(*cluster.apply, "--server_num=0", cwd=workspace)
        assert second.returncode == codes.USAGE and name in second.stderr
        assert [one for one in cluster.list_names() if one.startswith("job ")] == [f"job {name}"]
        assert cluster.run("stop", name, *cluster.where).returncode == 0
        assert job.launcher.wait() == codes.TERM
    assert (workspace / "output/model").read_text() == "the model"
    assert cluster.list_names() == set()
