"""A launcher's side of a job in pods: its beginning, answers that are cut, and an API that is away."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import random
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslaunch.backends.k8s import FACE, manifests
from pslaunch.backends.k8s import backend as k8s
from pslaunch.backends.k8s.api import Cluster, try_again
from pslaunch.backends.k8s.api_errors import AbsentError, ConflictError, Right
from pslaunch.backends.k8s.backend import LIMIT, K8sBackend
from pslaunch.backends.k8s.job_records import BEGINNING, HELD, INDEX, INSTANCE, OF_JOB, Object
from pslaunch.backends.k8s.manifests import MAX_PACKAGE_BYTES
from pslaunch.backends.k8s.pod_failures import PodCause
from pslaunch.backends.k8s.pods import Pods, PodWait
from pslaunch.backends.k8s.spec import Access, K8sReach
from pslaunch.backends.lines import Line
from pslaunch.backends.local.spec import make_local_site
from pslaunch.backends.node_answers import Answered
from pslaunch.errors import ClusterError, FileError, HostError, NodeLostError, PreflightError, SpecError
from pslaunch.node.job import Node, Package, Plan, to_data
from pslaunch.options.spec import JobSpec
from pslaunch.plan import make_plan

GOLDEN = Path(__file__).parents[3] / "golden"


def answer(pieces: Sequence[bytes], cut: int | None = None) -> Iterator[bytes]:
    yield from pieces[:cut]
    if cut is not None:
        raise HostError("pod", "pack", "cut off")


@given(
    pieces=st.lists(st.binary(max_size=9), max_size=6),
    again=st.integers(1, 7),
    cuts=st.lists(st.integers(0, 6), max_size=5),
)
def test_cut_answer_goes_on_with_the_next_byte(pieces: list[bytes], again: int, cuts: list[int]) -> None:
    whole, told, passed = b"".join(pieces), b"", Answered()
    for cut in cuts:
        with pytest.raises(HostError):
            for piece in passed.skip(answer(pieces, cut)):
                told += piece
    others = [whole[at : at + again] for at in range(0, len(whole), again)]  # in other pieces
    assert told + b"".join(passed.skip(answer(others))) == whole


@pytest.mark.parametrize("other", [[b"abX", b"d"], [b"ab"], []])
def test_another_answer_is_refused(other: list[bytes]) -> None:
    passed = Answered()
    with pytest.raises(HostError):
        list(passed.skip(answer([b"ab", b"c", b"d"], 2)))
    with pytest.raises(FileError, match="changed"):
        list(passed.skip(answer(other)))


def test_reach_survives_its_record() -> None:
    reach = K8sReach("j", "image", claims=(("data", "/data"),), access=Access("", "here", "team"))
    assert FACE.from_data(to_data(reach)) == reach


@pytest.mark.parametrize("data", [None, {"name": "word2vec"}, {"claims": [], "access": {"unknown": 1}}])
def test_record_of_another_version_is_refused(data: object) -> None:
    with pytest.raises(SpecError, match="another version"):
        FACE.from_data(data)


AWAY = ClusterError("https://k:6443", "it is not reached: Connection refused", "try again later")


class Creating:
    """A cluster that keeps all created objects, and refuses to release the job.

    shared: answers to further requests about each object that jobs share, once another has made it.
    """

    def __init__(self, *shared: PreflightError | None) -> None:
        self.made: list[dict[str, Any]] = []
        self.owned: list[Any] = []
        self._shared = dict[str, list[PreflightError | None]]()
        self._answers = shared

    def has_right(self, _right: Right) -> bool:
        return True

    share = Cluster.share

    def list_processors(self, _node_selector: object) -> list[str]:
        return []

    def create(self, thing: Object) -> Object:
        if INSTANCE not in thing["metadata"]["labels"]:
            self._answer(thing["metadata"]["name"])
        self.made.append({**thing})
        return {"metadata": {"uid": "1"}}

    def _answer(self, name: str) -> None:
        left = self._shared.setdefault(name, [*self._answers])
        if left and (error := left.pop(0)):
            raise error

    def patch(self, kind: str, name: str, change: Any) -> None:
        if kind == "Job":
            raise PreflightError("not released")
        self._answer(name)
        self.owned.append(change)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    (tmp_path / "train.py").touch()
    site = make_local_site(tmp_path)._replace(package=Package(str(tmp_path)))
    return make_plan(JobSpec(draft=Plan(backend="k8s", name="j"), workspace=tmp_path, site=site), "j")


def create(
    plan: Plan, reach: K8sReach, monkeypatch: pytest.MonkeyPatch, cluster: Creating | None = None
) -> list[dict[str, Any]]:
    """Return the objects of a job that is not released."""
    monkeypatch.setattr(k8s, "list_job_objects", lambda _cluster: [])
    cluster, backend = cluster or Creating(), K8sBackend(reach)
    backend._cluster = cast(Cluster, cluster)
    with pytest.raises(PreflightError, match="not released"):
        backend.begin(plan, lambda _news: None)
    return cluster.made


@pytest.mark.parametrize(
    ("size", "lease_s", "limit_s", "is_held"),
    [(10, 0.0, None, False), (10, 30.0, 70, True), (MAX_PACKAGE_BYTES, 0.0, 70, False)],
)
def test_job_that_needs_its_launcher_at_first_is_limited_until_it_runs(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, size: int, lease_s: float, limit_s: int, is_held: bool
) -> None:
    assert plan.package
    Path(plan.package.folder, "train.py").write_bytes(random.Random(1).randbytes(size))
    made = create(plan, K8sReach("j", "i", lease_s=lease_s, wait_timeout_s=60.0), monkeypatch)
    (job,) = (thing for thing in made if thing["kind"] == "Job")
    assert (job["spec"].get(LIMIT), HELD in job["metadata"]["annotations"]) == (limit_s, is_held)


def test_apply_creates_the_printed_objects_and_a_secret_alone(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    reach = K8sReach("j", "i", network_policy=True)
    objects = manifests.make_objects(plan, reach, manifests.pack_package(plan, {}))
    printed = [thing for thing in objects if thing["kind"] != "Secret"]
    job, *others = made = create(plan, reach, monkeypatch)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "1"}
    assert all(thing["metadata"].pop("ownerReferences") == [owner] for thing in others)
    assert job["spec"].pop("suspend") and job["metadata"]["annotations"].pop(BEGINNING)
    (secret,) = (thing for thing in others if thing["kind"] == "Secret")
    found = [thing for thing in made if thing is not secret]
    assert sorted(found, key=json.dumps) == sorted(printed, key=json.dumps)
    assert secret["stringData"]["secret"] not in json.dumps(found)
    labels = {tuple(thing["metadata"]["labels"].items())[:4] for thing in made}
    assert labels == {tuple(job["metadata"]["labels"].items())[:4]}


THERE, GONE = ConflictError("it is there"), AbsentError("it is gone")


@pytest.mark.parametrize(
    ("answers", "makes"),
    [((), True), ((THERE,), False), ((THERE, GONE), True), ((THERE, GONE, THERE), False)],
)
def test_program_that_another_job_has_brought_gets_a_further_owner_unless_it_goes_just_then(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, answers: tuple[PreflightError, ...], makes: bool
) -> None:
    cluster = Creating(*answers)
    made = create(plan, K8sReach("j", "i", shares=True), monkeypatch, cluster)
    brought = [thing for thing in made if INSTANCE not in thing["metadata"]["labels"]]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "1"}
    assert all(thing["metadata"]["ownerReferences"] == [owner] for thing in brought)
    assert bool(brought) == makes and bool(cluster.owned) != makes
    assert all(change == {"metadata": {"ownerReferences": [owner]}} for change in cluster.owned)


class Deleting(Cluster):
    """A cluster that keeps all deletions; the first finds nothing any more."""

    def __init__(self) -> None:
        self.namespace, self.deleted = "team", dict[str, Any]()

    def request(self, doing: str, method: str, path: str, body: Any = None, **_params: Any) -> Any:
        self.deleted[doing.removeprefix("delete ")] = body
        if len(self.deleted) == 1:
            raise AbsentError(doing)


def test_each_deletion_says_that_owned_objects_go_too_and_a_hurried_one_has_the_shortest_grace() -> None:
    looks = [{"j-0": make_pod({"running": {}})}, {}]
    for limit_s, grace in ((5.0, {}), (0.0, {"gracePeriodSeconds": 1})):
        cluster, pods = Deleting(), Failing(0, make_pod({}))
        backend = make_backend(pods)
        backend._cluster, backend._ending_s = cluster, 45.0
        backend._made = [{"kind": kind, "metadata": {"name": "j"}} for kind in ("Job", "Secret")]
        rest = list(looks)
        pods.find_all = functools.partial(rest.pop, 0)  # type: ignore[method-assign]
        backend.limit_end(limit_s)
        assert backend.remove() == []
        policy = {"propagationPolicy": "Background"}
        hurried = {"Pod j-1-pod": {**policy, **grace}} if grace else {}
        assert cluster.deleted == {"Job j": policy, "Secret j": policy, **hurried}


def make_pod(state: Object) -> Object:
    return {
        "metadata": {"name": "j-1-pod", "labels": {OF_JOB: "j"}},
        "status": {"containerStatuses": [{"name": "node", "state": state}]},
    }


class Failing:
    """Pods of a job, the same in each look; the first looks fail."""

    def __init__(self, fails: int, pod: Object, cause: PodCause | None = None) -> None:
        self._fails, self._pod, self._cause = fails, pod, cause
        self.seen: dict[str, Object] = {}
        self.look_again = try_again

    def find_all(self) -> dict[str, Object]:
        self._fails -= 1
        if self._fails >= 0:
            raise AWAY
        self.seen = {"j-0": self._pod}
        return self.seen

    def find_first(self) -> Object:
        return self.find_all()["j-0"]

    def explain(self) -> PodCause | None:
        return self._cause


def make_backend(pods: Failing) -> K8sBackend:
    backend = K8sBackend(K8sReach("j", "i", wait_timeout_s=60.0))
    backend._pods = cast(Pods, pods)
    return backend


@pytest.mark.timeout(60)
def test_reason_of_a_loss_is_found_after_an_error_of_the_api() -> None:
    killed = make_pod({"terminated": {"exitCode": 137, "reason": "OOMKilled"}})
    cause = PodCause(137, "pod j-0: its memory is full", waits=False)
    assert make_backend(Failing(1, killed, cause)).explain_end(76) == (cause.text, 137)


def wait_for_all(pods: Failing, limit_s: float) -> bool:
    wait = PodWait(cast(Pods, pods), 1, lambda _news: None, limit_s)
    return wait.wait_for(wait.have_all_begun, threading.Event())


@pytest.mark.timeout(60)
def test_api_that_is_away_while_pods_are_waited_for_does_not_end_the_job() -> None:
    end = {"n": 0, "time": 0.0, "event": "end", "code": 0, "reason": "", "elapsed_s": 1.0, "failure": None}
    pods = Failing(2, make_pod({"terminated": {"exitCode": 0, "message": json.dumps(end)}}))
    wait = PodWait(cast(Pods, pods), 1, lambda _news: None, 60.0)
    assert make_backend(pods)._find_head(wait) == end
    running = make_pod({"running": {"startedAt": "2026-01-02T03:04:05Z"}})
    assert wait_for_all(Failing(2, running), 60.0)
    with pytest.raises(ClusterError):
        wait_for_all(Failing(9, running), 0.0)


RUNNING, ENDED = make_pod({"running": {"startedAt": "x"}}), make_pod({"terminated": {"exitCode": 0}})
WAITING = make_pod({"waiting": {"reason": "x"}})


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("looks", "answers"),
    [
        ([WAITING, WAITING, RUNNING], True),  # it is not shown as running yet
        ([ENDED], False),
        ([RUNNING, ENDED], False),  # it goes before it is asked
    ],
)
def test_pod_is_asked_once_it_runs_and_has_no_files_after_its_end(
    monkeypatch: pytest.MonkeyPatch, looks: list[Object], answers: bool
) -> None:
    def answer(pod: Object, _words: Sequence[str]) -> Iterator[bytes]:
        if not answers:
            raise AbsentError('pods "j-1-pod" not found')
        yield json.dumps(pod).encode()

    left = list(looks)
    monkeypatch.setattr(k8s, "list_pods", lambda _cluster, _label: {"j-1": left.pop(0)})
    backend = make_backend(Failing(0, make_pod({})))
    backend._cluster = cast(Cluster, None)
    monkeypatch.setattr(backend, "_answer", answer)
    refused = pytest.raises(FileError, match="the pod is gone, and with it all of its files")
    with contextlib.nullcontext() if answers else refused:
        assert [*backend.ask(Node(1, "j-1", ""), ["read"])] == [json.dumps(RUNNING).encode()]
    assert not left


class Listing:
    """A cluster with one pod of job `j`, another recorded state of it in each look; the last one stays."""

    def __init__(self, *names: str) -> None:
        recorded = json.loads((GOLDEN / "kube_objects.json").read_text())
        self._looks = [copy.deepcopy(recorded[name]["pods"][0]) for name in names]
        for pod in self._looks:
            pod["metadata"]["labels"] = {INSTANCE: "j", OF_JOB: "j", INDEX: "0"}

    def list_objects(self, _kind: str, **_selectors: str) -> list[Object]:
        return [self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]]


class Answering:
    """An exec that fails at first, and then connects to a pod that says hello, or nothing until `close`."""

    def __init__(self, fails: int, hello: bytes) -> None:
        self._fails, self._hello = fails, hello
        self._there: list[socket.socket] = []
        self.fd = -1

    def __call__(self, *_args: object) -> Answering:
        self._fails -= 1
        if self._fails >= 0:
            raise AWAY
        here, there = socket.socketpair()
        there.sendall(self._hello)
        self._there.append(there)
        self.fd = here.detach()
        return self

    def describe_end(self) -> str:
        return ""

    def close(self) -> None:
        self._fails = 10**6
        for there in self._there:
            there.close()


def reopen(
    monkeypatch: pytest.MonkeyPatch, cluster: Listing, opened: Answering, returns_s: float = 0.0
) -> Any:
    monkeypatch.setattr(k8s, "POD_LOOK_S", 0.01)
    monkeypatch.setattr(k8s, "PodExec", opened)
    backend = K8sBackend(K8sReach("j", "i", lease_s=60.0))
    backend._cluster, backend._returns_s = cast(Cluster, cluster), returns_s
    with contextlib.closing(opened):
        try:
            return backend.reopen()
        finally:
            assert not (returns_s and backend.silent)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("fails", [0, 10**6])
def test_lost_line_is_given_up_once_the_cluster_removes_a_pod_with_a_silent_machine(
    monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    with pytest.raises(NodeLostError, match=r"^pod j-0 on node2 and its machine .*: Taint manager: "):
        reopen(monkeypatch, Listing(*["node-not-ready"] * 6, "node-lost"), Answering(fails, b""))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("state", ["healthy", "node-not-ready", "drained"])
def test_lost_line_is_opened_again_while_the_pod_may_answer(
    monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    line = reopen(monkeypatch, Listing(state), Answering(5, b"hello"))
    assert isinstance(line, Line)
    line.close()


def make_job(*conditions: str) -> Object:
    told = [{"type": one, "status": "True"} for one in conditions]
    labels, created = {INSTANCE: "j"}, "2026-01-02T03:04:05Z"
    return {
        "metadata": {"name": "j", "labels": labels, "creationTimestamp": created},
        "spec": {"completions": 2},
        "status": {"conditions": told},
    }


@pytest.mark.timeout(20)
@pytest.mark.parametrize("states", [("oom", "healthy"), ("node-not-ready", "oom", "healthy")])
def test_another_pod_0_is_waited_for_while_its_job_goes_on(
    monkeypatch: pytest.MonkeyPatch, states: tuple[str, ...]
) -> None:
    monkeypatch.setattr(k8s, "list_job_objects", lambda *_: [make_job()])
    looks = [state for state in states for _ in range(3)]
    line = reopen(monkeypatch, Listing(*looks), Answering(3, b"hello"), 60.0)
    assert isinstance(line, Line)
    line.close()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("jobs", [[make_job("FailureTarget")], [make_job("Failed")], []])
def test_no_other_pod_0_is_waited_for_once_its_job_has_failed_or_is_gone(
    monkeypatch: pytest.MonkeyPatch, jobs: list[Object]
) -> None:
    monkeypatch.setattr(k8s, "list_job_objects", lambda *_: jobs)
    with pytest.raises(NodeLostError, match=r"^pod 0 ended with 137"):
        reopen(monkeypatch, Listing("oom"), Answering(0, b"hello"), 60.0)
