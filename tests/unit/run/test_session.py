"""Session of a job: its messages and its end while nodes are being reached."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

from pslaunch.backends.fabric import FabricFace
from pslaunch.backends.fabric.spec import FabricReach
from pslaunch.backends.k8s.backend import K8sBackend
from pslaunch.backends.k8s.way import PodsWay
from pslaunch.backends.lines import Line, Tell
from pslaunch.backends.local import LocalFace
from pslaunch.backends.local.backend import LocalBackend
from pslaunch.backends.local.spec import make_local_site
from pslaunch.errors import EndedEarlyError, FileError, HostError, HostsError, NodeLostError, SpecError
from pslaunch.follow.watch import Watch
from pslaunch.node import codes
from pslaunch.node.head.events import Event
from pslaunch.node.job import Limits, Node, Plan
from pslaunch.node.later import record
from pslaunch.node.line.wire import encode_control, make_hello
from pslaunch.options.hosts import Host
from pslaunch.options.spec import JobSpec
from pslaunch.plan import make_plan
from pslaunch.run import session
from pslaunch.run.fetch import hold_folders


class Reaching(LocalBackend):
    """Backend without answering nodes; it interrupts the launcher and waits until that is reported."""

    def __init__(self, shown: Iterable[str]) -> None:
        super().__init__()
        self._shown = shown

    def start(self, nodes: Sequence[Node], limits: Limits) -> list[tuple[Node, Line]]:
        self._reach(nodes)

    def start_head(self, nodes: Sequence[Node], limits: Limits, secret: str) -> tuple[Sequence[Node], Line]:
        self._reach(nodes)

    def _reach(self, nodes: Sequence[Node]) -> NoReturn:
        os.kill(os.getpid(), signal.SIGINT)
        self.told = next(line for line in self._shown if "ending" in line)
        raise HostsError({n.id: HostError(n.name, "connect", "given up") for n in nodes}, len(nodes))


pytestmark = pytest.mark.timeout(90)


def job(workspace: Path, head: str, program: str = "") -> JobSpec:
    (workspace / "train.py").write_text(program)
    return JobSpec(
        draft=Plan(backend="local", name="j"),
        workspace=workspace,
        site=make_local_site(workspace),
        head="node" if head == "node" else "launcher",
    )


def run(spec: JobSpec) -> tuple[int, bool]:
    return session._run(spec, make_plan(spec, "j-1"), as_json=False)


@pytest.mark.parametrize("head", ["launcher", "node"])
def test_interruption_is_answered_during_the_start_of_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str
) -> None:
    spec = job(tmp_path, head, "print('never')")
    read_fd, write_fd = os.pipe()
    with open(read_fd) as shown, open(write_fd, "w") as out:  # noqa: PTH123 - descriptors
        backend = Reaching(shown)
        monkeypatch.setattr(LocalFace, "make_backend", lambda *_: backend)
        monkeypatch.setattr(sys, "stdout", out)
        if head == "node":
            with pytest.raises(EndedEarlyError):
                run(spec)
            said = "ending: interrupted (Ctrl+C); no longer waiting for localhost"
        else:
            assert run(spec) == (codes.INT, False)
            said = "ending the job: interrupted (Ctrl+C)"
        assert said in backend.told


class Unread(Watch):
    """Watch that writes at once, and signals when the output is found broken."""

    found = threading.Event()

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.say("nobody reads this")

    def _break(self, e: OSError) -> None:
        super()._break(e)
        self.found.set()


class Waiting(LocalBackend):
    """Backend with nodes that start after the output is found broken."""

    def start(self, nodes: Sequence[Node], limits: Limits) -> list[tuple[Node, Line]]:
        assert Unread.found.wait(10)
        return super().start(nodes, limits)

    def start_head(self, nodes: Sequence[Node], limits: Limits, secret: str) -> tuple[Sequence[Node], Line]:
        assert Unread.found.wait(10)
        return super().start_head(nodes, limits, secret)


@pytest.mark.parametrize("head", ["launcher", "node"])
def test_output_broken_before_the_head_exists_ends_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str
) -> None:
    spec = job(tmp_path, head, "import time; time.sleep(15); open('ran', 'w')")
    monkeypatch.setattr(LocalFace, "make_backend", lambda *_: Waiting())
    monkeypatch.setattr(session, "Watch", Unread)
    Unread.found.clear()
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    kept = os.dup(1)  # gets /dev/null
    try:
        with os.fdopen(write_fd, "w") as out, pytest.raises(FileError, match="can't be written: Broken pipe"):
            monkeypatch.setattr(sys, "stdout", out)
            run(spec)
    finally:
        os.dup2(kept, 1)
        os.close(kept)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("head", "where"),
    [
        ("launcher", "run.session.make_view"),
        ("launcher", "follow.watch.Watch.begin"),
        ("launcher", "node.head.head.Head.attach"),
        ("node", "run.session.make_view"),
        ("node", "follow.watch.Watch.begin"),
        ("node", "follow.remote_head.RemoteHead.lead"),
    ],
)
def test_failure_during_the_start_ends_nodes_without_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str, where: str
) -> None:
    spec = job(tmp_path, head, "open('ran', 'w')")
    spec = spec._replace(draft=spec.draft._replace(limits=Limits(grace_s=60.0)))

    def fail(*_: Any, **__: Any) -> NoReturn:
        raise OSError("no descriptors")

    monkeypatch.setattr(f"pslaunch.{where}", fail)
    with pytest.raises(OSError, match="no descriptors"):
        run(spec)
    assert not (tmp_path / "ran").exists()


def test_job_elsewhere_without_a_local_record_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reaches(*_: object) -> NoReturn:
        pytest.fail("hosts are reached")

    monkeypatch.setattr(FabricFace, "make_backend", reaches)
    spec = job(tmp_path, "node")._replace(detach=True)
    spec = spec._replace(draft=spec.draft._replace(backend="fabric"))
    spec = spec._replace(site=spec.site._replace(remote=True, reach=FabricReach((Host("node1"),))))
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(FileError, match=f"find the job: {tmp_path}/file/.*: Not a directory"):
        session.run(spec, as_json=False)


class Keeping(LocalBackend):
    """Backend whose later shells need a secret."""

    def keep_way(self, path: str) -> None:
        record.write_secret(path, "00")


def test_job_is_detached_only_if_later_shells_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    plan = make_plan(job(tmp_path, "node"), "j")
    session._keep_way(plan, Keeping(), 1, detach=False)
    with pytest.raises(FileError, match="keep the way"):
        session._keep_way(plan, Keeping(), 1, detach=True)


def test_secret_for_later_shells_ends_with_its_attached_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    program = f"import pathlib; print([p.name for p in pathlib.Path({str(state)!r}).rglob('*.secret')])"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    monkeypatch.setattr(LocalFace, "make_backend", lambda *_: Keeping())
    spec = job(tmp_path, "node", program)
    assert run(spec._replace(site=spec.site._replace(remote=True))) == (codes.OK, True)
    assert "['j-1.secret']" in capfd.readouterr().out
    assert not [*state.rglob("*.secret")]


def test_job_is_refused_beside_another_of_its_folder_then_names_the_places_of_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write = "import os; open(os.environ['PSLAUNCH_OUTPUT_DIR'] + '/model', 'w'); raise SystemExit(3)"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    got, logs = tmp_path / "got", tmp_path / "logs"
    spec = job(tmp_path, "launcher", write)._replace(server_num=0, fetch_output=got, fetch_logs=logs)
    with hold_folders({"its": got}, "j-0"), pytest.raises(SpecError, match="of job j-0"):
        run(spec)
    assert run(spec) == (3, True)
    last = capfd.readouterr().out.splitlines()[-1]
    log = logs / "0-localhost/train.log"
    assert last.endswith(f"results are in {got}; logs are in {logs}; the log of trainer/0 is {log}")
    assert (got / "model").exists() and log.exists()


class Cutting(Keeping):
    """Backend of a job that begins by itself; the line is cut once a process runs, or after the end."""

    keeps_files = True

    def __init__(self, end: Event | None) -> None:
        super().__init__()
        self._end, self.silent = end, set[str]()

    def begin(self, plan: Plan, _tell: Tell) -> Line:
        near, far = socket.socketpair()
        began = {"n": 0, "time": 0.0, "event": "process", "process": "trainer/0", "node": 0,
                 "state": "running", "pid": 1}  # fmt: skip
        for message in (make_hello(), {"type": "events", "events": [began]}):
            far.sendall(encode_control(message))
        far.close()
        fd = near.detach()
        return Line(fd, fd)

    def reopen(self) -> Event:
        if self._end:
            return self._end
        raise NodeLostError("pod 0 does not answer")

    def confirm(self) -> None:
        pass

    def explain_end(self, code: int) -> tuple[str, int]:
        return "", codes.NODE_LOST

    def remove(self) -> list[str]:
        raise AssertionError("its files are kept")

    def describe_keeping(self) -> str:
        return ""


@pytest.mark.parametrize(
    ("end", "code", "state"),
    [
        ({"time": 0.0, "event": "end", "code": 0, "reason": "", "elapsed_s": 1.0, "failure": None}, 0,
         "is over already"),
        (None, codes.NODE_LOST, "may go on"),
    ],
)  # fmt: skip
def test_job_to_detach_is_over_only_if_its_end_was_seen(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    end: Event | None,
    code: int,
    state: str,
) -> None:
    spec = job(tmp_path, "node")._replace(detach=True)
    plan = make_plan(spec, "j-1")
    monkeypatch.setattr(LocalFace, "make_way", lambda *_: PodsWay(cast(K8sBackend, Cutting(end)), plan))
    assert run(spec) == (code, True)
    assert (
        f"the job {state}; pslaunch status, logs, stop and fetch take its id: j-1" in capfd.readouterr().out
    )
