"""Records of jobs from a cluster's objects: their state, their end, and Jobs that nobody released."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pslaunch.backends.k8s.job_records import BEGINNING, find_record, is_abandoned, make_record, select_main
from pslaunch.node.later import record

MADE = "2026-01-02T03:04:05Z"
MADE_S = 1767323045.0
END = {"n": 7, "time": 1.0, "event": "end", "code": 5, "reason": "trainer/0 ended with 5", "elapsed_s": 2.5,
       "failure": None}  # fmt: skip


def make_job(name: str = "j", instance: str = "j", pods: int = 2, **status: Any) -> dict[str, Any]:
    labels = {"app.kubernetes.io/instance": instance}
    metadata: dict[str, Any] = {"name": name, "creationTimestamp": MADE, "labels": labels}
    return {"metadata": metadata, "spec": {"completions": pods}, "status": status}


def make_pod(**state: Any) -> dict[str, Any]:
    return {"status": {"containerStatuses": [{"state": state}]}}


def test_job_of_node_0_has_a_record_with_size_and_start() -> None:
    jobs = [make_job("j-server", pods=3), make_job(), make_job("other", "other")]
    main, other = select_main(jobs)
    assert other["metadata"]["name"] == "other"
    found = make_record(main, jobs, None)
    assert (found["job"], found["nodes"], found["started"], found["state"]) == ("j", 5, MADE_S, "waiting")
    assert record.parse_record(json.dumps(found)) == found


def test_last_message_of_pod_0_is_the_end() -> None:
    ended = make_pod(terminated={"exitCode": 5, "message": json.dumps(END)})
    found = make_record(make_job(), [make_job()], ended)
    assert (found["state"], found["code"], found["reason"], found["elapsed_s"]) == (
        *("ended", 5, "trainer/0 ended with 5", 2.5),
    )


NOTE = json.dumps({"n": 7, "time": 1.0, "event": "note", "level": "info", "text": "here"})


@pytest.mark.parametrize(
    "message", ["", "no Python\n", "{}", "[]", '{"event": "end", "code": 999}', "[" * 3000, NOTE]
)
def test_other_messages_of_pod_0_are_shown(message: str) -> None:
    ended = make_pod(terminated={"exitCode": 78, "reason": "Error", "message": message})
    found = make_record(make_job(), [make_job()], ended)
    assert (found["state"], found["code"]) == ("ended", 78)
    assert found["reason"] == f"pod 0 ended with 78: {message.strip() or 'Error'}"


@pytest.mark.parametrize(
    ("kind", "status", "state", "told"),
    [
        ("Complete", "True", "ended", (0, "Over", 0)),
        ("Failed", "True", "ended", (76, "Over", 137)),
        ("FailureTarget", "True", "ended", (76, "Over", 137)),
        ("Suspended", "True", "waiting", (None, None, None)),
        ("Failed", "False", "waiting", (None, None, None)),
    ],
)
def test_conditions_tell_the_state_without_pod_0_and_a_known_loss_the_reason(
    kind: str, status: str, state: str, told: tuple[int | None, str | None, int | None]
) -> None:
    job = make_job(conditions=[{"type": kind, "status": status, "reason": "Over"}])
    found, lost = make_record(job, [], None), make_record(job, [], None, (137, "memory"))
    assert found["state"] == lost["state"] == state
    assert (found.get("code"), found.get("reason"), lost.get("code")) == told


@pytest.mark.parametrize(
    ("pod", "state"),
    [
        (None, "waiting"),
        ({"status": {}}, "waiting"),
        (make_pod(waiting={"reason": "ErrImagePull"}), "waiting"),
        (make_pod(running={"startedAt": MADE}), "running"),
    ],
)
def test_job_waits_until_its_pod_0_runs(pod: dict[str, Any] | None, state: str) -> None:
    assert make_record(make_job(), [make_job()], pod)["state"] == state


def test_job_whose_pods_are_being_removed_goes_on_with_its_pod_0() -> None:
    job = make_job(conditions=[{"type": "FailureTarget", "status": "True"}])
    assert make_record(job, [job], make_pod(running={"startedAt": MADE}))["state"] == "running"


@pytest.mark.parametrize(
    ("limit", "later_s", "abandoned"),
    [("60", 61, True), ("60", 59, False), ("", 1e9, False), ("soon", 1e9, False)],
)
def test_job_is_abandoned_once_its_launcher_is_late(limit: str, later_s: float, abandoned: bool) -> None:
    job = make_job()
    job["metadata"]["annotations"] = {BEGINNING: limit} if limit else {}
    assert is_abandoned(job, MADE_S + later_s) == abandoned


@pytest.mark.parametrize("told", [b'{"state":"running","job":5}', b"\xff garbage", b"[" * 3000, b"{}", b"5"])
def test_lines_that_are_no_records_are_left_out(told: bytes) -> None:
    assert find_record(told, "j") is None
    valid = json.dumps(make_record(make_job(), [make_job()], None)).encode()
    assert find_record(told + b"\n" + valid, "j") == json.loads(valid)
