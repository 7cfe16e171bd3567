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
from pslaunch.backends.k8s.api import Cluster
from pslaunch.backends.k8s.api_errors import AbsentError, Right
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
from pslaunch.node.job import Node, Package, Plan
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
    reach = K8sReach(
        "word2vec-1a2b3c",
        "image",
        claims=(("data", "/data"),),
        access=Access("", "here", "team"),
    )
    assert FACE.from_data(FACE.to_data(reach)) == reach


@pytest.mark.parametrize("data", [None, {"name": "word2vec"}, {"claims": [], "access": {"unknown": 1}}])
def test_record_of_another_version_is_refused(data: object) -> None:
    with pytest.raises(SpecError, match="another version"):
        FACE.from_data(data)


AWAY = ClusterError("https://k:6443", "it is not reached: Connection refused", "try again later")


class Creating:
    """A cluster that keeps all created objects, and refuses to release the job."""

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []

    def has_right(self, _right: Right) -> bool:
        return True

    def demand_rights(self, _rights: Sequence[Right]) -> None:
        pass

    def create(self, thing: Object) -> Object:
        self.made.append({**thing})
        return {"metadata": {"uid": "1"}}

    def patch(self, *_args: Any) -> None:
        raise PreflightError("not released")


@pytest.mark.parametrize(
    ("package_bytes", "lease_s", "limit_s", "is_held"),
    [(10, 0.0, None, False), (10, 30.0, 70, True), (MAX_PACKAGE_BYTES, 0.0, 70, False)],
)
def test_job_that_needs_its_launcher_at_first_is_limited_until_it_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    package_bytes: int,
    lease_s: float,
    limit_s: int | None,
    is_held: bool,
) -> None:
    (tmp_path / "train.py").write_bytes(random.Random(1).randbytes(package_bytes))
    site = make_local_site(tmp_path)._replace(package=Package(str(tmp_path)))
    plan = make_plan(JobSpec(draft=Plan(backend="k8s", name="j"), workspace=tmp_path, site=site), "j")
    monkeypatch.setattr(k8s, "list_job_objects", lambda _cluster: [])
    cluster, backend = Creating(), K8sBackend(K8sReach("j", "i", lease_s=lease_s, wait_timeout_s=60.0))
    backend._cluster = cast(Cluster, cluster)
    with pytest.raises(PreflightError, match="not released"):
        backend.begin(plan, lambda _news: None)
    (job,) = (thing for thing in cluster.made if thing["kind"] == "Job")
    assert (job["spec"].get(LIMIT), HELD in job["metadata"]["annotations"]) == (limit_s, is_held)


def test_apply_creates_the_printed_objects_and_a_secret_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").touch()
    site = make_local_site(tmp_path)._replace(package=Package(str(tmp_path)))
    plan = make_plan(JobSpec(draft=Plan(backend="k8s", name="j"), workspace=tmp_path, site=site), "j")
    reach = K8sReach("j", "i", network_policy=True)
    printed = manifests.make_objects(plan, reach, manifests.pack_package(plan, {}))
    monkeypatch.setattr(k8s, "list_job_objects", lambda _cluster: [])
    cluster, backend = Creating(), K8sBackend(reach)
    backend._cluster = cast(Cluster, cluster)
    with pytest.raises(PreflightError, match="not released"):
        backend.begin(plan, lambda _news: None)
    job, *others = cluster.made
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "1"}
    assert all(thing["metadata"].pop("ownerReferences") == [owner] for thing in others)
    assert job["spec"].pop("suspend") and list(job["metadata"].pop("annotations")) == [BEGINNING]
    (secret,) = (thing for thing in others if thing["kind"] == "Secret")
    found = [thing for thing in cluster.made if thing is not secret]
    assert sorted(found, key=json.dumps) == sorted(printed, key=json.dumps)
    assert secret["stringData"]["secret"] not in json.dumps(found)
    assert {tuple(thing["metadata"]["labels"].items())[:4] for thing in cluster.made} == {
        tuple(job["metadata"]["labels"].items())[:4]
    }


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
        backend._cluster, backend._gone_limit_s = cluster, 45.0
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
        "metadata": {"name": "j-1-pod"},
        "status": {"containerStatuses": [{"name": "node", "state": state}]},
    }


class Failing:
    """Pods of a job, the same in each look; the first looks fail."""

    def __init__(self, fails: int, pod: Object, cause: PodCause | None = None) -> None:
        self._fails, self._pod, self._cause = fails, pod, cause
        self.seen: dict[str, Object] = {}

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
    cause = PodCause("j-0", 137, "pod j-0: its memory is full", waits=False)
    assert make_backend(Failing(1, killed, cause)).explain_end(76) == (cause.text, 137)


@pytest.mark.timeout(60)
def test_api_that_is_away_while_pods_are_waited_for_does_not_end_the_job() -> None:
    end = {"n": 0, "time": 0.0, "event": "end", "code": 0, "reason": "", "elapsed_s": 1.0, "failure": None}
    pods = Failing(2, make_pod({"terminated": {"exitCode": 0, "message": json.dumps(end)}}))
    wait = PodWait(cast(Pods, pods), 1, lambda _news: None, 60.0)
    assert make_backend(pods)._find_head(wait) == end


@pytest.mark.timeout(60)
def test_api_that_is_away_does_not_end_the_wait_for_all_pods() -> None:
    pods = Failing(2, make_pod({"running": {"startedAt": "2026-01-02T03:04:05Z"}}))
    wait = PodWait(cast(Pods, pods), 1, lambda _news: None, 60.0)
    assert wait.wait_for(wait.have_all_begun, threading.Event())


def test_api_that_stays_away_ends_the_wait() -> None:
    pods = Failing(9, make_pod({"running": {}}))
    wait = PodWait(cast(Pods, pods), 1, lambda _news: None, 0.0)
    with pytest.raises(ClusterError):
        wait.wait_for(wait.have_all_begun, threading.Event())


@pytest.mark.timeout(60)
def test_pod_that_is_not_shown_as_running_yet_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting, running = make_pod({"waiting": {"reason": "x"}}), make_pod({"running": {"startedAt": "x"}})
    looks = [waiting, waiting, running]
    monkeypatch.setattr(k8s, "list_pods", lambda _cluster, _label: {"j-1": looks.pop(0)})
    backend = make_backend(Failing(0, make_pod({})))
    backend._cluster = cast(Cluster, None)
    monkeypatch.setattr(backend, "_answer_whole", lambda pod, _words: iter([json.dumps(pod).encode()]))
    (answered,) = backend.ask(Node(1, "j-1", ""), ["read"])
    assert b"running" in answered and not looks


def test_pod_that_goes_before_it_is_asked_has_no_files_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object) -> Iterator[bytes]:
        raise AbsentError('the server can\'t run a program in pod j-1-pod: pods "j-1-pod" not found')

    monkeypatch.setattr(k8s, "list_pods", lambda _cluster, _label: {})
    backend = make_backend(Failing(0, make_pod({})))
    backend._cluster = cast(Cluster, None)
    monkeypatch.setattr(backend, "_answer", fail)
    pod = make_pod({"running": {"startedAt": "x"}})
    pod["metadata"]["labels"] = {OF_JOB: "j"}
    with pytest.raises(FileError, match="no pod of it runs any more"):
        list(backend._answer_whole(pod, ["read"]))


def test_pod_that_has_ended_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = make_pod({"terminated": {"exitCode": 0}})
    monkeypatch.setattr(k8s, "list_pods", lambda _cluster, _label: {"j-1": ended})
    backend = make_backend(Failing(0, ended))
    backend._cluster = cast(Cluster, None)
    with pytest.raises(FileError, match="no pod of it runs any more"):
        backend.ask(Node(1, "j-1", ""), ["read"])


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

    def find_code(self) -> None:
        return None

    def close(self) -> None:
        self._fails = 10**6
        for there in self._there:
            there.close()


def reopen(monkeypatch: pytest.MonkeyPatch, cluster: Listing, opened: Answering) -> Any:
    monkeypatch.setattr(k8s, "LOOK_S", 0.01)
    monkeypatch.setattr(k8s, "PodExec", opened)
    backend = K8sBackend(K8sReach("j", "i", lease_s=60.0))
    backend._cluster = cast(Cluster, cluster)
    with contextlib.closing(opened):
        return backend.reopen()


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
