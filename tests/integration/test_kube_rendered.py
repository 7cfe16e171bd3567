"""Rendered jobs on a real cluster, applied by hand, and commands of the pages."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, utils, watch

from pslaunch.backends.k8s.manifests import MAX_PACKAGE_BYTES
from support.jobs import PSLAUNCH
from support.kube import Kube
from support.kubectl import Shell
from support.others import ROOT
from support.packages import fill_package
from support.pages import section
from support.process import poll_until, started
from support.word2vec import make_workspace
from testbed.kube.cluster import PYTHON

PAGE = section("kubernetes.md", "From nothing to a finished job")
FAIL = """
import os, sys
assert os.getuid() > 0
print("hello", flush=True)
sys.exit(5 * int(os.environ["PADDLE_TRAINER_ID"]))
"""
# Of another user, as clusters with user ids of their own have it.
PATCH = """
kind: Job
spec:
  template:
    metadata: {annotations: {team: search}}
    spec:
      securityContext: {runAsUser: 4321}
      containers: [{name: node, env: [{name: TOKEN, valueFrom: {secretKeyRef: {name: SECRET, key: it}}}]}]
"""


class Applied:
    """A rendered job, applied as the limited user. Its name is new: name servers remember addresses."""

    def __init__(self, cluster: Kube) -> None:
        self._cluster, self.name = cluster, f"rendered-{os.urandom(3).hex()}"

    def render(self, workspace: Path, *options: str) -> list[dict[str, Any]]:
        """Return the objects that `pslaunch k8s render` prints."""
        what = (f"--image={PYTHON}", f"--job_name={self.name}")
        done = self._cluster.run("k8s", "render", *what, *options, cwd=workspace)
        assert done.returncode == 0, done.stderr
        assert f"kubectl create secret generic {self.name}-secret" in done.stderr
        return list(yaml.safe_load_all(done.stdout))

    def create(self, workspace: Path, *options: str) -> None:
        """Create the objects, all but the secret."""
        api = self._cluster.core.api_client
        for thing in self.render(workspace, *options):
            utils.create_from_dict(api, thing, namespace=self._cluster.namespace)

    def create_secret(self) -> None:
        secret = {"metadata": {"name": f"{self.name}-secret"}, "stringData": {"secret": os.urandom(32).hex()}}
        self._cluster.core.create_namespaced_secret(self._cluster.namespace, secret)

    def run(self, workspace: Path, *options: str) -> tuple[int, dict[str, Any], str]:
        """Apply it and wait; return pod 0's exit code, its last message and its log."""
        self.create_secret()
        self.create(workspace, *options)
        self._cluster.wait_for_end(self.name)
        first = self._cluster.list_pods(self.name)[0]
        ended = first.status.container_statuses[0].state.terminated
        assert ended is not None, self._cluster.describe(self.name)
        return ended.exit_code, json.loads(ended.message), self._cluster.read_log(first.metadata.name)

    def delete(self) -> None:
        """Delete all by its label, as `kubectl delete -l` does, and the secret by its name if it is there."""
        core, batch, place = self._cluster.core, self._cluster.batch, self._cluster.namespace
        label = f"app.kubernetes.io/instance={self.name}"
        for job in batch.list_namespaced_job(place, label_selector=label).items:
            batch.delete_namespaced_job(job.metadata.name, place, propagation_policy="Background")
        network = client.NetworkingV1Api(core.api_client)
        for api, kind in ((core, "service"), (core, "config_map"), (network, "network_policy")):
            for item in getattr(api, f"list_namespaced_{kind}")(place, label_selector=label).items:
                getattr(api, f"delete_namespaced_{kind}")(item.metadata.name, place)
        try:
            core.delete_namespaced_secret(f"{self.name}-secret", place)
        except client.ApiException as e:
            if e.status != 404:
                raise


@pytest.fixture
def applied(cluster: Kube) -> Iterator[Applied]:
    """A job whose objects are deleted by their label at the end; any other would fail the test."""
    job = Applied(cluster)
    yield job
    job.delete()


@pytest.fixture
def shell(cluster: Kube, workspace: Path, tmp_path: Path) -> Shell:
    """A shell in the workspace, as the limited user."""
    user = yaml.safe_load(cluster.kubeconfig.read_text())
    return Shell(cluster, user, workspace, tmp_path / "tools")


def test_steps_of_the_page_begin_end_and_remove_a_job(
    applied: Applied, cluster: Kube, shell: Shell, workspace: Path
) -> None:
    (workspace / "train.py").write_text(FAIL)
    fill_package(workspace, MAX_PACKAGE_BYTES)  # kubectl has a copy of each object in an annotation
    page = PAGE.replace("--image=NAME", f"--image={PYTHON}").replace("word2vec", applied.name)
    begin, remove = (block.split("\n") for block in re.findall(r"```\n(.*?)\n *```", page, re.DOTALL))
    (look,) = re.findall(r"`(kubectl get pods [^`]*)`", page)
    for command in begin[:-1]:
        shell.run(command)

    def is_begun() -> bool:  # then the log of pod 0 is there
        return any(pod.status.phase != "Pending" for pod in cluster.list_pods(applied.name)[:1])

    poll_until(is_begun, describe=lambda: cluster.describe(applied.name))
    log = shell.run(begin[-1])
    assert "trainer/1 | hello" in log
    cluster.wait_for_end(applied.name)
    assert f"{applied.name}-0-" in shell.run(look)  # the others may be removed by now
    (ended,) = (
        pod["status"]["containerStatuses"][0]["state"]["terminated"]
        for pod in json.loads(shell.run(f"{look} -o json"))["items"]
        if pod["metadata"]["name"].startswith(f"{applied.name}-0-")
    )
    end = json.loads(ended["message"])
    assert (ended["exitCode"], end["code"], end["failure"]["what"]) == (5, 5, "trainer/1"), log
    for command in remove:
        shell.run(command)
    cluster.wait_until_gone()


def test_kustomize_may_add_a_namespace_labels_and_annotations(
    applied: Applied, cluster: Kube, shell: Shell, workspace: Path
) -> None:
    (workspace / "train.py").write_text("")
    folder = workspace / "base"
    applied.render(workspace, "--network_policy", f"--output_dir={folder}")
    files = sorted(path.name for path in folder.iterdir())
    (folder / "kustomization.yaml").write_text(yaml.safe_dump({"resources": files}))
    overlay = {
        "resources": ["base"],
        "namespace": cluster.namespace,
        "labels": [{"pairs": {"team": "search"}, "includeSelectors": True, "includeTemplates": True}],
        "commonAnnotations": {"example.org/owner": "a b"},
    }
    (workspace / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    found = json.loads(shell.run("kubectl apply --server-side --dry-run=server -o json -k ."))["items"]
    kinds = [thing["kind"] for thing in found if thing["kind"] != "ConfigMap"]
    assert sorted(kinds) == ["Job", "NetworkPolicy", "Service", "Service"] and len(found) > len(kinds)
    by_name = {f"{thing['kind']} {thing['metadata']['name']}": thing for thing in found}
    pods = by_name[f"Job {applied.name}"]["spec"]["template"]["metadata"]["labels"]
    head = by_name[f"Service {applied.name}-head"]["spec"]["selector"]
    policy = by_name[f"NetworkPolicy {applied.name}"]["spec"]
    assert head.pop("batch.kubernetes.io/job-name") == applied.name
    assert head.pop("batch.kubernetes.io/job-completion-index") == "0"
    peer = policy["ingress"][0]["from"][0]["podSelector"]
    for selector in (head, policy["podSelector"]["matchLabels"], peer["matchLabels"]):
        assert selector["team"] == "search" and selector.items() <= pods.items()


def test_secret_and_patch_reach_the_programs(applied: Applied, cluster: Kube, workspace: Path) -> None:
    (workspace / "train.py").write_text("import os; print('has', os.environ['TOKEN'], os.getuid())")
    (workspace / "patch.yaml").write_text(PATCH.replace("SECRET", name := f"{applied.name}-token"))
    cluster.core.create_namespaced_secret(
        cluster.namespace, {"metadata": {"name": name}, "stringData": {"it": "12"}}
    )
    try:
        options = ("--server_num=0", "--patch=patch.yaml", "--deadline=100")
        code, _, log = applied.run(workspace, *options)
    finally:
        cluster.core.delete_namespaced_secret(name, cluster.namespace)
    assert code == 0 and "trainer/0 | has 12 4321" in log, log
    (pod,) = cluster.list_pods(applied.name)
    assert pod.metadata.annotations["team"] == "search"


def test_workspace_of_the_image_needs_no_package(applied: Applied, workspace: Path) -> None:
    options = ("--job_workspace=/usr/lib/python3.11", "--server_num=0", "this.py")
    code, _, log = applied.run(workspace, *options)
    assert code == 0 and "trainer/0 | The Zen of Python, by Tim Peters" in log, log


def test_queue_that_releases_early_is_not_taken_back(cluster: Kube, workspace: Path) -> None:
    (workspace / "train.py").write_text("")
    jobs, name = cluster.batch, cluster.namespace
    version = jobs.list_namespaced_job(name).metadata.resource_version
    argv = [*PSLAUNCH, *cluster.apply, "--server_num=0", "--queue=team", "--wait_timeout=60"]
    with started(argv, cwd=workspace) as launcher:
        seen = watch.Watch().stream(
            jobs.list_namespaced_job, name, resource_version=version, timeout_seconds=60
        )
        job = next(seen)["object"].metadata.name
        jobs.patch_namespaced_job(job, name, {"spec": {"suspend": False}})
        assert launcher.wait() == 0, launcher.output()
    cluster.wait_until_gone()


def test_time_in_a_queue_does_not_count(cluster: Kube, workspace: Path) -> None:
    (workspace / "train.py").write_text("import getpass; print('by', getpass.getuser())")
    jobs, name, wait_s = cluster.batch, cluster.namespace, 10.0
    argv = [*PSLAUNCH, *cluster.apply, "--server_num=0", "--queue=team", f"--wait_timeout={wait_s:g}"]
    with started(argv, cwd=workspace) as launcher:
        launcher.expect("the queue team has not released it")
        released_s = time.monotonic() + 1.5 * wait_s
        poll_until(lambda: time.monotonic() > released_s, describe="time stands", timeout_s=2 * wait_s)
        (job,) = jobs.list_namespaced_job(name).items
        jobs.patch_namespaced_job(job.metadata.name, name, {"spec": {"suspend": False}})
        assert launcher.wait() == 0, launcher.output()
        assert launcher.output().count("has not released it") == 1 and "by pslaunch" in launcher.output()
    cluster.wait_until_gone()


def test_job_whose_secret_is_missing_waits_for_it(applied: Applied, cluster: Kube, workspace: Path) -> None:
    (workspace / "train.py").write_text("")
    applied.create(workspace)
    with pytest.raises(client.ApiException) as missing:
        cluster.admin.read_namespaced_secret(f"{applied.name}-secret", cluster.namespace)
    assert missing.value.status == 404
    applied.create_secret()
    assert cluster.wait_for_end(applied.name).status.succeeded == 1


BLOCKS = (ROOT / "docs/kubernetes.md").read_text().split("```")[1::2]


@pytest.fixture
def printed(tmp_path: Path) -> Path:
    """Make the workspace at its printed place, below `tmp_path`."""
    folder = tmp_path / "examples/word2vec/ws"
    make_workspace(folder)
    return folder


def test_commands_of_the_page_check_train_and_leave_nothing(
    cluster: Kube, printed: Path, tmp_path: Path
) -> None:
    (block,) = (block for block in BLOCKS if "build/kube/kubeconfig" in block)
    check, apply = (shlex.split(line)[1:] for line in block.splitlines() if line.startswith("pslaunch "))
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["contexts"][0]["context"]["namespace"] = cluster.namespace
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    env = {**os.environ, "KUBECONFIG": str(tmp_path / "kubeconfig"), "NO_PROXY": cluster.address[0]}
    checked = subprocess.run(
        [*PSLAUNCH, *check], cwd=tmp_path, env=env, check=True, capture_output=True, text=True
    )
    assert "the cluster can be used" in checked.stdout, checked.stdout
    with started([*PSLAUNCH, *apply], cwd=tmp_path, env=env) as launcher:
        assert launcher.wait(timeout_s=200.0) == 0, launcher.output()
        assert "trainer/0 | " in launcher.output()
    assert (printed / "output/parameters.tar").exists()
    assert cluster.list_names() == set()
