"""Jobs of a namespace, and their pods: listed, explained while they do not come, and waited for."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Final, TypeVar

from ...errors import NodeLostError, PreflightError, PslaunchError, RightsError
from ...node import codes
from ...node.later.record import OVER, WAITING
from ...node.listing import show_few
from ...node.loop import ignore
from ...node.messages import JobRecord
from ..lines import News, Tell
from .api import AWAY, Cluster, try_again
from .api_errors import ConflictError
from .job_records import (
    INDEX,
    INSTANCE,
    OF_JOB,
    OF_JOBS,
    QUEUE_LABEL,
    SHAPES,
    Object,
    get_state,
    has_begun,
    is_abandoned,
)
from .pod_failures import UNUSUAL, PodCause, explain_pods

NO_PODS: Final = (
    "no pod of it runs any more, and its files ended with the pods, but for those in volume claims: "
    "fetch them within --linger seconds after its end, and before pslaunch stop"
)
NOT_BEGUN: Final = "its pods do not all run yet"
SHOWN_PODS: Final = 3
POD_LOOK_S: Final = 2.0  # between two searches for the reason why pods do not start
REFUSED_S: Final = 10.0  # limit of refusals in a row by a server that has just begun

T = TypeVar("T")


class Pods:
    def __init__(self, cluster: Cluster, job: str) -> None:
        self._cluster, self._job = cluster, job
        self.seen: Mapping[str, Object] = {}  # by the name of the node
        self._watched = ""  # label of the pods that were listed last

    def find_all(self) -> Mapping[str, Object]:
        """Return the pods by the names of their nodes. Raises PslaunchError."""
        self._watched = f"{INSTANCE}={self._job}"
        self.seen = list_pods(self._cluster, self._watched)
        return self.seen

    def find_first(self) -> Object | None:
        """Return pod 0 of the job, without a look at the others. Raises PslaunchError."""
        label = f"{INSTANCE}={self._job},{INDEX}=0"
        first = list_pods(self._cluster, label).get(f"{self._job}-0")
        self._watched = "" if first and get_state(first, "running") else label  # no change shows its head
        return first

    def look_again(self, limit_s: float, stop: threading.Event | None = None) -> Iterator[int]:
        """Yield as `try_again`, but wait for a change of the pods that were listed last."""
        for number in try_again(limit_s, stop):
            yield number
            if self._watched:
                with contextlib.suppress(PslaunchError):  # the next list says it
                    self._cluster.await_change("Pod", label_selector=self._watched)

    def explain(self) -> PodCause | None:
        """Return the reason why pods do not start, if there is one. Raises PslaunchError."""
        events = self._cluster.list_objects("Event", field_selector=UNUSUAL)
        ours = [e for e in events if e["involvedObject"].get("name", "").startswith(self._job)]
        pods = self.seen = list_pods(self._cluster, f"{INSTANCE}={self._job}")  # others may be watched
        jobs = self._cluster.list_objects("Job", label_selector=f"{INSTANCE}={self._job}")
        suspended = {job["metadata"]["name"]: job for job in jobs if job["spec"].get("suspend")}
        cause = explain_pods([*pods.values()], ours, jobs)
        if cause or pods:
            return cause
        if not jobs:
            text = f"job {self._job} was deleted; pslaunch does not start it again"
            return PodCause(codes.NODE_LOST, text, waits=False)
        if main := suspended.get(self._job):
            queue = main["metadata"]["labels"].get(QUEUE_LABEL)
            by = f"the queue {queue} has not released it" if queue else "it is suspended"
            remedy = "look at it with kubectl describe localqueues,workloads"
            text = f"job {self._job}: {by}; --wait_timeout counts from its release; {remedy}"
            return PodCause(codes.PREFLIGHT, text, waits=True, is_suspended=True)
        return None

    def describe_obstacle(self) -> str:
        """Return the reason why pods do not start, "" if there is none, or no right to see it."""
        with contextlib.suppress(PslaunchError):
            if cause := self.explain():
                return cause.text
        return ""

    def add_reasons(self, record: JobRecord) -> JobRecord:
        """Return the record of the job with the reasons for which its pods or files are not there."""
        seen = self.seen.values()
        if record["state"] in OVER and not any(get_state(pod, "running") for pod in seen):
            record["unreachable"] = f"job {record['job']}: {NO_PODS}"
        elif record["state"] == WAITING:
            record["reason"] = self.describe_obstacle() or NOT_BEGUN
        elif record["state"] == "running" and sum(map(has_begun, seen)) < record["nodes"]:
            record.update({"reason": why} if (why := self.describe_obstacle()) else {})
        return record

    def describe_cut(self, limit_s: float) -> str:
        """Return the failure of pods that run, but not all of their programs."""
        first, *others = (f"{name} on {p['spec'].get('nodeName')}" for name, p in sorted(self.seen.items()))
        cut = f"not all of {show_few(others, SHOWN_PODS)} reach pod {first}; "
        cut += "look for a NetworkPolicy: --network_policy allows connections into them, another must allow "
        cut += "those out of them, and port 53 of the cluster's name servers; "
        return (
            f"the job's pods run, but not its programs, within {limit_s:g} s (--wait_timeout): "
            f"{cut if others else ''}a large package needs a longer --wait_timeout"
        )


def list_pods(cluster: Cluster, label: str) -> dict[str, Object]:
    """Return all pods with a label by the names of their nodes, the newest of each. Raises PslaunchError."""
    found = cluster.list_objects("Pod", label_selector=label)
    found = sorted(found, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")))
    labels = [(pod, pod["metadata"]["labels"]) for pod in found]
    return {f"{of[OF_JOB]}-{of[INDEX]}": pod for pod, of in labels if {OF_JOB, INDEX} <= of.keys()}


def list_job_objects(cluster: Cluster, name: str = "") -> list[Object]:
    """Return all Jobs that pslaunch has made, or those of one job; abandoned ones are deleted."""
    label = f"{OF_JOBS},{INSTANCE}={name}" if name else OF_JOBS
    answer = cluster.request("list Jobs", "get", cluster.locate("Job"), label_selector=label)
    found: list[Object] = cluster.parse("list Jobs", answer, {"items": [SHAPES["Job"]]})["items"]
    now_s = 0.0  # then none is abandoned
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        now_s = parsedate_to_datetime(answer.headers.get("Date")).timestamp()
    abandoned = [job for job in found if is_abandoned(job, now_s)]
    for job in abandoned:
        seen = {key: job["metadata"][key] for key in ("uid", "resourceVersion")}
        with contextlib.suppress(ConflictError, RightsError):  # released meanwhile; another user's
            cluster.delete({"kind": "Job", **job}, preconditions=seen)
    return [job for job in found if job not in abandoned]


class PodWait:
    """Wait for a job's pods: reports a passing reason for a delay, raises the error of any other."""

    def __init__(
        self, pods: Pods, count: int, tell: Tell, limit_s: float, mend: Callable[[str], object] = ignore
    ) -> None:
        """mend: takes each reason, and may do something against it. It may raise PslaunchError."""
        self._pods, self._count, self._tell, self._limit_s, self._mend = pods, count, tell, limit_s, mend
        self._began_s = self._looked_s = self._unrefused_s = time.monotonic()
        self._told: set[str] = set()

    def wait_for(self, look: Callable[[], T], cancelled: threading.Event) -> T:
        """Return the first true result; the API may be away until pods are late. Raises PslaunchError."""
        for _ in self._pods.look_again(math.inf, cancelled):
            try:
                if found := look():
                    return found
                self._unrefused_s = time.monotonic()
            except AWAY as e:
                if not isinstance(e, RightsError):
                    self._unrefused_s = time.monotonic()
                is_refused = time.monotonic() > self._unrefused_s + REFUSED_S
                if is_refused or self._is_late():
                    raise
                self._tell_once(str(e))
        raise NodeLostError("cancelled")

    def have_all_begun(self) -> bool:
        """Return True if all pods have begun, else search in turn. Raises PslaunchError."""
        begun = sum(map(has_begun, self._pods.find_all().values()))
        if begun < self._count:
            self.search_in_turn()
        return begun == self._count

    def _is_late(self) -> bool:
        return time.monotonic() > self._began_s + self._limit_s

    def _tell_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._tell(News(text))

    def go_on(self, confirmed: threading.Event) -> None:
        """Report why pods do not start, until all programs run."""
        for _ in try_again(math.inf, confirmed, POD_LOOK_S):
            try:
                running = [pod for pod in self._pods.find_all().values() if get_state(pod, "running")]
                if len(running) < self._count:
                    self.search()
                elif self._is_late():
                    raise PreflightError(self._pods.describe_cut(self._limit_s))
            except PreflightError as e:
                self._tell(News(str(e), e.exit_code))
                return
            except PslaunchError:  # of the API, which the line to the head shows too
                continue

    def search_in_turn(self) -> bool:
        """Search if the last time was POD_LOOK_S ago, and return True then. Raises PslaunchError."""
        if time.monotonic() < self._looked_s + POD_LOOK_S:
            return False
        self.search()
        return True

    def search(self) -> None:
        """Search now. Raises PreflightError for a reason that does not pass, or has not in time."""
        self._looked_s = time.monotonic()
        cause = self._pods.explain()
        if cause and cause.is_suspended:
            self._began_s = self._looked_s
        is_late = self._is_late()
        if cause and (is_late or not cause.waits):
            raise PreflightError(cause.text, cause.code)
        if is_late:
            raise PreflightError(f"the job's pods are not there within {self._limit_s:g} s (--wait_timeout)")
        if cause:
            self._mend(cause.text)
            self._tell_once(cause.text)
