"""Failures of pods in words: the cause, from pods and events as the API gives them in JSON. Pure.

The state of a pod has its own failure; events and conditions explain why none could be created or placed.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from ...node import codes
from .api_errors import find_refusal_remedy
from .job_records import OF_JOB, Object, get_state

KILLED: Final = codes.SIGNAL_BASE + signal.SIGKILL
MAX_WORDS: Final = 500  # of the cluster, in characters
# Selector of events without those of every healthy pod, which fill a busy namespace.
UNUSUAL: Final = ",".join(
    f"reason!={reason}"
    for reason in ("Scheduled", "Pulled", "Created", "Started", "SuccessfulCreate", "Completed")
)


class PodCause(NamedTuple):
    """Reason why a job's pods do not start, or have ended."""

    code: int
    text: str  # the pod, the failure, the cluster's own words, the remedy
    waits: bool  # it may pass: said at once, and a failure once --wait_timeout is over
    is_suspended: bool = False  # by a queue, whose time does not count


class PodFailure(NamedTuple):
    reasons: str  # expressions for the cluster's reason and message
    message: str
    code: int
    text: str
    remedy: str
    waits: bool = False


class _Sign(NamedTuple):
    """Statement of the cluster about an object."""

    kind: str  # Pod or Job
    name: str
    reason: str
    message: str


_PULL: Final = "ErrImagePull|ImagePullBackOff|ErrImageNeverPull|InvalidImageName|ImageInspectError"
_EVICTED: Final = "EvictionByEvictionAPI|DeletionByTaintManager|TerminationByKubelet|DeletionByPodGC|Evicted"
_MOUNT: Final = "FailedMount|FailedAttachVolume"
OWN_VOLUMES: Final = ("files", "pieces", "secret", "workspace", "home", "temporary")
_BAD_CONDITIONS: Final = (("PodScheduled", "False"), ("DisruptionTarget", "True"))

# The first that fits a sign of any pod is the cause.
FAILURES: Final = (
    PodFailure(f"{_PULL}|Error|StartError", "no match for platform|exec format error", codes.PREFLIGHT,
        "its image is for another processor",
        "choose an --image for it, or nodes by --node_selector=kubernetes.io/arch=NAME"),
    PodFailure(_PULL, "", codes.PREFLIGHT,
        "its image can't be pulled",
        "check --image, and --image_pull_secret where the registry asks for one"),
    PodFailure("StartError", "", codes.PREFLIGHT,
        "its image can't run /bin/sh", "choose an --image with a shell and Python 3.9 or later"),
    PodFailure("Error", "no Python 3.9 or later", codes.PREFLIGHT,
        "its image has no suitable Python", "choose another --image, or name its Python by --agent_python"),
    # api_errors knows better remedies for most
    PodFailure("FailedCreate", "forbidden|denied|is invalid", codes.PREFLIGHT,
        "the cluster refuses the pod", "ask the cluster's administrator"),
    PodFailure("OOMKilled", "", KILLED, "its memory was not enough", "raise --memory"),
    PodFailure("DeadlineExceeded", "", codes.NODE_LOST, "the job's time is over", "raise --deadline"),
    PodFailure("NodeNotReady", "", codes.NODE_LOST,
        "its machine does not answer", "ask the cluster's administrator"),
    PodFailure("PreemptionByScheduler", "", codes.NODE_LOST,
        "a pod of higher priority took its place",
        "give it a higher priorityClassName by --patch, or start the job again later"),
    PodFailure(_EVICTED, "", codes.NODE_LOST,
        "it was evicted from its machine", "start the job again; other machines take it"),
    PodFailure("JobSuspended", "", codes.NODE_LOST,
        "its job was suspended while it ran, as by a queue for another job",
        "start the job again; a queue that releases a suspended job begins it anew"),
    PodFailure("Deleted|Killing", "", codes.NODE_LOST,
        "it was deleted or evicted", "pslaunch does not start it again"),
    PodFailure("Unschedulable", r"Insufficient \S+", codes.PREFLIGHT,
        "no machine has enough left for it",
        "ask for less (--cpu, --memory, --gpus), or wait for other jobs", waits=True),
    PodFailure("Unschedulable", "(?i)persistentvolumeclaim", codes.PREFLIGHT,
        "its volume claim is not bound",
        "check --pvc: the claim, its storage class and its volume", waits=True),
    PodFailure("Unschedulable", "untolerated taint", codes.PREFLIGHT,
        "machines keep it away by taints",
        "give tolerations for those that it may use by --patch", waits=True),
    PodFailure("Unschedulable", "", codes.PREFLIGHT,
        "no machine suits it", "check --node_selector", waits=True),
    PodFailure(_MOUNT, r"secret \"\S+-secret\" not found", codes.PREFLIGHT,
        "the job's secret is missing", "make it by the command that render prints", waits=True),
    PodFailure(_MOUNT, rf'volume "({"|".join(OWN_VOLUMES)})"', codes.PREFLIGHT,
        "a volume of the job's own can't be mounted",
        "apply all that render prints, or ask the cluster's administrator", waits=True),
    PodFailure(_MOUNT, "", codes.PREFLIGHT,
        "a volume can't be mounted", "check --pvc and --patch: the claim or the volume there", waits=True),
    PodFailure("CreateContainer(Config)?Error", "(?i)secret", codes.PREFLIGHT,
        "a secret for its environment is missing",
        "check secretKeyRef in --patch, or make the secret", waits=True),
    PodFailure("CreateContainer(Config)?Error|RunContainerError|FailedCreatePodSandBox", "", codes.PREFLIGHT,
        "its container can't be made", "ask the cluster's administrator", waits=True),
    PodFailure("Pulling", "", codes.PREFLIGHT,
        "its image is being pulled", "give a longer --wait_timeout, or a smaller --image", waits=True),
)  # fmt: skip


def explain_pods(
    pods: Sequence[Object], events: Sequence[Object], jobs: Sequence[Object] = ()
) -> PodCause | None:
    """Return why pods of a job do not start, or have ended; None while nothing is wrong.

    events: of the job's pods and Jobs, in any order; earlier ones than the pods' states do no harm.
    """
    suspended = [job["metadata"]["name"] for job in jobs if job["spec"].get("suspend")]
    signs = [*_list_pod_signs(pods, suspended), *_list_job_signs(jobs), *_list_event_signs(pods, events)]
    for one in FAILURES:
        found = [
            s for s in signs if re.fullmatch(one.reasons, s.reason) and re.search(one.message, s.message)
        ]
        if found:
            return _describe(one, found, {pod["metadata"]["name"]: pod for pod in pods})
    return None


def explain_loss(pods: Mapping[str, Object]) -> tuple[int, str] | None:
    """Return code and reason of the end of a job whose pods a cluster has removed because one failed.

    pods: those that are left, by the names of their nodes.
    """
    if not (failed := _find_failed(pods)):
        return None
    if cause := explain_pods([pods[name] for name in failed], ()):
        return cause.code, cause.text
    name = min(failed, key=lambda name: str(failed[name].get("finishedAt", "")))
    code, machine = failed[name]["exitCode"], pods[name]["spec"].get("nodeName")
    how = "its keeper was killed" if code == KILLED else f"it ended with {code}"
    why = _shorten(failed[name].get("message", "")) or how
    return codes.NODE_LOST, f"pod {name} on {machine} was lost: {why}"


def explain_silence(node: str, pods: Mapping[str, Object]) -> str:
    """Return why a pod that does not answer never will; "" while it may. pods: by the names of their nodes.

    Its machine is silent to the cluster too, and may still come back, but not for a pod that is to be deleted
    or whose job has lost another pod.
    """
    pod = pods.get(node)
    # A kubelet that speaks sets both conditions; the cluster itself sets only the first.
    if not (pod and _has_condition(pod, "Ready", "False") and _has_condition(pod, "ContainersReady", "True")):
        return ""
    text = f"pod {node} on {pod['spec'].get('nodeName')} and its machine do not answer (NodeNotReady)"
    if "deletionTimestamp" in pod["metadata"]:
        conditions = pod["status"]["conditions"]
        said = (_shorten(c.get("message", "")) for c in conditions if c["type"] == "DisruptionTarget")
        return ": ".join(filter(None, (f"{text}, and the cluster removes it", *said)))
    failed = ", ".join(sorted(_find_failed(pods)))
    return f"{text}, and without it {failed} ended" if failed else ""


def _find_failed(pods: Mapping[str, Object]) -> Mapping[str, Object]:
    """Return the last states of the pods that have failed, by the names of their nodes."""
    states = {name: get_state(pod, "terminated") for name, pod in pods.items()}
    return {name: state for name, state in states.items() if state and state["exitCode"]}


def _describe(failure: PodFailure, signs: Sequence[_Sign], pods: Mapping[str, Object]) -> PodCause:
    first = signs[0]
    node = _cut_suffix(first.name) if first.kind == "Pod" else first.name
    machine = first.name in pods and pods[first.name]["spec"].get("nodeName")
    others = len({_cut_suffix(sign.name) for sign in signs}) - 1
    place = f" on {machine}" if machine else ""
    more = f" (and {others} more)" if others else ""
    words = f": {said}" if (said := _shorten(first.message)) else ""
    remedy = find_refusal_remedy(first.message) if first.reason == "FailedCreate" else ""
    text = f"{first.kind.lower()} {node}{place}{more}: {failure.text}{words}; {remedy or failure.remedy}"
    return PodCause(failure.code, text, failure.waits)


def _shorten(message: str) -> str:
    """Return the cluster's words on one line, without the scheduler's about preemption."""
    words = " ".join(message.split())
    words = re.sub(r"\. (no new claims to deallocate|preemption:|not found$).*", "", words)
    words = re.sub(
        r"^(Error creating: pods \S+ is forbidden|failed to pull and unpack image \S+): ", "", words
    )
    return words if len(words) <= MAX_WORDS else f"{words[:MAX_WORDS]}…"


def _list_pod_signs(pods: Sequence[Object], suspended: Container[str]) -> Iterator[_Sign]:
    """Yield failures from the states of pods, those of pods that were deleted first before others."""
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"].get("deletionTimestamp", ""))):
        status = pod["status"]
        containers = (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
        states = [c["state"].get(key) for c in containers for key in ("waiting", "terminated")]
        conditions = [c for c in status.get("conditions", ()) if (c["type"], c["status"]) in _BAD_CONDITIONS]
        why = "JobSuspended" if pod["metadata"]["labels"].get(OF_JOB) in suspended else "Deleted"
        deleted = {"reason": why} if "deletionTimestamp" in pod["metadata"] else None
        for said in filter(None, (*states, *conditions, status, deleted)):
            if "reason" in said:
                yield _Sign("Pod", pod["metadata"]["name"], said["reason"], said.get("message", ""))


def _list_job_signs(jobs: Sequence[Object]) -> Iterator[_Sign]:
    """Yield failures of Jobs; an event that says the same follows the deletion of their pods."""
    for job in jobs:
        for said in job["status"].get("conditions", ()):
            if said["status"] == "True" and said["type"] in ("FailureTarget", "Failed"):
                name, reason = job["metadata"]["name"], said.get("reason", "")
                yield _Sign("Job", name, reason, said.get("message", ""))


def _list_event_signs(pods: Sequence[Object], events: Sequence[Object]) -> Iterator[_Sign]:
    """Yield failures from events, without those that have passed since."""
    known = {pod["metadata"]["name"]: pod for pod in pods}
    come = {_cut_suffix(name) for name in known}
    for event in events:
        kind, name = (event["involvedObject"].get(key, "") for key in ("kind", "name"))
        reason, message = event.get("reason", ""), event.get("message", "")
        pod = known.get(name)
        if refused := re.match(r'Error creating: pods "(\S+?)-?"', message):
            kind, name = "Pod", refused[1]
            passed = _cut_suffix(name) in come
        elif reason == "NodeNotReady":
            passed = pod is None or _has_condition(pod, "Ready", "True")
        else:
            containers = pod["status"].get("containerStatuses", ()) if pod else ()
            passed = any("waiting" not in container["state"] for container in containers)
        if not passed:
            yield _Sign(kind, name, reason, message)


def _has_condition(pod: Object, kind: str, value: str) -> bool:
    return any((c["type"], c["status"]) == (kind, value) for c in pod["status"].get("conditions", ()))


def _cut_suffix(pod: str) -> str:
    """Return the name of a pod without its random end: the node's in the plan."""
    return re.sub(r"-[a-z0-9]{5}$", "", pod)
