"""The run's Kubernetes cluster: one for all its workers, made when a test first asks for it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config

from pslaunch.backends.k8s.api import Cluster as Api
from pslaunch.backends.k8s.api import open_cluster
from pslaunch.backends.k8s.spec import ROOT, Access
from support import kube_shells, leaks
from support.jobs import PSLAUNCH, has
from support.process import poll_until
from testbed.kube import NAMESPACE, Cluster, of_run, why_not
from testbed.kube.cluster import PYTHON, RESTRICTED, ROLE, make_binding

GONE_S = 60.0
SHARED = (
    "configmap pslaunch-program-"  # of all jobs in a namespace; the cluster removes it after the last one
)


class Kube:
    """The cluster as its user sees it, and as its administrator."""

    def __init__(self, folder: Path) -> None:
        self.kubeconfig = folder / "kubeconfig"
        self.admin_config = yaml.safe_load((folder / "admin.kubeconfig").read_text())
        api, admin = (
            config.new_client_from_config(str(folder / name)) for name in ("kubeconfig", "admin.kubeconfig")
        )
        self._clients = (api, admin)
        self.core, self.batch = client.CoreV1Api(api), client.BatchV1Api(api)
        self.admin, self._network = client.CoreV1Api(admin), client.NetworkingV1Api(api)
        # Of this worker alone: others' objects come and go meanwhile.
        self.namespace = f"{NAMESPACE}-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}"
        self._make_namespace(admin)

    def _make_namespace(self, admin: Any) -> None:
        """Make the namespace, if it is missing, with the user's rights as they are documented."""
        labelled = {"metadata": {"name": self.namespace, "labels": RESTRICTED}}
        with contextlib.suppress(client.ApiException):  # it stands since an earlier run
            self.admin.create_namespace(labelled)
            rights, role = client.RbacAuthorizationV1Api(admin), yaml.safe_load(ROLE.read_text())
            rights.create_namespaced_role(self.namespace, role)
            rights.create_namespaced_role_binding(self.namespace, make_binding(role["metadata"]["name"]))

        def has_account() -> bool:  # without it no pod is admitted
            found = self.admin.list_namespaced_service_account(self.namespace).items
            return "default" in {account.metadata.name for account in found}

        poll_until(has_account, describe=f"no account in {self.namespace}")

    @property
    def where(self) -> tuple[str, str]:
        """Options of a command for this user and namespace."""
        return f"--kubeconfig={self.kubeconfig}", f"--namespace={self.namespace}"

    @property
    def apply(self) -> tuple[str, ...]:
        """Words of a command for a job of this user and namespace, before its own options."""
        return "k8s", "apply", *self.where, f"--image={PYTHON}"

    def run(
        self, *words: str, cwd: Path | None = None, state: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of pslaunch to its end. state: its records, as those of another machine."""
        env = {**os.environ, "XDG_STATE_HOME": str(state)} if state else None
        return subprocess.run(
            [*PSLAUNCH, *words], cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=200
        )

    @contextlib.contextmanager
    def open(self) -> Iterator[Api]:
        """Open the API as a launcher does."""
        access = Access(str(self.kubeconfig), namespace=self.namespace)
        with contextlib.closing(open_cluster(access, {})) as api:
            yield api

    @property
    def address(self) -> tuple[str, int]:
        """Address of the API server."""
        host, _, port = str(self.core.api_client.configuration.host).removeprefix("https://").partition(":")
        return host, int(port)

    def lead_through(self, endpoint: tuple[str, int], path: Path) -> Path:
        """Write a kubeconfig for the same server at another address, and return its path."""
        read = yaml.safe_load(self.kubeconfig.read_text())
        there = read["clusters"][0]["cluster"]
        there |= {"server": "https://{}:{}".format(*endpoint), "tls-server-name": self.address[0]}
        path.write_text(yaml.safe_dump(read))
        return path

    def list_shared(self) -> list[Any]:
        """Return the ConfigMaps that jobs share."""
        found = self.core.list_namespaced_config_map(self.namespace).items
        return [one.metadata for one in found if f"configmap {one.metadata.name}".startswith(SHARED)]

    def list_names(self) -> set[str]:
        """Name all objects in the namespace that a job may have made, but those that the cluster removes."""
        return {name for name in self._list_all_names() if not name.startswith(SHARED)}

    def _list_all_names(self) -> set[str]:
        return {f"{kind} {name}" for kind, name, _ in self._list()}

    def _list(self) -> list[tuple[str, str, Callable[..., Any]]]:
        """Return kind, name and function of deletion of all that a job may have made, Jobs first."""
        apis = {
            "job": (self.batch.list_namespaced_job, self.batch.delete_namespaced_job),
            "pod": (self.core.list_namespaced_pod, self.admin.delete_namespaced_pod),
            "service": (self.core.list_namespaced_service, self.core.delete_namespaced_service),
            "configmap": (self.core.list_namespaced_config_map, self.core.delete_namespaced_config_map),
            "networkpolicy": (
                self._network.list_namespaced_network_policy,
                self._network.delete_namespaced_network_policy,
            ),
            # no right of the user
            "secret": (self.admin.list_namespaced_secret, self.admin.delete_namespaced_secret),
        }
        return [
            (kind, item.metadata.name, delete)
            for kind, (ask, delete) in apis.items()
            for item in ask(self.namespace).items
            if item.metadata.name != "kube-root-ca.crt"
        ]

    def empty(self) -> None:
        """Delete all that a job may have made, and wait until it is gone."""
        for _, name, delete in self._list():
            with contextlib.suppress(client.ApiException):  # gone meanwhile
                delete(name, self.namespace, propagation_policy="Background", grace_period_seconds=0)
        self.wait_until_gone()

    def list_pods(self, job: str) -> list[Any]:
        """Return the pods of a job, in order of their indexes."""
        found = self.core.list_namespaced_pod(
            self.namespace, label_selector=f"batch.kubernetes.io/job-name={job}"
        )
        return sorted(
            found.items, key=lambda pod: int(pod.metadata.labels["batch.kubernetes.io/job-completion-index"])
        )

    def wait_for_end(self, job: str, timeout_s: float = 120.0) -> Any:
        """Wait until a job has ended, and return it."""

        def has_ended() -> bool:
            conditions = self.batch.read_namespaced_job(job, self.namespace).status.conditions or ()
            return any(c.type in ("Complete", "Failed") and c.status == "True" for c in conditions)

        poll_until(has_ended, describe=lambda: self.describe(job), timeout_s=timeout_s, every_s=0.2)
        return self.batch.read_namespaced_job(job, self.namespace)

    def read_log(self, pod: str) -> str:
        """Return the log of a pod so far."""
        try:
            return str(self.core.read_namespaced_pod_log(pod, self.namespace))
        except client.ApiException as e:
            return f"no log: {e.status}"

    def describe(self, job: str) -> str:
        """Return all that is known of a job, for a message."""
        events = self.core.list_namespaced_event(self.namespace).items
        return "\n".join(
            [
                *(
                    f"{e.involved_object.name}: {e.reason}: {e.message}"
                    for e in events
                    if job in e.involved_object.name
                ),
                *(
                    f"{p.metadata.name}: {p.status.phase}\n{self.read_log(p.metadata.name)}"
                    for p in self.list_pods(job)
                ),
            ]
        )

    def wait_until_gone(self, but: Set[str] = frozenset()) -> None:
        """Wait until the namespace has no object, or none but these."""
        poll_until(
            lambda: self._list_all_names() <= but,
            describe=lambda: f"left: {self._list_all_names() - but}",
            timeout_s=GONE_S,
            every_s=0.2,
        )

    def close(self) -> None:
        for each in self._clients:
            each.close()


@contextlib.contextmanager
def open_kube() -> Iterator[Kube]:
    """The cluster of this run, made by the first worker that asks."""
    if reason := why_not():
        pytest.skip(reason)
    kube = Kube(of_run.find())
    try:
        yield kube
    finally:
        kube.close()


@contextlib.contextmanager
def open_own() -> Iterator[Cluster]:
    """A cluster for one test, which may break it; on this machine one such at a time, since each is heavy."""
    if reason := why_not():
        pytest.skip(reason)
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with Cluster() as made:
            yield made


class KubePlace:
    """Pods of the run's cluster, as the limited user has them. Files of a job are here once it has ended."""

    name, led, lease_s, silent_s = "k8s", True, 15.0, 8.0  # a busy machine needs seconds for the line

    def __init__(self, cluster: Kube, nodes: int, *options: str, kubeconfig: Path | None = None) -> None:
        self._cluster, self.nodes, self._options = cluster, nodes, (f"--nodes={nodes}", *options)
        self._kubeconfig = kubeconfig or cluster.kubeconfig
        self._workspace = Path()

    def command(self, workspace: Path, options: Sequence[str], program: Sequence[str]) -> list[str]:
        ttl = () if has(options, "--ttl") else ("--ttl=15",)  # of a job whose launcher is gone
        own = ("--json", f"--lease={self.lease_s}", f"--kubeconfig={self._kubeconfig}", *ttl)
        no_proxy = f"NO_PROXY={self._cluster.address[0]}"  # the API is reached as with kubectl
        words = [*self._choose(workspace, options), *options, *program]
        return ["env", no_proxy, *PSLAUNCH, "k8s", "apply", *own, *words]

    def _choose(self, workspace: Path, options: Sequence[str]) -> list[str]:
        """Return the options of all jobs here, beside those of a test."""
        self._workspace = workspace
        image = () if has(options, "--image") else (f"--image={PYTHON}",)
        what = (*image, f"--namespace={self._cluster.namespace}")
        numbers = [f"{name}=1" for name in ("--server_num", "--worker_num") if not has(options, name)]
        mark = f"--env={leaks.MARK}={os.environ[leaks.MARK]}"  # on programs in pods too
        return [*what, f"--job_dispatch_package={workspace}", *numbers, mark, *self._options]

    def workspaces(self, workspace: Path) -> list[Path]:
        return [workspace] * self.nodes

    def seen_here(self, node: int, path: str) -> Path:
        inner = Path(path).relative_to(ROOT).parts[1:]
        if inner[:1] == ("log",):
            return self._workspace.joinpath("log", str(node), *inner[1:])
        return self._workspace.joinpath(*inner)

    def pid_here(self, node: int, pid: int) -> int:
        """Return the process of this test that has this id in its pod, the newest of several jobs'."""
        found: dict[int, int] = {}  # by start
        for here in leaks.processes_of_the_test():
            folder = Path(f"/proc/{here}")
            with contextlib.suppress(OSError):
                inner = re.search(r"^NSpid:.*\s(\d+)$", (folder / "status").read_text(), re.M)
                environ = (folder / "environ").read_bytes().split(b"\0")
                start = int((folder / "stat").read_text().rpartition(")")[2].split()[19])
                if inner and int(inner[1]) == pid and f"PSLAUNCH_NODE_ID={node}".encode() in environ:
                    found[start] = here
        return found[max(found)]


class SeparatePlace(KubePlace):
    """Pods for trainers, others for pservers. A job without pservers gets one: it would have no others."""

    def __init__(self, cluster: Kube) -> None:
        super().__init__(cluster, 0)
        self.nodes, self._options = 4, ("--separate",)  # at most

    def command(self, workspace: Path, options: Sequence[str], program: Sequence[str]) -> list[str]:
        return super().command(workspace, [o for o in options if o != "--server_num=0"], program)


class FreePlace(KubePlace):
    """Pods of a job that nobody holds: detached, or rendered and applied by hand. Later shells report it."""

    lease_s = 0.0

    def __init__(self, cluster: Kube, beginning: str) -> None:
        super().__init__(cluster, 2, "--linger=300")
        self._beginning = beginning

    def command(self, workspace: Path, options: Sequence[str], program: Sequence[str]) -> list[str]:
        shells = [sys.executable, "-P", kube_shells.__file__, self._beginning, str(self._kubeconfig)]
        words = [*self._choose(workspace, options), *options, *program]
        return [*shells, self._cluster.namespace, str(workspace), *words]
