"""Failures of pods in words, from objects and events that the test cluster gave (Kubernetes 1.34).

Events that are not asked for (UNUSUAL) are left out there.
"""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from pslaunch.backends.k8s.pod_failures import (
    FAILURES,
    MAX_WORDS,
    OWN_VOLUMES,
    UNUSUAL,
    explain_loss,
    explain_pods,
    explain_silence,
)

GOLDEN = Path(__file__).parents[3] / "golden"
RECORDED: dict[str, dict[str, Any]] = json.loads((GOLDEN / "kube_objects.json").read_text())
CAUSES = [
    ("image-absent", 78, "pod image-absent-0 on node2: its image can't be pulled: .*dial tcp.*--image"),
    ("image-never", 78, "its image can't be pulled: .*not present with pull policy of Never"),
    ("image-invalid", 78, "its image can't be pulled: .*repository name .UPPER. must be lowercase"),
    ("no-shell", 78, "its image can't run /bin/sh: .*stat /bin/sh: no such file"),
    ("no-python", 78, "no suitable Python: .*none found; looked for /usr/bin/python9; .*--agent_python"),
    ("processor", 78, "for another processor: exec /bin/sh: exec format error; .*kubernetes.io/arch"),
    ("quota", 78, "pod quota-0: the cluster refuses the pod: exceeded quota: small, .*; ask for less"),
    ("quota-limits", 78, "must specify limits.cpu for: node; .*give --cpu and --memory"),
    ("security", 78, 'refuses the pod: violates PodSecurity "restricted.*; the namespace.s security level'),
    ("priority", 78, "no PriorityClass with name urgent was found; give a priorityClassName"),
    ("account", 78, 'serviceaccount "nobody" not found; give a --service_account'),
    ("denied", 78, "the cluster refuses the pod: .*denied request: pods need the label team"),
    ("oom", 137, "pod oom-0 on node1: its memory was not enough; raise --memory"),
    ("deadline", 76, "job deadline: .*longer than specified deadline; raise --deadline"),
    ("node-not-ready", 76, "pod node-lost-0 on node2: its machine does not answer"),
    ("node-lost", 76, "pod node-lost-0 on node2: its machine does not answer"),
    ("preempted", 76, "pod preempted-1 on node1: a pod of higher priority took its place"),
    ("evicted", 76, "pod evicted-0 on node1: it was evicted from its machine: Eviction API"),
    ("drained", 76, "it was evicted from its machine: Taint manager"),
    ("deleted", 76, "pod deleted-0 on node2: it was deleted or evicted"),
]
WAITS = [
    ("unschedulable-cpu", "no machine has enough left for it: 0/2 nodes are available: 2 Insufficient cpu; "),
    ("unschedulable-gpu", "2 Insufficient nvidia.com/gpu; ask for less"),
    ("unschedulable-selector", "no machine suits it: .*didn't match Pod's node affinity/selector; "),
    ("tainted", r"by taints: 0/2 nodes are available: 2 node.s. had untolerated taint.s.; give tol"),
    ("claim-missing", 'claim is not bound: .*persistentvolumeclaim "nothing" not found; check --pvc'),
    ("claim-unbound", "claim is not bound: .*unbound immediate PersistentVolumeClaims; check --pvc"),
    ("volume", "a volume can't be mounted: .*/nothing/here is not a directory; check --pvc and --patch"),
    ("secret-missing", 'the job\'s secret is missing: .*secret "secret-missing-secret" not found; make it'),
    ("env-secret-missing", 'a secret for its environment is missing: secret "nothing" not found; check'),
    ("env-key-missing", "couldn't find key k in Secret team/some; check secretKeyRef"),
]  # fmt: skip
# Not to be had on the test cluster: a registry with images for several processors, a broken network plugin.
# "Pulling" passes, and the Job of a suspended one says it; tests/integration/test_kube_failures.py has both.
UNRECORDED = {
    "Pulling",
    "JobSuspended",
    "no match for platform",
    "CreateContainer(Config)?Error|RunContainerError|FailedCreatePodSandBox",
    "a volume of the job's own can't be mounted",  # below, by the words for others
}


@pytest.mark.parametrize(
    ("name", "code", "text", "waits"),
    [*((*row, False) for row in CAUSES), *((name, 78, text, True) for name, text in WAITS)],
)
def test_failure_has_its_code_and_names_pod_words_and_remedy(
    name: str, code: int, text: str, waits: bool
) -> None:
    cause = explain_pods(**RECORDED[name])
    assert cause is not None and (cause.code, cause.waits) == (code, waits)
    assert re.search(text, cause.text)


def make_ended(code: int, second: int, **more: str) -> dict[str, Any]:
    ended = {"exitCode": code, "finishedAt": f"2026-01-02T03:04:0{second}Z", "reason": "Error", **more}
    status = {"containerStatuses": [{"state": {"terminated": ended}}]}
    return {
        "metadata": {"name": "j-1-abcde", "labels": {}},
        "spec": {"nodeName": f"m{second}"},
        "status": status,
    }


OOM = "its memory was not enough; raise --memory"


@pytest.mark.parametrize(
    ("pods", "loss"),
    [
        ({}, None),
        ({"j-1": make_ended(0, 1)}, None),
        ({"j-1": make_ended(137, 1)}, (76, "pod j-1 on m1 was lost: its keeper was killed")),
        (
            {"j-1": make_ended(76, 2), "j-2": make_ended(70, 1)},
            (76, "pod j-2 on m1 was lost: it ended with 70"),
        ),
        ({"j-1": make_ended(137, 1, message="by SIGKILL\n")}, (76, "pod j-1 on m1 was lost: by SIGKILL")),
        ({"j-1": make_ended(137, 1, reason="OOMKilled")}, (137, f"pod j-1 on m1: {OOM}")),
    ],
)
def test_pod_that_failed_first_is_the_reason_once_the_others_are_gone(
    pods: dict[str, Any], loss: tuple[int, str] | None
) -> None:
    assert explain_loss(pods) == loss


SILENT = "pod j-0 on node2 and its machine do not answer (NodeNotReady), and "
TAINT = "the cluster removes it: Taint manager: deleting due to NoExecute taint"
TO_DELETE = {"deletionTimestamp": "2026-01-02T03:04:05Z"}


@pytest.mark.parametrize(
    ("name", "more", "others", "words"),
    [
        ("node-lost", {}, {}, SILENT + TAINT),
        ("node-not-ready", TO_DELETE, {}, f"{SILENT}the cluster removes it"),
        ("node-not-ready", {}, {"j-1": make_ended(76, 1)}, f"{SILENT}without it j-1 ended"),
        ("node-not-ready", {}, {"j-1": make_ended(0, 1)}, ""),  # the machine may come back
        ("node-not-ready", {}, {}, ""),
        ("drained", {}, {"j-1": make_ended(76, 1)}, ""),  # pod 0 ends the job in order
        ("deleted", {}, {}, ""),
        ("healthy", {}, {"j-1": make_ended(76, 1)}, ""),
    ],
)
def test_silent_pod_is_given_up_with_its_machine_alone(
    name: str, more: dict[str, str], others: dict[str, Any], words: str
) -> None:
    pod = copy.deepcopy(RECORDED[name]["pods"][0])
    pod["metadata"] |= more
    assert explain_silence("j-0", {"j-0": pod, **others}) == words
    assert explain_silence("j-0", others) == ""


def test_every_record_is_of_a_known_failure() -> None:
    assert {name for name, *_ in (*CAUSES, *WAITS)} | {"healthy"} == set(RECORDED)
    assert explain_pods(**RECORDED["healthy"]) is None
    assert explain_pods([], [{"involvedObject": {}}]) is None


def test_every_failure_is_recorded() -> None:
    texts = [cause.text for recorded in RECORDED.values() if (cause := explain_pods(**recorded))]
    missing = [
        f for f in FAILURES
        if not any(f": {f.text}" in text and text.endswith(f.remedy) for text in texts)
        and f.reasons != "FailedCreate"  # its remedies are in api_errors
        and not UNRECORDED & {f.reasons, f.message, f.text}
    ]  # fmt: skip
    assert missing == []


@pytest.mark.parametrize("name", ["quota", "volume", "image-never", "unschedulable-cpu", "secret-missing"])
def test_events_that_have_passed_are_no_cause(name: str) -> None:
    events = json.loads(json.dumps(RECORDED[name]["events"]).replace(f"{name}-0", "healthy-0"))
    running = RECORDED["healthy"]["pods"]
    for event in events:
        if event["involvedObject"]["kind"] == "Pod":
            event["involvedObject"]["name"] = running[0]["metadata"]["name"]
    assert explain_pods(running, events) is None


def test_node_that_is_back_is_no_cause() -> None:
    recorded = copy.deepcopy(RECORDED["node-not-ready"])
    for condition in recorded["pods"][0]["status"]["conditions"]:
        condition["status"] = "True"
    assert explain_pods(**recorded) is None


def test_cause_that_ends_the_job_goes_before_an_obstacle() -> None:
    both = [RECORDED[name] for name in ("unschedulable-cpu", "no-python", "deleted")]
    cause = explain_pods(
        [pod for r in both for pod in r["pods"]], [event for r in both for event in r["events"]]
    )
    assert cause is not None and cause.text.startswith("pod no-python-0")


def test_equal_failures_of_several_pods_are_one_cause() -> None:
    recorded = json.dumps(RECORDED["image-never"]["pods"][0])
    pods = [json.loads(recorded.replace("image-never-0", f"image-never-{i}")) for i in range(4)]
    cause = explain_pods(pods, [])
    assert cause is not None and "pod image-never-0 on node1 (and 3 more): " in cause.text


def test_pod_that_was_deleted_first_is_named() -> None:
    last, first = (copy.deepcopy(RECORDED["deleted"]["pods"][0]) for _ in range(2))
    last["metadata"] |= {"name": "deleted-1-abcde", "deletionTimestamp": "2026-11-23T02:25:24+00:00"}
    cause = explain_pods([last, first], [])
    assert cause is not None and "pod deleted-0 on node2 (and 1 more): it was deleted" in cause.text


@pytest.mark.parametrize("kind", ["FailureTarget", "Failed"])
def test_a_job_whose_time_is_over_says_so_before_its_event_comes(kind: str) -> None:
    said = {"type": kind, "status": "True", "reason": "DeadlineExceeded", "message": "longer than specified"}
    job: Any = {"metadata": {"name": "job-ab12c"}, "spec": {}, "status": {"conditions": [said]}}
    cause = explain_pods(RECORDED["deleted"]["pods"], [], [job])
    assert cause is not None and cause.text.startswith("job job-ab12c: the job's time is over: longer than")
    for other in ({"status": "False"}, {"type": "Suspended"}, {"reason": "BackoffLimitExceeded"}):
        job["status"]["conditions"] = [said | other]
        cause = explain_pods(RECORDED["deleted"]["pods"], [], [job])
        assert cause is not None and "it was deleted or evicted" in cause.text


def test_long_words_are_cut() -> None:
    pods = copy.deepcopy(RECORDED["image-never"]["pods"])
    pods[0]["status"]["containerStatuses"][0]["state"]["waiting"]["message"] = "long\n" * MAX_WORDS
    cause = explain_pods(pods, [])
    assert cause is not None and len(cause.text) < MAX_WORDS + 300 and "\n" not in cause.text


def test_volumes_of_the_job_itself_are_in_no_option() -> None:
    made = re.findall(r"^ +- \{?name: (\w+)(?:\n +projected|, (?:configMap|emptyDir|secret): )",
                      (GOLDEN / "k8s-default.yaml").read_text(), re.MULTILINE)  # fmt: skip
    assert sorted(made) == sorted(OWN_VOLUMES)
    recorded = copy.deepcopy(RECORDED["volume"])
    for name in made:
        for event in recorded["events"]:
            said = 'configmap "j-plan" not found'
            event["message"] = f'MountVolume.SetUp failed for volume "{name}" : {said}'
        cause = explain_pods(**recorded)
        assert cause is not None and "a volume of the job's own can't be mounted: " in cause.text
        assert "--pvc" not in cause.text and "apply all that render prints" in cause.text


def test_events_of_a_failure_are_asked_for() -> None:
    left_out = [term.removeprefix("reason!=") for term in UNUSUAL.split(",")]
    assert not [f.reasons for f in FAILURES for reason in left_out if re.fullmatch(f.reasons, reason)]
