"""The Kubernetes backend: a Job that begins by itself, and execs in its pods to follow it and fetch files."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import math
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Final

from ...errors import ClusterError, FileError, HostError, NodeLostError, PslaunchError, RightsError
from ...node import codes
from ...node.head.events import Event, make_end
from ...node.job import Node, Plan
from ...node.later.record import STATE_UNKNOWN, WAITING
from ...node.loop import ignore
from ...node.messages import JobRecord
from ..base import Backend
from ..lines import Line, News, Tell
from ..node_answers import SILENT_S, Answered, read_answer
from . import manifests
from .api import AT_ONCE, AWAY, EXEC, JOB, Cluster, begin_apart, open_cluster, try_again
from .api_errors import AbsentError, ConflictError
from .cluster_check import refuse_processors
from .job_records import (
    BEGINNING,
    ENDING,
    HELD,
    INSTANCE,
    OF_JOB,
    Object,
    describe_end,
    find_record,
    get_state,
    make_record,
    read_end,
    select_main,
)
from .pod_exec import PodExec, has_answered
from .pod_failures import explain_loss, explain_silence
from .pods import POD_LOOK_S, Pods, PodWait, list_job_objects, list_pods
from .spec import K8sReach

POD_GONE: Final = "the pod is gone, and with it all of its files that are in no volume claim"
BEGINNING_S: Final = 60.0  # for the creation of a job's objects; without a launcher they are swept then
CREATION_S: Final = 30.0  # of it, for an API server that is away
HELLO_S: Final = 20.0  # for the head's first bytes, on a busy machine
GONE_EXTRA_S: Final = 15.0  # past a pod's own time to end, for the cluster to remove it
DEFAULT_ENDING_S: Final = 30.0  # the cluster's
SHORTEST_GRACE_S: Final = 1
DISMISS_S: Final = 2.0  # after its own time to end, until a pod is dismissed
DISMISS: Final = ("/bin/sh", "-c", "kill -9 -1")  # all but the keeper, which then ends
TOLD_S: Final = 5.0  # for the cluster to report the beginning or end of a pod
SUSPENDED: Final = "its Job was suspended, and begins anew once it is released"
LIMIT: Final = "activeDeadlineSeconds"
# Kinds of a job's objects that its label finds; the Job first.
LABELLED: Final = ("Job", "Service", "ConfigMap", "NetworkPolicy")


class K8sBackend(Backend):
    """One job in a namespace. Its pods need no launcher; an attached one holds it by the line to its head."""

    name = "k8s"
    owns_nodes = True

    def __init__(self, reach: K8sReach) -> None:
        self._reach = reach
        self._attached = reach.lease_s > 0
        self._made: list[Object] = []  # all to remove, the Job first
        self._shared: list[Object] = []  # with other jobs: the cluster removes them after the last one
        self._own_limits: dict[str, int | None] = {}  # of Jobs, for the time when their programs run
        self._ending_s = 0.0  # of a pod's programs after a signal
        self.silent: set[str] = set()  # nodes, by name, whose machines do not answer
        self._cancelled, self._confirmed = threading.Event(), threading.Event()
        self._hurried = False
        self._answering: set[socket.socket] = set()
        self._count = 0  # of pods
        self._returns_s = 0.0  # for another pod 0, with another head, to come in the place of a lost one
        self._opening = threading.Lock()
        self._opened: Cluster | None = None

    @functools.cached_property
    def _cluster(self) -> Cluster:
        with self._opening:  # several threads may ask for it first
            self._opened = self._opened or open_cluster(self._reach.access)
            return self._opened

    @functools.cached_property
    def _pods(self) -> Pods:
        return Pods(self._cluster, self._reach.name)

    def _turn_to(self, job: str) -> None:
        """Speak of this job from now on."""
        self._reach = self._reach._replace(name=job)
        self._pods = Pods(self._cluster, job)

    # --- the beginning ---

    def begin(self, plan: Plan, tell: Tell) -> Line | Event | None:
        """Begin the job; return an observer's line to its head, None without the right to one.

        A job that is over by then gives its event `end`. Raises PslaunchError.
        """
        package = manifests.pack_package(plan, os.environ, lambda text: tell(News(text)))
        self._reach = manifests.add_lease(self._reach, plan, package)
        with ThreadPoolExecutor(AT_ONCE) as meanwhile:
            sweeping = meanwhile.submit(list_job_objects, self._cluster)  # deletes abandoned ones
            has_exec = all(meanwhile.map(self._cluster.has_right, EXEC))
            if not has_exec and self._reach.lease_s:
                self._cluster.demand_rights((*JOB, *EXEC))  # all that lack, at once
            if not has_exec:
                self._reach = self._reach._replace(linger_s=0.0)  # nothing could be fetched
            making = meanwhile.submit(manifests.make_objects, plan, self._reach, package)
            tell(News(manifests.describe_package(plan, self._reach, package), level="info"))
            refuse_processors(self._cluster, self._reach, plan, tell)
            sweeping.result()
        self._count = len(plan.nodes)
        self._returns_s = self._reach.wait_timeout_s if plan.outlives_head else 0.0
        self._ending_s = manifests.compute_ending_s(plan)
        wait = PodWait(self._pods, self._count, tell, self._reach.wait_timeout_s, self._share_again)
        self._create(making.result(), PodWait(self._pods, self._count, tell, CREATION_S))
        released = {} if self._reach.queue else {"suspend": False}  # the queue releases, perhaps long ago
        release = {"spec": released, "metadata": {"annotations": {BEGINNING: None}}}
        patch = functools.partial(self._cluster.patch, "Job", self._reach.name, release)
        wait.wait_for(patch, self._cancelled)
        if not has_exec:
            wait.wait_for(wait.have_all_begun, self._cancelled)  # more is not seen without an exec
            return None
        line = self._find_head(wait)
        threading.Thread(target=wait.go_on, args=[self._confirmed], daemon=True).start()
        return line

    def _create(self, things: Sequence[dict[str, Any]], wait: PodWait) -> None:
        """Create all, owned by the Job of node 0, which is suspended. Raises PslaunchError.

        wait: for an API server that is away just then.
        """
        *others, job = things
        limit_s = round(self._reach.wait_timeout_s + manifests.LIMIT_EXTRA_S)
        for thing in things if self._reach.lease_s else ():  # until its launcher holds it
            if thing["kind"] == "Job" and ((own_s := thing["spec"].get(LIMIT)) is None or own_s > limit_s):
                self._own_limits[thing["metadata"]["name"]] = own_s
                thing["spec"][LIMIT] = limit_s
        job["spec"]["suspend"] = True
        marks = {BEGINNING: f"{BEGINNING_S:g}", **({HELD: "true"} if self._attached else {})}
        job["metadata"].setdefault("annotations", {}).update(marks)
        made = self._create_one(wait, job)
        owner = {"apiVersion": job["apiVersion"], "kind": "Job", "name": self._reach.name}
        for thing in others:
            thing["metadata"]["ownerReferences"] = [{**owner, "uid": made["metadata"]["uid"]}]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(functools.partial(self._create_one, wait), others))

    def _create_one(self, wait: PodWait, thing: Object) -> Object:
        if self._cancelled.is_set():
            raise NodeLostError("cancelled")
        if INSTANCE not in thing["metadata"]["labels"]:
            self._shared.append(thing)
            return wait.wait_for(functools.partial(self._cluster.share, thing), self._cancelled)
        self._made.append({**thing, "spec": None})  # before it is there: the answer may be lost
        try:
            return self._cluster.create(thing)
        except ClusterError:
            return wait.wait_for(functools.partial(self._create_again, thing), self._cancelled)

    def _share_again(self, said: str) -> None:
        """Create what a pod waits for: a cluster may remove it just when it gets the job as its owner."""
        for thing in self._shared:
            if f'"{thing["metadata"]["name"]}" not found' in said:
                self._cluster.share(thing)

    def _create_again(self, thing: Object) -> Object:
        """Create an object, unless an earlier request whose answer was lost has done so: names are new."""
        try:
            return self._cluster.create(thing)
        except ConflictError:
            found = thing["kind"] == "Job"  # others need no uid, and a Secret may not be read
            return self._cluster.read_metadata("Job", thing["metadata"]["name"]) if found else thing

    # --- the line to the head ---

    def _find_head(self, wait: PodWait) -> Line | Event:
        """Wait for pod 0; return a line to the head in it, or the end of its job. Raises PslaunchError."""

        def look() -> Line | Event | None:
            first = self._pods.find_first()
            ended = first and get_state(first, "terminated")
            if ended and not read_end(ended):
                wait.search()
            if first and (found := self._open_line(first)):
                return found
            if wait.search_in_turn() and first and get_state(first, "running"):
                with contextlib.suppress(HostError):  # the pod may end meanwhile
                    return self._find_end(first)
            return None

        head = wait.wait_for(look, self._cancelled)
        assert head is not None
        return head

    def _open_line(self, pod: Object) -> Line | Event | None:
        """Return a line to the head in a pod, the end of its job, or None if there is no head yet."""
        if ended := get_state(pod, "terminated"):
            if end := read_end(ended):
                return end
            raise NodeLostError(describe_end(ended))
        if not get_state(pod, "running"):
            return None
        opened = self._start(pod, ["relay", self._reach.name])
        if has_answered(opened.fd, HELLO_S):
            return Line(opened.fd, opened.fd, opened.describe_end)
        os.close(opened.fd)
        return None

    def _start(self, pod: Object, words: Sequence[str]) -> PodExec:
        return PodExec(self._cluster, pod["metadata"]["name"], manifests.make_pod_command(self._reach, words))

    # --- the running job ---

    def reopen(self) -> Line | Event:
        """Return a new line for a lost one, or the event `end` of an ended job. Raises PslaunchError."""
        over = threading.Event()
        found = begin_apart(lambda: self._try_to_reopen(over))  # a pod that is lost keeps a try for a minute
        while not wait([found], POD_LOOK_S).done:
            with contextlib.suppress(*AWAY):
                why = explain_silence(f"{self._reach.name}-0", self._pods.find_all())
                if why and not self._returns_s:  # else until the cluster knows that the machine is gone
                    self.silent.add(f"{self._reach.name}-0")
                    over.set()
                    found.add_done_callback(_drop)
                    raise NodeLostError(why)
        return found.result()

    def _try_to_reopen(self, over: threading.Event) -> Line | Event:
        why: PslaunchError = NodeLostError(f"pod 0 of {self._reach.name} does not answer")
        limit_s = self._reach.lease_s + self._ending_s + GONE_EXTRA_S + self._returns_s
        for _ in try_again(limit_s, self._cancelled, POD_LOOK_S / 2):
            try:
                first = self._pods.find_first()
                if first is None:
                    raise NodeLostError(f"pod 0 of {self._reach.name} is gone")
                if found := self._open_line(first) or self._find_end(first):
                    return found
            except NodeLostError as e:
                if not self._returns_s or self._is_over():
                    raise
                why = e
            except PslaunchError as e:
                why = e
            if over.is_set():
                break
        raise why

    def _is_over(self) -> bool:
        """Return True if the cluster starts no other pod 0: its Job has ended, is suspended, or is gone."""
        with contextlib.suppress(*AWAY):
            jobs = list_job_objects(self._cluster, self._reach.name)
            states = {make_record(main, jobs, None)["state"] for main in select_main(jobs)}
            return states <= {"ended"} or any(main["spec"].get("suspend") for main in jobs)
        return False

    def _find_end(self, pod: Object) -> Line | Event | None:
        """Return the end of a job that is over, from its record; a line to its head while that lingers."""
        record = self._find_record(pod, self._reach.name)
        end = make_end(record) if record and record["state"] == "ended" else None
        return end and (self._open_line(pod) or end)  # it had begun and ended since the last try

    def _find_record(self, pod: Object, job: str) -> JobRecord | None:
        return find_record(b"".join(self._answer(pod, ["records"])), job)

    def confirm(self, over: threading.Event) -> None:
        """Do what is due once all programs of the job run, unless it is over. Raises PslaunchError."""
        self._confirmed.set()
        wait = PodWait(self._pods, self._count, ignore, self._reach.wait_timeout_s)
        for job, own_s in self._own_limits.items():
            lift = functools.partial(self._cluster.patch, "Job", job, {"spec": {LIMIT: own_s}})
            with contextlib.suppress(AbsentError):  # deleted meanwhile: the head ends the job and says so
                wait.wait_for(lift, over)

    def ask(self, node: Node, words: Sequence[str]) -> Iterator[bytes]:
        """Return the answer of a program; where it is cut, the same program's answer from there on."""
        if node.name in self.silent:
            raise FileError(f"{node.name}: its machine does not answer")
        seen = self._pods.seen.get(node.name)
        pod = seen if seen and get_state(seen, "running") else None
        answered, came_s, label = Answered(), time.monotonic(), f"{OF_JOB}={node.name.rpartition('-')[0]}"
        known = pod is not None
        for _ in try_again(math.inf):
            try:
                pod = pod or list_pods(self._cluster, label).get(node.name)  # another one, after a restart
                known = True
                if pod and get_state(pod, "running"):
                    for piece in answered.skip(self._answer(pod, words)):
                        yield piece
                        came_s = time.monotonic()
                    return
                is_late = time.monotonic() > came_s + TOLD_S or self._cancelled.is_set()
                if is_late or not pod or get_state(pod, "terminated"):
                    raise FileError(f"{node.name}: {POD_GONE}")
            except (HostError, AbsentError, *AWAY) as e:  # its machine or the API may only be away
                is_late = time.monotonic() > came_s + SILENT_S
                is_refused = isinstance(e, RightsError) and not self._reach.lease_s  # which holds no job
                if is_late or is_refused or not known or self._cancelled.is_set():
                    raise
            pod = None

    def _answer(self, pod: Object, words: Sequence[str]) -> Iterator[bytes]:
        name, opened = pod["metadata"]["name"], self._start(pod, words)

        with socket.socket(fileno=opened.fd) as there:
            self._answering.add(there)
            read_fd = os.dup(opened.fd)
            try:
                yield from read_answer(read_fd, name, words[0], lambda _cut: opened.describe_end())
            finally:
                self._answering.discard(there)

    # --- later shells ---

    def keep_way(self, _path: str) -> K8sReach:
        access, python = self._cluster.access, self._reach.agent_python
        return K8sReach(self._reach.name, "", agent_python=python, access=access)

    @property
    def keeps_files(self) -> bool:
        """True if the files of a detached job stay for a time after its end."""
        return self._reach.linger_s > 0

    def describe_keeping(self) -> str:
        if not self.keeps_files:
            return "its files end with its pods, but for those in volume claims"
        return f"its output and logs can be fetched until {self._reach.linger_s:g} s after its end (--linger)"

    def open_head_line(self, record: Mapping[str, Any]) -> Line:
        self._turn_to(record["job"])
        first = self._pods.find_first()
        found = first and self._open_line(first)
        if not isinstance(found, Line):
            raise ConnectionRefusedError(errno.ECONNREFUSED, "no head answers in its pod 0")
        return found

    def read_records(self) -> Iterator[bytes]:
        jobs, end_s = list_job_objects(self._cluster, self._reach.name), time.monotonic() + TOLD_S
        for main in select_main(jobs):
            if record := self._make_record(main, jobs, end_s):
                yield json.dumps(record).encode() + b"\n"

    def _make_record(self, main: Object, jobs: Sequence[Object], end_s: float) -> JobRecord | None:
        """Return the record of a job as pod 0 or the cluster reports it; None if it is gone."""
        name, record = main["metadata"]["name"], None
        pods = Pods(self._cluster, name)
        for number in try_again(end_s - time.monotonic()):
            if number:
                jobs = list_job_objects(self._cluster, name)
                if not (found := select_main(jobs)):
                    return None
                (main,) = found
            first = pods.find_all().get(f"{name}-0")
            record = make_record(main, jobs, first, explain_loss(pods.seen))
            try:
                if first and record["state"] == "running":
                    with contextlib.suppress(RightsError):  # to ask pod 0
                        told: JobRecord = self._find_record(first, name) or {"state": WAITING}
                        record.update(told)
                    if main["spec"].get("suspend") and record["state"] == "ended":
                        record["reason"] = f"{record['reason']}; {SUSPENDED}"
                break
            except PslaunchError as e:  # perhaps it ends just now
                record.update({"state": STATE_UNKNOWN, "reason": str(e)})
        return record and pods.add_reasons(record)

    def explain_forgotten(self) -> PslaunchError:
        return FileError(
            f"the cluster has no job {self._reach.name} any more: it was deleted, or removed --ttl seconds "
            "after its end, and its files with it"
        )

    def remove_job(self, job: str) -> list[str]:
        self._turn_to(job)
        self._hurried = all(map(self._cluster.has_right, EXEC))  # then its head has ended it already
        for kind in LABELLED:
            with contextlib.suppress(RightsError):
                found = self._cluster.list_objects(kind, label_selector=f"{INSTANCE}={job}")
                self._made += [{"kind": kind, **thing} for thing in found]
        marks = [one["metadata"].get("annotations", {}) for one in self._made if one["kind"] == "Job"]
        self._ending_s = max((float(m[ENDING]) for m in marks if ENDING in m), default=DEFAULT_ENDING_S)
        self._made.append({"kind": "Secret", "metadata": {"name": f"{job}-secret"}})
        return self.remove()

    # --- the end ---

    def cancel(self) -> None:
        self._cancelled.set()
        for answering in [*self._answering]:
            with contextlib.suppress(OSError):  # it is over already
                answering.shutdown(socket.SHUT_RDWR)

    def limit_end(self, limit_s: float) -> None:
        self._hurried |= limit_s == 0.0

    def release(self) -> None:
        self._made.clear()
        self._confirmed.set()

    def close(self) -> None:
        self._cancelled.set()
        with contextlib.suppress(PslaunchError):
            self.remove()

    def explain_end(self, code: int) -> tuple[str, int]:
        if code != codes.NODE_LOST or self.silent:  # the cluster notices silence only later
            return "", code
        for _ in self._pods.look_again(TOLD_S):
            with contextlib.suppress(PslaunchError):  # of one look
                pods = self._pods.find_all().values()
                cause = self._pods.explain()
                if cause and not cause.waits:
                    return cause.text, cause.code
                if len(pods) < self._count or any(get_state(pod, "terminated") for pod in pods):
                    break
        return "", code

    def remove(self) -> list[str]:
        """Remove the job; return in words the parts of it that remain, and the reasons."""
        self._confirmed.set()
        left, failed, dismissed = list(self._made), "", set[str]()
        dismiss_s = time.monotonic() + DISMISS_S + (0.0 if self._hurried else self._ending_s)
        if not left:
            return []
        self._made.clear()
        for _ in self._pods.look_again(self._ending_s + GONE_EXTRA_S):
            try:
                with ThreadPoolExecutor(AT_ONCE) as pool:
                    deleting = [(thing, pool.submit(self._cluster.delete, thing)) for thing in left]
                left = [thing for thing, done in deleting if done.exception()]
                for _, done in deleting:
                    done.result()  # raises its error
                pods = self._pods.find_all()
                if not pods:
                    return []
                if all(name in self.silent and get_state(pod, "running") for name, pod in pods.items()):
                    break  # they stay until their machines answer
                for pod in pods.values() if self._hurried else ():
                    self._cluster.delete({"kind": "Pod", **pod}, gracePeriodSeconds=SHORTEST_GRACE_S)
                # A kubelet does not shorten the grace of a pod that waits for a fetch.
                late = {p["metadata"]["name"] for p in pods.values() if time.monotonic() > dismiss_s}
                for name in late - dismissed:
                    begin_apart(functools.partial(PodExec, self._cluster, name, DISMISS))
                dismissed |= late
            except PslaunchError as e:
                failed = str(e)
        rest = ", ".join(map(_describe, [*left, *self._pods.seen.values()]))
        remedy = f"pslaunch stop {self._reach.name} --namespace={self._cluster.namespace} removes it"
        return [f"{failed or 'not gone yet'}: {rest}; {remedy}"]


def _drop(late: Future[Line | Event]) -> None:
    """Close a line that nobody needs any more."""
    if not late.exception() and isinstance(line := late.result(), Line):
        line.close()


def _describe(thing: Object) -> str:
    at = thing.get("spec") and thing["spec"].get("nodeName")
    return f"{thing.get('kind', 'Pod')} {thing['metadata']['name']}{f' on {at}' if at else ''}"
