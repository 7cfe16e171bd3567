"""pslaunch as a program of a pod has it: with the pod's service account, and no kubeconfig."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config

from pslaunch.backends.k8s_api import ACCOUNT
from support.jobs import PSLAUNCH
from support.kube import Kube
from testbed.kube.cluster import PYTHON, make_binding

NAME = "trainings"
# In mounts of its own: a tmpfs over /run, with the account where a pod has it.
AS_IN_POD = f"""
mount -t tmpfs none /run && mkdir -p {ACCOUNT.parent} && ln -s "$1" {ACCOUNT} && shift && exec "$@"
"""


@pytest.fixture
def run(
    cluster: Kube, workspace: Path, tmp_path: Path
) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Runs a command as a pod with a service account that has the documented rights."""
    admin = config.new_client_from_config(str(cluster.kubeconfig.with_name("admin.kubeconfig")))
    rights, here = client.RbacAuthorizationV1Api(admin), cluster.namespace
    subject = {"kind": "ServiceAccount", "name": NAME, "namespace": here}
    binding: dict[str, Any] = {**make_binding("pslaunch"), "metadata": {"name": NAME}, "subjects": [subject]}
    cluster.admin.create_namespaced_service_account(here, {"metadata": {"name": NAME}})
    rights.create_namespaced_role_binding(here, binding)
    token = cluster.admin.create_namespaced_service_account_token(NAME, here, {"spec": {}}).status.token
    account, (host, port) = tmp_path / "account", cluster.address
    account.mkdir()
    known = yaml.safe_load(cluster.kubeconfig.read_text())["clusters"][0]["cluster"]
    (account / "ca.crt").write_bytes(Path(known["certificate-authority"]).read_bytes())
    (account / "token").write_text(token)
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
        rights.delete_namespaced_role_binding(NAME, here)
        cluster.admin.delete_namespaced_service_account(NAME, here)
        admin.close()


def test_service_account_with_the_documented_rights_is_enough(
    run: Callable[..., subprocess.CompletedProcess[str]], cluster: Kube, workspace: Path
) -> None:
    (workspace / "train.py").write_text("print('trained', flush=True)")
    found = json.loads(run("check", "k8s", f"--image={PYTHON}", "--json").stdout)
    assert (found["namespace"], found["findings"]) == (cluster.namespace, [])
    done = run("k8s", "apply", f"--image={PYTHON}", "--server_num=0")
    assert done.returncode == 0 and "trainer/0 | trained" in done.stdout, done.stdout + done.stderr
