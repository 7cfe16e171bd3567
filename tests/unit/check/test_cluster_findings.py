"""Judgement of a cluster for a job: findings, exit codes, the table, and the page with the advice."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from pslaunch.backends.k8s_api import EXEC, JOB, KUBECTL, KUBECTL_POLICY, LOOK, POLICY
from pslaunch.backends.k8s_errors import Right
from pslaunch.check.cluster_findings import (
    COLUMNS,
    KINDS,
    ClusterSeen,
    Needs,
    choose_exit_code,
    find,
    find_needs,
    make_data,
    make_lines,
    make_table,
)
from pslaunch.check.table import show
from pslaunch.node import codes
from support.pages import rows

ROLE = Path(__file__).parents[3] / "templates/k8s/role.yaml"
LABELS = {"app.kubernetes.io/name": "pslaunch", "app.kubernetes.io/instance": "j"}
GOOD = ClusterSeen(
    "https://k:6443", "team", version="v1.34.4", there=True, phase="Active", labels={}, quotas=[],
    limit_ranges=[], policies=[],
)  # fmt: skip
PORT = 7170


def make_needs(amounts: Mapping[str, str] = {}, *, attached: bool = True, secret: str = "") -> Needs:
    env = [{"name": "X", "valueFrom": {"secretKeyRef": {"name": secret, "key": "k"}}}] if secret else []
    container = {"name": "node", "resources": {"requests": amounts, "limits": amounts}, "env": env}
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [container]}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"},
           "spec": {"completions": 3, "template": template}}  # fmt: skip
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "j-plan"}}
    return find_needs([config, job], PORT, attached=attached)


def find_kinds(seen: ClusterSeen, needs: Needs | None = None) -> list[str]:
    return [f.kind for f in find(seen, needs or make_needs())]


def make_quota(hard: Mapping[str, str], used: Mapping[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "q"}, "spec": {"hard": hard, **spec}, "status": {"used": used or {}}}


def make_range(**item: Any) -> dict[str, Any]:
    return {"metadata": {"name": "r"}, "spec": {"limits": [{"type": "Container", **item}]}}


def make_policy(selector: Mapping[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"podSelector": selector or {}, **spec}}


def test_good_cluster_has_no_finding() -> None:
    assert find_kinds(GOOD) == []
    assert choose_exit_code([]) == codes.OK


@pytest.mark.parametrize(
    ("change", "kinds", "code"),
    [
        ({"failed": "it is not reached: Connection refused"}, ["not reached"], codes.HOST),
        ({"version": "v1.27.3"}, ["old server"], codes.OK),
        ({"version": "v1.28.0-eks-1"}, [], codes.OK),
        ({"there": False}, ["no namespace"], codes.USAGE),
        ({"phase": "Terminating"}, ["ending namespace"], codes.PREFLIGHT),
        ({"missing": (Right("create", "jobs", "batch"),)}, ["no right"], codes.RIGHTS),
        ({"missing": EXEC}, ["no exec"], codes.RIGHTS),
        ({"missing": LOOK}, ["no look"] * 4, codes.OK),
        ({"missing": (Right("get", "pods/log"), Right("watch", "pods"))}, ["no kubectl"] * 2, codes.OK),
        ({"missing": (Right("list", "pods"), Right("watch", "pods"))}, ["no right", "no kubectl"], 77),
        ({"secrets": {"pull": False, "other": None}}, ["no secret"], codes.PREFLIGHT),
        ({"missing": (Right("list", "pods"),), "phase": "Terminating"}, ["ending namespace", "no right"], 78),
    ],
)  # fmt: skip
def test_findings_have_codes(change: dict[str, Any], kinds: list[str], code: int) -> None:
    findings = find(GOOD._replace(**change), make_needs())
    assert ([f.kind for f in findings], choose_exit_code(findings)) == (kinds, code)


def test_rights_are_shown_one_kind_of_object_each_with_the_rule() -> None:
    missing = (Right("create", "jobs", "batch"), Right("delete", "jobs", "batch"), Right("list", "pods"))
    jobs, pods = find(GOOD._replace(missing=missing), make_needs())
    assert (jobs.text, pods.text) == ("no right to create, delete jobs", "no right to list pods")
    assert '{apiGroups: ["batch"], resources: [jobs], verbs: [create, delete]}' in jobs.advice


def test_exec_is_a_warning_for_a_detached_job() -> None:
    (finding,) = find(GOOD._replace(missing=EXEC), make_needs(attached=False))
    assert (finding.kind, finding.level) == ("no line", "warning")


@pytest.mark.parametrize("attached", [True, False])
def test_exec_is_a_problem_of_each_job_with_a_package_to_bring(attached: bool) -> None:
    needs = make_needs(attached=attached)._replace(brings=True)
    findings = find(GOOD._replace(missing=EXEC), needs)
    assert [f.kind for f in findings] == ["no transfer"] and choose_exit_code(findings) == codes.RIGHTS
    assert ".pslaunchignore" in findings[0].advice


@pytest.mark.parametrize(
    ("quota", "amounts", "kinds"),
    [
        (make_quota({"pods": "3"}), {}, []),
        (make_quota({"pods": "4"}, {"pods": "2"}), {}, ["quota"]),
        (make_quota({"count/jobs.batch": "1"}, {"count/jobs.batch": "1"}), {}, ["quota"]),
        (make_quota({"services": "0"}), {}, []),
        (make_quota({"configmaps": "10"}, {"configmaps": "10"}), {}, ["quota"]),
        (make_quota({"limits.memory": "6Gi"}), {"memory": "2Gi"}, []),
        (make_quota({"limits.memory": "6Gi"}, {"limits.memory": "1Mi"}), {"memory": "2Gi"}, ["quota"]),
        (make_quota({"cpu": "1"}), {"cpu": "500m"}, ["quota"]),
        (make_quota({"requests.nvidia.com/gpu": "2"}), {"nvidia.com/gpu": "1"}, ["quota"]),
        (make_quota({"requests.nvidia.com/gpu": "0"}), {}, []),
        (make_quota({"limits.cpu": "8"}), {"memory": "1Gi"}, ["amounts"]),
        (make_quota({"pods": "0"}, scopes=["BestEffort"]), {}, []),
    ],
)  # fmt: skip
def test_quotas_are_compared_with_the_job(
    quota: dict[str, Any], amounts: dict[str, str], kinds: list[str]
) -> None:
    assert find_kinds(GOOD._replace(quotas=[quota]), make_needs(amounts)) == kinds


@pytest.mark.parametrize(
    ("item", "amounts", "kinds"),
    [
        ({"max": {"cpu": "1"}}, {"cpu": "2"}, ["limits"]),
        ({"max": {"cpu": "1"}}, {"cpu": "1000m"}, []),
        ({"min": {"memory": "64Mi"}}, {"memory": "32M"}, ["limits"]),
        ({"max": {"cpu": "1"}}, {}, []),
        ({"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}}, {"cpu": "2"}, []),
    ],
)  # fmt: skip
def test_limits_are_compared_with_the_pods(
    item: dict[str, Any], amounts: dict[str, str], kinds: list[str]
) -> None:
    assert find_kinds(GOOD._replace(limit_ranges=[make_range(**item)]), make_needs(amounts)) == kinds


def test_amounts_that_the_namespace_gives_satisfy_its_quota() -> None:
    given = make_range(default={"cpu": "1"}, defaultRequest={"cpu": "500m"})
    seen = GOOD._replace(limit_ranges=[given], quotas=[make_quota({"limits.cpu": "3", "requests.cpu": "1"})])
    (finding,) = find(seen, make_needs())
    assert finding.text == "q: requests.cpu: 0 of 1 in use, and the job needs 1.5"


WEB = {"podSelector": {"matchLabels": {"app": "web"}}}
OTHER = {"namespaceSelector": {"matchLabels": {"x": "y"}}}
OURS = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "pslaunch"}}}
IN: dict[str, Any] = {"policyTypes": ["Ingress"]}
OUT: dict[str, Any] = {"policyTypes": ["Egress"]}
HERE = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "team"}}}


@pytest.mark.parametrize(
    ("policies", "kinds"),
    [
        ([make_policy(**IN)], ["cut off"]),
        ([make_policy()], ["cut off"]),
        ([make_policy({"matchLabels": {"app": "web"}}, **IN)], []),
        ([make_policy({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, **IN)], ["cut "
                                                                                                   "off"]),
        ([make_policy({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, **IN)], []),
        ([make_policy(ingress=[{}], **IN)], []),
        ([make_policy(ingress=[{"from": [OURS]}], **IN)], []),
        ([make_policy(ingress=[{"from": [{"podSelector": {}}]}], **IN)], []),
        ([make_policy(ingress=[{"from": [HERE]}], **IN)], []),
        ([make_policy(ingress=[{"from": [OTHER]}], **IN)], ["cut off"]),
        ([make_policy(ingress=[{"from": [WEB]}], **IN)], ["cut off"]),
        ([make_policy(ingress=[{"ports": [{"port": 443}]}], **IN)], ["cut off"]),
        ([make_policy(ingress=[{"ports": [{"port": 7000, "endPort": 7999}]}], **IN)], []),
        ([make_policy(**IN), make_policy(ingress=[{"from": [OURS]}], **IN)], []),
        ([make_policy(**OUT)], ["cut off", "no names"]),
        ([make_policy(egress=[{"to": [OURS]}], **OUT)], ["no names"]),
        ([make_policy(egress=[{"to": [OURS]}, {"ports": [{"port": 53, "protocol": "UDP"}]}], **OUT)], []),
    ],
)  # fmt: skip
def test_policies_that_cut_pods_off_are_found(policies: Sequence[Any], kinds: list[str]) -> None:
    assert find_kinds(GOOD._replace(policies=policies)) == kinds


def test_policy_of_the_job_lets_its_pods_through() -> None:
    own = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "j"},
           "spec": {"podSelector": {}, "ingress": [{"from": [OURS]}], **IN}}  # fmt: skip
    needs = find_needs([own], PORT, attached=True)
    assert needs.counts == {"networkpolicies.networking.k8s.io": 1}
    needs = make_needs()._replace(policies=needs.policies)
    assert find_kinds(GOOD._replace(policies=[make_policy(**IN)]), needs) == []


def test_needed_secrets_are_those_of_the_pods() -> None:
    assert make_needs(secret="token").pods[0].secrets == ("token",)


def test_report_has_a_row_and_a_line_for_each_finding() -> None:
    seen = GOOD._replace(missing=(*LOOK[:1], *JOB[:1]), quotas=None, secrets={"pull": None})
    findings = find(seen, make_needs())
    out = io.StringIO()
    table, data = make_table(seen, findings, 33), make_data(seen, findings)
    show(table, make_lines(findings), [data], out, as_json=False)
    head, row, problem, warning, last = out.getvalue().splitlines()
    assert head.split() == list(COLUMNS)
    assert row.split() == [
        *(
            "https://k:6443",
            "yes",
            "v1.34.4",
            "team",
            "!31",
            "of",
            "33",
            "ok",
            "?",
            "none",
            "?",
            "none",
            "ok",
        ),
    ]
    assert problem.startswith("PROBLEM no right: no right to create jobs; what to do: let the namespace's")
    assert warning.startswith("warning no look: no right to get namespaces; what to do: ")
    assert last == "the cluster can't be used"
    assert json.loads(json.dumps(data))["findings"][1]["what"] == "no right"


def test_unreached_cluster_is_one_problem() -> None:
    seen = ClusterSeen("", "?", failed="no kubeconfig: /k does not exist")
    findings = find(seen, make_needs())
    (row,) = make_table(seen, findings, 33).rows
    assert row[1] == ("no", "problem") and {text for text, _ in row[2:]} == {"?"}
    assert make_lines(findings)[0].startswith(
        "PROBLEM not reached: no kubeconfig: /k does not exist; what to do"
    )


def test_the_role_gives_exactly_the_rights() -> None:
    rules = yaml.safe_load(ROLE.read_text())["rules"]
    given = [Right(v, r, g) for rule in rules for g in rule["apiGroups"] for r in rule["resources"]
             for v in rule["verbs"]]  # fmt: skip
    assert sorted(given) == sorted([*JOB, *EXEC, *LOOK, *POLICY, *KUBECTL, *KUBECTL_POLICY])


def test_the_page_has_the_advice_for_every_finding() -> None:
    told = {
        name: (column, level, advice)
        for name, column, level, advice in rows("kubernetes.md", "Findings and remedies")
    }
    assert told == {name: (k.column, k.level, k.advice) for name, k in KINDS.items()}
    assert {k.column for k in KINDS.values()} <= set(COLUMNS)
