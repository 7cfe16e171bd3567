"""A cluster's API on a real cluster: its configuration, its errors, and as a pod's account has it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from pslaunch.backends.k8s.api import ACCOUNT, open_cluster
from pslaunch.backends.k8s.spec import Access
from pslaunch.errors import ClusterError, PslaunchError, RightsError, SpecError
from pslaunch.node import codes
from support.jobs import PSLAUNCH, parse_events
from support.kube import Kube
from support.process import started
from testbed.kube.cluster import PYTHON, make_binding

LIMIT_S = 10.0
PATIENCE = 3  # with a busy machine


@pytest.fixture
def settings(cluster: Kube) -> Any:
    """The user's kubeconfig as data, for changes."""
    return yaml.safe_load(cluster.kubeconfig.read_text())


def write(tmp_path: Path, settings: dict[str, Any]) -> Access:
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(settings))
    return Access(str(path))


def fail(access: Access) -> PslaunchError:
    """Return the error of a first call, which must come soon."""
    began_s = time.monotonic()
    with pytest.raises(PslaunchError) as caught, contextlib.closing(open_cluster(access, {})) as opened:
        opened.list_objects("Job")
    assert time.monotonic() - began_s < LIMIT_S
    return caught.value


def test_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="no kubeconfig: /nowhere does not exist"):
        open_cluster(Access(), {"KUBECONFIG": "/nowhere"})
    with pytest.raises(ClusterError, match="no account in this pod"):
        open_cluster(Access(), {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOME": str(tmp_path)})


@pytest.mark.parametrize(
    "text", ["", "{", "a: b", "[]", "contexts: 3", "clusters: []\nusers: []\ncontexts: []"]
)
def test_unusable_kubeconfig_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(ClusterError, match=f"the kubeconfig {path} can't be used: "):
        open_cluster(Access(str(path)), {})


def test_unknown_context_shows_the_nearest(settings: dict[str, Any], tmp_path: Path) -> None:
    access = write(tmp_path, settings)
    with pytest.raises(SpecError, match=r"no context 'tset' in .*; did you mean 'test'?"):
        open_cluster(access._replace(context="tset"), {})


def test_failing_credential_program_is_quoted(settings: dict[str, Any], tmp_path: Path) -> None:
    command = {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh",
               "args": ["-c", "echo the login has expired >&2; exit 3"]}  # fmt: skip
    settings["users"][0]["user"] = {"exec": command}
    assert "the login has expired" in str(fail(write(tmp_path, settings)))


def test_job_for_a_cluster_that_is_not_reached_ends_soon(
    cluster: Kube, settings: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("")
    with contextlib.ExitStack() as stack:
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        refusing = stack.enter_context(socket.socket())
        refusing.bind(("127.0.0.1", 0))
        user, server = settings["users"][0], settings["clusters"][0]["cluster"]
        foreign = {key: value for key, value in server.items() if key != "certificate-authority"}
        cases: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
            "Connection refused": ({**server, "server": make_url(refusing)}, user["user"]),
            "timed out": ({**server, "server": make_url(silent)}, user["user"]),
            "log in to the cluster again": (server, {"token": "of-last-year"}),
            "certificate verify failed": (foreign, user["user"]),
        }
        launchers = []
        for number, (place, account) in enumerate(cases.values()):
            settings["clusters"][0]["cluster"], user["user"] = place, account
            path = tmp_path / f"config-{number}"
            path.write_text(yaml.safe_dump(settings))
            where = (f"--kubeconfig={path}", f"--namespace={cluster.namespace}", "--image=i", "--json")
            argv = [*PSLAUNCH, "k8s", "apply", *where, "--server_num=0", f"--job_dispatch_package={tmp_path}"]
            argv += [f"--fetch_output={tmp_path}/output-{number}", f"--fetch_logs={tmp_path}/log-{number}"]
            launchers.append(stack.enter_context(started(argv, env={**os.environ, "NO_PROXY": "*"})))
        for words, launcher in zip(cases, launchers, strict=True):
            assert launcher.wait() == codes.HOST and words in launcher.output(), launcher.output()
            (end,) = [e for e in parse_events(launcher.output()) if e["event"] == "end"]
            assert end["elapsed_s"] < LIMIT_S * PATIENCE, launcher.output()


def make_url(listener: socket.socket) -> str:
    return "https://{}:{}".format(*listener.getsockname())


def test_missing_rights_name_the_rule(cluster: Kube) -> None:
    error = fail(Access(str(cluster.kubeconfig), namespace="kube-system"))
    assert isinstance(error, RightsError)
    assert "developer has no right to list jobs in namespace kube-system" in str(error)
    assert '{apiGroups: ["batch"], resources: [jobs], verbs: [list]}' in str(error)


ACCOUNT_NAME = "trainings"
# In mounts of its own: a tmpfs over /run, with the account where a pod has it.
AS_IN_POD = f"""
mount -t tmpfs none /run && mkdir -p {ACCOUNT.parent} && ln -s "$1" {ACCOUNT} && shift && exec "$@"
"""


@pytest.fixture
def in_pod(
    cluster: Kube, workspace: Path, tmp_path: Path
) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Runs a command as a pod with a service account that has the documented rights."""
    rights, here = client.RbacAuthorizationV1Api(cluster.admin.api_client), cluster.namespace
    subject = {"kind": "ServiceAccount", "name": ACCOUNT_NAME, "namespace": here}
    named = {"metadata": {"name": ACCOUNT_NAME}, "subjects": [subject]}
    binding: dict[str, Any] = {**make_binding("pslaunch"), **named}
    cluster.admin.create_namespaced_service_account(here, {"metadata": {"name": ACCOUNT_NAME}})
    rights.create_namespaced_role_binding(here, binding)
    made = cluster.admin.create_namespaced_service_account_token(ACCOUNT_NAME, here, {"spec": {}})
    account, (host, port) = tmp_path / "account", cluster.address
    account.mkdir()
    known = yaml.safe_load(cluster.kubeconfig.read_text())["clusters"][0]["cluster"]
    (account / "ca.crt").write_bytes(Path(known["certificate-authority"]).read_bytes())
    (account / "token").write_text(made.status.token)
    (account / "namespace").write_text(here)
    env = {name: text for name, text in os.environ.items() if name != "KUBECONFIG"}
    env |= {"HOME": str(tmp_path), "KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": str(port)}

    def do(*words: str) -> subprocess.CompletedProcess[str]:
        argv = ["unshare", "--mount", "sh", "-c", AS_IN_POD, "sh", str(account), *PSLAUNCH, *words]
        return subprocess.run(
            argv, cwd=workspace, env=env, capture_output=True, text=True, check=False, timeout=240
        )

    try:
        yield do
    finally:
        rights.delete_namespaced_role_binding(ACCOUNT_NAME, here)
        cluster.admin.delete_namespaced_service_account(ACCOUNT_NAME, here)


def test_service_account_with_the_documented_rights_is_enough(
    in_pod: Callable[..., subprocess.CompletedProcess[str]], cluster: Kube, workspace: Path
) -> None:
    (workspace / "train.py").write_text("print('trained', flush=True)")
    found = json.loads(in_pod("check", "k8s", f"--image={PYTHON}", "--json").stdout)
    assert (found["namespace"], found["findings"]) == (cluster.namespace, [])
    done = in_pod("k8s", "apply", f"--image={PYTHON}", "--server_num=0")
    assert done.returncode == 0 and "trainer/0 | trained" in done.stdout, done.stdout + done.stderr
