"""Judgement of a cluster for a job: findings, exit codes, the table, and the page with the advice."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from pslaunch.backends.k8s.api import EXEC, JOB, LOOK, POLICY
from pslaunch.backends.k8s.api_errors import Place, Right, explain_answer
from pslaunch.backends.k8s.cluster_check import (
    CLUSTER_FINDING_KINDS,
    COLUMNS,
    ClusterSeen,
    Needs,
    ObjectVerdict,
    check_cluster,
    judge_cluster,
    judge_wheels,
    make_data,
    make_table,
)
from pslaunch.backends.k8s.spec import make_k8s_spec
from pslaunch.check.findings import choose_check_code
from pslaunch.check.report import make_finding_lines
from pslaunch.node import codes
from pslaunch.views.table import show
from support.command_line import make_line
from support.pages import rows

ROLE = Path(__file__).parents[4] / "templates/k8s/role.yaml"
LABELS = {"app.kubernetes.io/name": "pslaunch", "app.kubernetes.io/instance": "j"}
GOOD = ClusterSeen(
    "https://k:6443", "team", version="v1.34.4", there=True, phase="Active", labels={}, quotas=[],
    policies=[], verdicts=[ObjectVerdict("Job j")],
)  # fmt: skip


def make_needs(amounts: Mapping[str, str] = {}, *, attached: bool = True, secret: str = "") -> Needs:
    env = [{"name": "X", "valueFrom": {"secretKeyRef": {"name": secret, "key": "k"}}}] if secret else []
    container = {"name": "node", "resources": {"requests": amounts, "limits": amounts}, "env": env}
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [container]}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"},
           "spec": {"completions": 3, "template": template}}  # fmt: skip
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "j-plan"}}
    return Needs([config, job], attached=attached)


def make_quota(hard: Mapping[str, str], used: Mapping[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "q"}, "spec": {"hard": hard, **spec}, "status": {"used": used or {}}}


def make_policy(selector: Mapping[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"podSelector": selector or {}, **spec}}


@pytest.mark.parametrize(
    ("change", "kinds", "code"),
    [
        ({}, [], codes.OK),
        ({"version": "v1.27.3"}, ["old server"], codes.OK),
        ({"version": "v1.28.0-eks-1"}, [], codes.OK),
        ({"there": False}, ["no namespace"], codes.USAGE),
        ({"phase": "Terminating"}, ["ending namespace"], codes.PREFLIGHT),
        ({"missing": (Right("create", "jobs", "batch"),)}, ["no right"], codes.RIGHTS),
        ({"missing": EXEC}, ["no exec"], codes.RIGHTS),
        ({"missing": LOOK}, ["no look"] * 4, codes.OK),
        ({"secrets": {"pull": False, "other": None}}, ["no secret"], codes.PREFLIGHT),
        ({"missing": (Right("list", "pods"),), "phase": "Terminating"}, ["ending namespace", "no right"], 78),
    ],
)  # fmt: skip
def test_findings_have_codes(change: dict[str, Any], kinds: list[str], code: int) -> None:
    findings = judge_cluster(GOOD._replace(**change), make_needs())
    assert ([f.kind for f in findings], choose_check_code(findings)) == (kinds, code)


def test_rights_are_shown_one_kind_of_object_each_with_the_rule() -> None:
    missing = (Right("create", "jobs", "batch"), Right("delete", "jobs", "batch"), Right("list", "pods"))
    jobs, pods = judge_cluster(GOOD._replace(missing=missing), make_needs())
    assert (jobs.text, pods.text) == ("no right to create, delete jobs", "no right to list pods")
    assert '{apiGroups: ["batch"], resources: [jobs], verbs: [create, delete]}' in jobs.advice


X86, ARM, MAC = (f"pslaunch-1-cp311-abi3-{tag}.whl" for tag in (
    "linux_x86_64", "manylinux_2_17_aarch64.manylinux2014_aarch64", "macosx_14_0_arm64"
))  # fmt: skip


@pytest.mark.parametrize(
    ("processors", "wheels", "kind", "lacks"),
    [
        (["amd64"], [X86], "", ""),
        (["amd64", "arm64"], [X86, ARM], "", ""),
        (["amd64", "arm64"], [X86], "few wheels", "arm64"),
        (["arm64"], [X86, MAC], "no wheel", "arm64"),
        (["amd64", "arm64"], [MAC], "no wheel", "amd64, arm64"),
        (["s390x"], ["p-1-cp311-abi3-linux_s390x.whl"], "", ""),
        ([], [ARM], "", ""),
        ([], [MAC], "no wheel", "any"),
    ],
)
def test_wheels_are_compared_with_the_processors_of_nodes(
    processors: list[str], wheels: list[str], kind: str, lacks: str
) -> None:
    found = [(f.kind, f.text) for f in judge_wheels(processors, wheels)]
    text = f"no wheel is for Linux on {lacks} (kubernetes.io/arch)"
    assert found == ([(kind, text)] if kind else [])


@pytest.mark.parametrize(
    ("attached", "brings", "kind", "level"),
    [
        (False, False, "no line", "warning"),
        (False, True, "no transfer", "problem"),
        (True, True, "no transfer", "problem"),
    ],
)
def test_exec_is_needed_to_hold_a_job_and_to_bring_its_package(
    attached: bool, brings: bool, kind: str, level: str
) -> None:
    needs = make_needs(attached=attached)._replace(brings=brings)
    (finding,) = judge_cluster(GOOD._replace(missing=EXEC), needs)
    assert (finding.kind, finding.level) == (kind, level)
    assert choose_check_code([finding]) == (codes.RIGHTS if level == "problem" else codes.OK)


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
        (make_quota({"limits.cpu": "8"}), {"memory": "1Gi"}, []),  # the server refuses one pod already
        (make_quota({"pods": "0"}, scopes=["BestEffort"]), {}, []),
    ],
)  # fmt: skip
def test_quotas_are_compared_with_the_job(
    quota: dict[str, Any], amounts: dict[str, str], kinds: list[str]
) -> None:
    findings = judge_cluster(GOOD._replace(quotas=[quota]), make_needs(amounts))
    assert [f.kind for f in findings] == kinds


def test_amounts_of_the_namespace_count_in_a_quota() -> None:
    amounts = {"limits": {"cpu": "1"}, "requests": {"cpu": "500m"}}
    pod = {"spec": {"containers": [{"name": "node", "resources": amounts}]}}
    quota = make_quota({"limits.cpu": "3", "requests.cpu": "1"})
    seen = GOOD._replace(quotas=[quota], verdicts=[ObjectVerdict("Pod j-0", made=pod)])
    (finding,) = judge_cluster(seen, make_needs())
    assert finding.text == "q: requests.cpu: 0 of 1 in use, and the job needs 1.5"


def test_refusals_are_problems_with_the_servers_words_and_the_remedy() -> None:
    place = Place("https://k:6443", "a kubeconfig", "team")
    said = ("pods is forbidden: exceeded quota: small", "a rule of nobody")
    errors = [explain_answer("create Pod j-0", 403, words, place) for words in said]
    verdicts = [ObjectVerdict("Pod j-0", e) for e in errors]
    quota, other = judge_cluster(GOOD._replace(verdicts=verdicts), make_needs())
    assert quota.text == f"https://k:6443 refuses to create Pod j-0: {said[0]}"
    assert quota.advice.startswith("ask for less") and other.advice == CLUSTER_FINDING_KINDS["refused"].advice
    assert choose_check_code([quota, other]) == codes.PREFLIGHT


@pytest.mark.parametrize(
    ("policy", "kinds"),
    [
        (make_policy(), ["policies"]),
        (make_policy({"matchLabels": LABELS}), ["policies"]),
        (make_policy({"matchLabels": {"app": "web"}}), []),
        (make_policy({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}), ["policies"]),
        (make_policy({"matchExpressions": [{"key": "app", "operator": "Exists"}]}), []),
    ],
)
def test_policies_of_the_pods_are_named(policy: dict[str, Any], kinds: list[str]) -> None:
    findings = judge_cluster(GOOD._replace(policies=[policy]), make_needs())
    assert [f.kind for f in findings] == kinds and choose_check_code(findings) == codes.OK
    assert all(f.text == "NetworkPolicy p: applies to the job's pods" for f in findings)


@pytest.mark.parametrize(("types", "count"), [(["Ingress"], 0), (["Ingress", "Egress"], 1)])
def test_policies_for_incoming_connections_do_not_matter_beside_our_own(types: list[str], count: int) -> None:
    policy = make_policy()
    policy["spec"]["policyTypes"] = types
    needs, own = make_needs(), {"kind": "NetworkPolicy", "apiVersion": "v1", "metadata": {"name": "j"}}
    needs = needs._replace(objects=[*needs.objects, own])
    assert len(judge_cluster(GOOD._replace(policies=[policy]), needs)) == count


def test_needed_secrets_are_those_of_the_pods() -> None:
    assert make_needs(secret="token").name_secrets() == ["token"]


def test_report_has_a_row_and_a_line_for_each_finding() -> None:
    seen = GOOD._replace(missing=(*LOOK[:1], *JOB[:1]), quotas=None, secrets={"pull": None})
    findings = judge_cluster(seen, make_needs())
    out = io.StringIO()
    table, data = make_table(seen, findings, 33), make_data(seen, findings)
    show(table, make_finding_lines(findings), [data], out, as_json=False)
    head, row, problem, warning, last = out.getvalue().splitlines()
    assert head.split() == list(COLUMNS)
    assert " ".join(row.split()) == "https://k:6443 yes v1.34.4 team !31 of 33 ok ok ? ? none none"
    assert problem.startswith("PROBLEM no right: no right to create jobs; what to do: let the namespace's")
    assert warning.startswith("warning no look: no right to get namespaces; what to do: ")
    assert last == "the cluster can't be used"
    assert json.loads(json.dumps(data))["findings"][1]["what"] == "no right"


def test_unreached_cluster_is_one_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").touch()
    line = make_line("k8s", ["--image=i", "train.py"], tmp_path, {"KUBECONFIG": "/none"})
    assert check_cluster(line, make_k8s_spec(line)) == codes.HOST
    _, row, problem, last = capsys.readouterr().out.splitlines()
    assert row.split() == ["!no", *["?"] * 9]
    assert problem.startswith("PROBLEM not reached: no kubeconfig: /none does not exist; what to do: get a")
    assert last == "the cluster can't be used"


# For the steps of docs/kubernetes.md: kubectl's `apply`, `get`, `logs`, `describe`.
KUBECTL = {
    ("jobs", "batch"): ("get", "watch"),
    ("services", ""): ("get", "watch", "patch"),
    ("configmaps", ""): ("get", "watch"),
    ("pods", ""): ("get",),
    ("pods/log", ""): ("get",),
    ("events", ""): ("get", "watch"),
    ("networkpolicies", "networking.k8s.io"): ("get", "watch", "patch"),
}


def test_the_role_gives_exactly_the_rights() -> None:
    rules = yaml.safe_load(ROLE.read_text())["rules"]
    given = [Right(v, r, g) for rule in rules for g in rule["apiGroups"] for r in rule["resources"]
             for v in rule["verbs"]]  # fmt: skip
    of_kubectl = [Right(verb, *what) for what, verbs in KUBECTL.items() for verb in verbs]
    assert sorted(given) == sorted([*JOB, *EXEC, *LOOK, *POLICY, *of_kubectl])


def test_the_page_has_the_advice_for_every_finding() -> None:
    told = [tuple(row) for row in rows("kubernetes.md", "Findings and remedies")]
    assert told == [(name, k.column, k.level, k.advice) for name, k in CLUSTER_FINDING_KINDS.items()]
    assert {k.column for k in CLUSTER_FINDING_KINDS.values()} <= set(COLUMNS)
