"""`pslaunch check k8s` on a real cluster, mostly as the user with the documented rights."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config

from pslaunch.node import codes
from support.jobs import PSLAUNCH
from support.kube import Kube
from testbed.kube.cluster import PYTHON

Check = Callable[..., tuple[int, dict[str, Any]]]
ADMIN = "--kubeconfig={folder}/admin.kubeconfig"


@pytest.fixture
def check(cluster: Kube, workspace: Path) -> Check:
    """Runs the check; returns its exit code and what it says."""
    (workspace / "train.py").write_text("")

    def run(*options: str) -> tuple[int, dict[str, Any]]:
        default = [f"--kubeconfig={cluster.kubeconfig}", f"--namespace={cluster.namespace}"]
        names = {word.partition("=")[0] for word in options}
        words = [word for word in default if word.partition("=")[0] not in names]
        argv = [*PSLAUNCH, "check", "k8s", f"--image={PYTHON}", *words, *options, "--json"]
        done = subprocess.run(argv, cwd=workspace, capture_output=True, text=True, check=False, timeout=60)
        assert not done.stderr, done.stderr
        return done.returncode, json.loads(done.stdout)

    return run


@pytest.fixture
def added(cluster: Kube) -> Iterator[Callable[[str, dict[str, Any]], None]]:
    """Adds an object as the administrator, until the test ends."""
    admin = config.new_client_from_config(str(cluster.kubeconfig.with_name("admin.kubeconfig")))
    core, network = client.CoreV1Api(admin), client.NetworkingV1Api(admin)
    undo: list[Callable[[], object]] = []

    def add(kind: str, spec: dict[str, Any]) -> None:
        api = network if kind == "network_policy" else core
        create, delete = (getattr(api, f"{verb}_namespaced_{kind}") for verb in ("create", "delete"))
        create(cluster.namespace, {"metadata": {"name": "of-a-test"}, "spec": spec})
        undo.append(lambda: delete("of-a-test", cluster.namespace))

    try:
        yield add
    finally:
        for each in undo:
            each()
        admin.close()


def name_findings(told: dict[str, Any]) -> list[str]:
    return [finding["what"] for finding in told["findings"]]


def test_documented_rights_are_enough_and_seen_one_by_one(check: Check, cluster: Kube) -> None:
    before = cluster.list_names()
    code, told = check("--nodes=2", "--cpu=1", "--memory=1Gi")
    assert (code, told["findings"], told["ok"]) == (codes.OK, [], True)
    facts = told["facts"]
    assert facts["missing"] == [] and facts["there"] and facts["version"].startswith("v1.")
    assert facts["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert cluster.list_names() == before


def test_report_is_a_table_for_people(check: Check, cluster: Kube, workspace: Path) -> None:
    argv = [*PSLAUNCH, "check", "k8s", f"--image={PYTHON}", f"--namespace={cluster.namespace}"]
    env = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    done = subprocess.run(argv, cwd=workspace, capture_output=True, text=True, check=False, env=env)
    head, row, last = done.stdout.splitlines()
    assert head.split()[:4] == ["cluster", "reached", "version", "namespace"]
    assert row.split()[1] == "yes" and row.split()[3] == cluster.namespace
    assert (done.returncode, last) == (0, "the cluster can be used")


def test_namespace_without_rights_shows_each_with_its_rule(check: Check) -> None:
    code, told = check("--namespace=default")
    assert code == codes.RIGHTS
    said = {finding["text"]: finding["advice"] for finding in told["findings"]}
    rule = '{apiGroups: ["batch"], resources: [jobs], verbs: [create, list, patch, delete]}'
    assert rule in said["no right to create, list, patch, delete jobs"]
    assert "nothing for pslaunch" in said["no right to get pods/log"]
    assert "resources: [pods/exec]" in said["no right to get, create pods/exec"]


def test_missing_namespace_is_found(check: Check, cluster: Kube) -> None:
    code, told = check(ADMIN.format(folder=cluster.kubeconfig.parent), "--namespace=nowhere")
    assert (code, name_findings(told)) == (codes.USAGE, ["no namespace"])


def test_unreached_cluster_is_a_finding_too(check: Check, tmp_path: Path) -> None:
    code, told = check(f"--kubeconfig={tmp_path}/none")
    assert (code, name_findings(told)) == (codes.HOST, ["not reached"])
    assert told["findings"][0]["text"] == f"no kubeconfig: {tmp_path}/none does not exist"


def test_quota_that_demands_amounts_is_found(check: Check, added: Callable[..., None]) -> None:
    added("resource_quota", {"hard": {"limits.memory": "1Gi", "pods": "1"}})
    assert name_findings(check("--nodes=2")[1]) == ["amounts", "quota"]
    code, told = check("--memory=2Gi")
    assert (code, name_findings(told)) == (codes.PREFLIGHT, ["quota"])


def test_secret_of_the_job_counts_in_a_quota(check: Check, added: Callable[..., None]) -> None:
    added("resource_quota", {"hard": {"secrets": "0"}})
    code, told = check()
    assert (code, name_findings(told)) == (codes.PREFLIGHT, ["quota"])
    assert "the job needs 1" in told["findings"][0]["text"]


def test_limits_of_the_namespace_are_found(check: Check, added: Callable[..., None]) -> None:
    added("limit_range", {"limits": [{"type": "Container", "max": {"cpu": "1"}}]})
    assert name_findings(check("--cpu=1")[1]) == []
    assert name_findings(check("--cpu=1500m")[1]) == ["limits"]


def test_policy_that_cuts_pods_off_is_found(check: Check, added: Callable[..., None]) -> None:
    added("network_policy", {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]})
    assert name_findings(check()[1]) == ["cut off", "cut off", "no names"]


def test_missing_pull_secret_is_found_by_who_may_look(check: Check, cluster: Kube) -> None:
    assert check("--image_pull_secret=absent")[1]["facts"]["secrets"] == {"absent": None}
    admin = ADMIN.format(folder=cluster.kubeconfig.parent)
    assert name_findings(check(admin, "--image_pull_secret=absent")[1]) == ["no secret"]
