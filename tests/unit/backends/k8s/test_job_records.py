"""Records of jobs from a cluster's objects: their state, their end, and Jobs that nobody released."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pslaunch.backends.k8s.job_records import (
    BEGINNING,
    find_record,
    is_abandoned,
    make_record,
    read_end,
    select_main,
)
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


def test_record_has_size_and_start_of_a_job() -> None:
    jobs = [make_job(), make_job("j-server", pods=3), make_job("other", "other")]
    found = make_record(jobs[0], jobs, None)
    assert (found["job"], found["nodes"], found["started"], found["state"]) == ("j", 5, MADE_S, "waiting")
    assert record.parse_record(json.dumps(found)) == found


def test_only_the_job_of_node_0_is_a_job() -> None:
    jobs = [make_job("j-server"), make_job(), make_job("i", "i")]
    assert [job["metadata"]["name"] for job in select_main(jobs)] == ["j", "i"]


def test_last_message_of_pod_0_is_the_end() -> None:
    ended = make_pod(terminated={"exitCode": 5, "message": json.dumps(END)})
    found = make_record(make_job(), [make_job()], ended)
    assert (found["state"], found["code"], found["reason"], found["elapsed_s"]) == (
        *("ended", 5, "trainer/0 ended with 5", 2.5),
    )


@pytest.mark.parametrize(
    "message", ["", "no Python\n", "{}", "[]", '{"event": "end", "code": 999}', "[" * 3000]
)
def test_other_messages_of_pod_0_are_shown(message: str) -> None:
    ended = make_pod(terminated={"exitCode": 78, "reason": "Error", "message": message})
    found = make_record(make_job(), [make_job()], ended)
    assert (found["state"], found["code"]) == ("ended", 78)
    assert found["reason"] == f"pod 0 ended with 78: {message.strip() or 'Error'}"


@pytest.mark.parametrize(
    ("condition", "state", "code"),
    [
        ({"type": "Complete", "status": "True"}, "ended", 0),
        ({"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "late"}, "ended", 76),
        ({"type": "FailureTarget", "status": "True", "reason": "BackoffLimitExceeded"}, "ended", 76),
        ({"type": "Suspended", "status": "True"}, "waiting", None),
        ({"type": "Failed", "status": "False"}, "waiting", None),
    ],
)
def test_conditions_tell_the_state_without_pod_0(
    condition: dict[str, str], state: str, code: int | None
) -> None:
    found = make_record(make_job(conditions=[condition]), [], None)
    assert (found["state"], found.get("code")) == (state, code)


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


def test_known_loss_is_the_reason_of_a_failure_without_pod_0() -> None:
    job = make_job(conditions=[{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}])
    for loss, told in ((None, (76, "BackoffLimitExceeded")), ((137, "memory"), (137, "memory"))):
        found = make_record(job, [job], None, loss)
        assert (found["code"], found["reason"]) == told
    complete = make_job(conditions=[{"type": "Complete", "status": "True"}])
    assert make_record(complete, [complete], None, (137, "memory"))["code"] == 0


@pytest.mark.parametrize(
    ("limit", "later_s", "abandoned"),
    [("60", 61, True), ("60", 59, False), (None, 1e9, False), ("soon", 1e9, False)],
)
def test_job_is_abandoned_once_its_launcher_is_late(
    limit: str | None, later_s: float, abandoned: bool
) -> None:
    job = make_job()
    job["metadata"]["annotations"] = {} if limit is None else {BEGINNING: limit}
    assert is_abandoned(job, MADE_S + later_s) == abandoned


@pytest.mark.parametrize("told", [b'{"state":"running","job":5}', b"\xff garbage", b"[" * 3000, b"{}", b"5"])
def test_lines_that_are_no_records_are_left_out(told: bytes) -> None:
    assert find_record(told, "j") is None
    valid = json.dumps(make_record(make_job(), [make_job()], None)).encode()
    assert find_record(told + b"\n" + valid, "j") == json.loads(valid)


def test_another_event_than_the_end_is_no_end() -> None:
    note = {"n": 7, "time": 1.0, "event": "note", "level": "info", "text": "here"}
    assert read_end({"exitCode": 0, "message": json.dumps(note)}) is None
