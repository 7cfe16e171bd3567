"""Records of jobs, for later shells, from a cluster's objects as the API gives them in JSON. Pure."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, cast

from ...node import codes
from ...node.head.events import OF_END, Event, check_event
from ...node.later.record import WAITING, parse_record
from ...node.messages import JobRecord
from ...node.shapes import is_code, is_count

Object = Mapping[str, Any]  # of the API

INSTANCE: Final = "app.kubernetes.io/instance"
OF_JOBS: Final = "app.kubernetes.io/managed-by=pslaunch"
# Annotation of a Job from its creation to its release, with the number of seconds that this may take.
BEGINNING: Final = "pslaunch/beginning"
HELD: Final = "pslaunch/held"  # annotation of a Job whose launcher fetches its files and removes it
ENDING: Final = "pslaunch/ending"  # annotation of a Job: seconds for a pod's programs to end after a signal
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
OF_JOB: Final = "batch.kubernetes.io/job-name"
INDEX: Final = "batch.kubernetes.io/job-completion-index"
_INVALID: Final = (ValueError, TypeError, KeyError, RecursionError)  # in the records of a pod


def select_main(jobs: Sequence[Object]) -> list[Object]:
    """Return the Jobs of nodes 0, oldest first; others belong to them."""
    main = [job for job in jobs if job["metadata"]["labels"].get(INSTANCE) == job["metadata"]["name"]]
    return sorted(main, key=lambda job: read_time(job["metadata"]["creationTimestamp"]))


def read_time(text: Any) -> float:
    """Return the seconds since 1970 of a time of the API. Raises ValueError, OverflowError."""
    return datetime.fromisoformat(str(text)).timestamp()


def is_abandoned(job: Object, now_s: float) -> bool:
    """Return True for a Job whose launcher has died while it created the job's objects."""
    limit = job["metadata"].get("annotations", {}).get(BEGINNING)
    try:
        return now_s > read_time(job["metadata"]["creationTimestamp"]) + float(limit)
    except (TypeError, ValueError):
        return False


def make_record(
    main: Object, jobs: Sequence[Object], first: Object | None, loss: tuple[int, str] | None = None
) -> JobRecord:
    """Return the record of a job from the cluster's objects.

    jobs: all Jobs. first: pod 0, if it is there. loss: code and reason of a failure where it is not.
    """
    name = main["metadata"]["name"]
    ours = [job for job in jobs if job["metadata"]["labels"].get(INSTANCE) == name]
    record = {
        "job": name,
        "name": name,
        "backend": "k8s",
        "nodes": sum(job["spec"].get("completions", 1) for job in ours),
        "started": read_time(main["metadata"]["creationTimestamp"]),
        "processes": [],
        "held": HELD in main["metadata"].get("annotations", {}),
        **_read_state(main, first, loss),
    }
    return cast(JobRecord, record)


def _read_state(main: Object, first: Object | None, loss: tuple[int, str] | None) -> dict[str, Any]:
    if terminated := first and get_state(first, "terminated"):
        if end := read_end(terminated):
            return {"state": "ended", **{key: end[key] for key in OF_END}}
        code = terminated.get("exitCode", codes.FAILED)
        return {"state": "ended", "code": code, "reason": describe_end(terminated)}
    # FailureTarget: its pods are being removed, and with pod 0 the head is gone.
    over = ("Complete", "Failed", *(() if first else ("FailureTarget",)))
    for condition in main["status"].get("conditions", ()):
        kind = condition["type"]
        if condition["status"] == "True" and kind in over:
            said = ": ".join(filter(None, (condition.get("reason"), condition.get("message"))))
            failed = loss or (codes.NODE_LOST, said)
            code, reason = (codes.OK, said) if kind == "Complete" else failed
            return {"state": "ended", "code": code, "reason": reason or kind}
    return {"state": "running" if first and get_state(first, "running") else WAITING}


def _is_seconds(text: Any) -> bool:
    return isinstance(text, str) and re.fullmatch("[0-9]{1,7}", text) is not None


_SAID = {"reason?": str, "message?": str}
_STATE = {"running?": dict, "waiting?": _SAID, "terminated?": {"exitCode": is_code, **_SAID}}
_METADATA = {"name": str, "labels": dict, "uid": str, "resourceVersion": str}
_STATUS = {
    "conditions?": [{"type": str, "status": str, **_SAID}], "containerStatuses?": [{"state": _STATE}],
    "initContainerStatuses?": [{"state": _STATE}], **_SAID,
}  # fmt: skip
# Fields that we use, by kind.
SHAPES: Final[Mapping[str, Any]] = {
    "Pod": {"metadata": _METADATA, "spec": dict, "status": _STATUS},
    "Job": {
        "metadata": {
            **_METADATA, "creationTimestamp": read_time,
            "annotations?": {f"{ENDING}?": _is_seconds},
        },
        "spec": {"completions?": is_count}, "status": _STATUS,
    },
    "Event": {"involvedObject": {"kind?": str, "name?": str}, **_SAID},
}  # fmt: skip


def get_state(pod: Object, kind: str) -> Object | None:
    """Return this state of a pod's container: `running`, `terminated`, `waiting`; None in another."""
    found = pod["status"].get("containerStatuses") or [{"state": {}}]
    state: Object | None = found[0]["state"].get(kind)
    return state


def has_begun(pod: Object) -> bool:
    return bool(get_state(pod, "running") or get_state(pod, "terminated"))


def read_end(terminated: Object) -> Event | None:
    """Return the event `end` from the last message of pod 0; None if it has left none."""
    with contextlib.suppress(*_INVALID):
        end: Event = json.loads(terminated.get("message", ""))
        check_event(end)
        if end["event"] == "end":
            return end
    return None


def describe_end(terminated: Object) -> str:
    """Return words for the last state of a pod that has left no event."""
    said = terminated.get("message") or terminated.get("reason") or "no message"
    return f"pod 0 ended with {terminated.get('exitCode')}: {' '.join(said.split())}"


def find_record(answer: bytes, job: str) -> JobRecord | None:
    """Return a job's record from those that a pod has sent; invalid lines are left out."""
    for line in answer.splitlines():
        with contextlib.suppress(*_INVALID):
            record = parse_record(line)
            if record["job"] == job:
                return record
    return None
