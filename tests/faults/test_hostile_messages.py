"""Hostile messages of nodes and heads: no traceback, and never 0 after a failure."""

from __future__ import annotations

import contextlib
import io
import os
import select
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast, get_args

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pslaunch.backends.here import NODE
from pslaunch.check.findings import Wanted, choose_check_code, judge_hosts
from pslaunch.check.inspection import Inspection
from pslaunch.check.report import tell
from pslaunch.follow.remote_head import RemoteHead
from pslaunch.node import codes, job, messages
from pslaunch.node.dispatch.routes import PASS_ON_BYTES
from pslaunch.node.head.events import Event
from pslaunch.node.head.head import Head
from pslaunch.node.head.leader import Leader
from pslaunch.node.head.observed import MAX_OBSERVERS
from pslaunch.node.job import Count, Limits, Node, Package, Plan, Role
from pslaunch.node.line import wire
from pslaunch.node.line.wire import Decoder, Line, Message, Output, encode_control
from pslaunch.node.loop import Listener, Loop
from pslaunch.ship.package import PackageFolder
from pslaunch.views.live import LiveView
from pslaunch.views.view import JsonView, PlainView, View
from support.hostile import Nest, find_obeyed, spoilt
from support.lines import encode_piece, open_line

FAILURE = {
    "what": "trainer/0", "node": 0, "code": 3, "text": "", "signal": "", "log": "l", "tail": ["x"],
    "advice": "",
}  # fmt: skip
PACKAGE = {"event": "dispatch", "files": 1, "bytes": 9}
PROCESS = {"event": "process", "process": "trainer/0", "node": 0}
EVENTS: tuple[dict[str, Any], ...] = (
    {
        "event": "job", "job": "j", "name": "n", "epoch": 0, "backend": "local", "server": "bundled",
        "why": "so", "workspace": "/ws", "nodes": [{"id": 0, "name": "n"}],
        "processes": [{"process": "trainer/0", "node": 0, "log": "l"}],
    },
    {"event": "node", "node": 0, "state": "lost", "text": "so"},
    {**PACKAGE, "node": 0, "state": "sending", "source": None, "received": 3},
    {**PACKAGE, "node": None, "state": "done", "nodes": 1, "elapsed_s": 1.0},
    {**PROCESS, "state": "running", "pid": 7},
    {**PROCESS, "state": "exited", "code": 3, "signal": None},
    {"event": "progress", "process": "trainer/0", "pass": 1, "cost": 5.5, "samples_per_s": 7.0, "state": "s"},
    {"event": "line", "process": "trainer/0", "text": "said", "more": True},
    {"event": "gap", "process": "trainer/0", "bytes": 7},
    {"event": "note", "level": "info", "text": "so"},
    {"event": "ending", "why": "so", "grace_s": 5.0},
    {"event": "end", "code": 3, "reason": "so", "elapsed_s": 1.0, "failure": FAILURE},
)  # fmt: skip
NUMBERED = [{"n": n, "time": float(n), **e} for n, e in enumerate(EVENTS)]
STATUS = {"type": "status", "job": "j", "elapsed_s": 1.0, "events": 7, "state": "running", "processes": []}


def usual(message: Message) -> Message:
    """Set fields with a known meaning to valid values."""
    # asked: an exit that we have asked for is no failure.
    known = {"key": "trainer/0", "addrs": ["::1"], "signal": "", "shared": None, "asked": False}
    return {k: known.get(k, v) for k, v in message.items()}


OF_NODE = st.one_of(*map(st.from_type, get_args(messages.OfAgent))).map(usual).flatmap(spoilt)
FILLED = (*get_args(messages.OfPackage), messages.DispatchedMsg, messages.ServingMsg)
OF_FILLED = st.one_of(*map(st.from_type, FILLED)).flatmap(spoilt)
PREPARED: Message = {
    "type": "prepared", "host": "h", "run_dir": "/r", "python": "python3", "addrs": ["::1"],
    "shared": None, "workspace": "/ws", "log_dir": "/ws/log", "output_dir": "/ws/output",
    "state_dir": "/ws/.pslaunch",
    "resources": {"gpus": [], "gpus_by": "", "cores": []},
}  # fmt: skip
OVER = st.builds(lambda code: {"type": "over", "code": code}, st.sampled_from([0, 3, 256]))
BUILT = (messages.EventsMsg, messages.OverMsg, messages.StatusMsg)
ANSWERS = [st.from_type(m) for m in get_args(messages.ToObserver) if m not in BUILT]
OF_HEAD = st.one_of(*ANSWERS, OVER, st.just(STATUS)).map(usual).flatmap(spoilt)


OF_CHECKED = st.tuples(
    *(
        st.from_type(m).flatmap(spoilt)
        for m in (messages.InspectedMsg, messages.OpenedMsg, messages.ReachedMsg)
    )
).map(list)


ORDERED: Message = {
    "type": "prepare", "job_id": "j-1", "node": 0, "nodes": 1, "dispatched": True, "filled": True,
    "workspace": "ws", "log_dir": "ws/log", "output_dir": "ws/output", "state_dir": "ws/.pslaunch",
    "secret": "5e" * 32, "addr": "127.0.0.1", "nic": "", "lost_after_s": 30.0, "grace_s": 0.1,
    "launcher": "", "trace": False,
}  # fmt: skip
OF_PROGRAM = st.builds(Output, st.integers(0, 1), st.sampled_from([0, 4, 2**64 - 1]), st.just(b"one\ntwo\n"))


def sent(said: Sequence[Message | Output]) -> bytes:
    encoded = (encode_piece(m) if isinstance(m, Output) else encode_control(m) for m in said)
    return encode_control(wire.make_hello()) + b"".join(encoded)


@settings(max_examples=100, deadline=None)
@example([PREPARED, Output(0, 2**64 - 1, b"one\ntwo\n")])
@given(st.lists(OF_NODE | OF_PROGRAM, min_size=1, max_size=6))
def test_hostile_node_ends_the_head_only_with_a_message(said: list[Message | Output]) -> None:
    run_head(make_plan(1), [said])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(OF_FILLED, max_size=5), min_size=2, max_size=2), st.booleans())
def test_hostile_node_ends_a_dispatch_only_with_a_message(said: list[list[Message]], large: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with Path(folder, "data").open("wb") as f:
            f.truncate(PASS_ON_BYTES + 1 if large else 7)
        plan = make_plan(2)._replace(package=Package(folder))
        run_head(plan, [[PREPARED, *one] for one in said])


def make_plan(count: int) -> Plan:
    nodes = [Node(i, f"n{i}", "", "/ws", "/ws/log", "/ws/output", "/ws/.pslaunch") for i in range(count)]
    return Plan(
        job_id="demo-1", name="demo", epoch=0, backend="local", server="bundled", why="given",
        roles=(Role("trainer", Count("per_node", 1), ("python", "train.py")),),
        port=None, ports_num=1, ports_num_for_sparse=0, trainer_count=1, use_gpu=False, added_env={},
        flags={}, limits=Limits(5.0, 1000.0, 60.0, None, 60.0),
        nodes=tuple(node._replace(dispatched=count > 1) for node in nodes),
    )  # fmt: skip


def run_head(plan: Plan, said: Sequence[Sequence[Message | Output]]) -> None:
    """Run a job to its end with nodes that send these messages and close their lines."""
    now_s, before = 0.0, set(threading.enumerate())
    with contextlib.ExitStack() as stack:
        loop = stack.enter_context(contextlib.closing(Loop(clock=lambda: now_s)))
        supply = PackageFolder(loop, plan.package) if plan.package else None
        head = Head(loop, job.place(plan, plan.nodes), "5e" * 32, lambda: 0.0, supply)
        for node, messages_of_node in zip(plan.nodes, said, strict=True):
            ours, theirs = socket.socketpair()
            stack.enter_context(theirs)
            fd = ours.detach()
            head.attach(node, Line(fd, fd))
            theirs.sendall(sent(messages_of_node))
            theirs.shutdown(socket.SHUT_WR)
        while not head.done:
            loop.run_once(0.01 if plan.package else 0.0)
            now_s += 0.5
        events = head.list_events(0)[0]
        failed = any(e["event"] in ("process", "end") and e["code"] for e in events if "code" in e)
        assert head.code < 256 and not (failed and head.code == 0)
        show(events)
        head.close()
    for thread in set(threading.enumerate()) - before:  # which may still note what the folder holds
        thread.join()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from(NUMBERED).flatmap(spoilt), max_size=6),
    st.lists(OF_HEAD, max_size=4),
)
def test_hostile_head_ends_the_launcher_only_with_a_message(
    events: list[dict[str, Any]], answers: list[Message]
) -> None:
    with contextlib.closing(Loop()) as loop:
        near, far = socket.socketpair()
        fd = near.detach()
        head = RemoteHead(loop, Line(fd, fd), name="node 0", lost_after_s=30)
        with far:
            far.sendall(sent([{"type": "events", "events": count(events)}, *answers]))
            far.shutdown(socket.SHUT_WR)
            while not head.done:
                loop.run_once(0.0)
        known, _ = head.list_events(0)
        ends = [e for e in known if e["event"] == "end"]
        assert 0 <= head.code < 256 and not (ends and ends[-1]["failure"] and head.code == 0)
        show(known)


LEAD: Message = {"type": "lead", "placed": {}, "secret": "5e" * 32, "detach": False, "supplies": False}
ASKED = [st.from_type(m) for m in get_args(messages.OfObserver) if m is not messages.LeadMsg]
OF_OBSERVER = st.one_of(*ASKED, st.just(LEAD)).flatmap(spoilt)
STOP: Message = {"type": "stop", "number": 15, "reason": "so", "code": 0}


class Led:
    """A job whose head is here, with its agent and its launcher."""

    def __init__(self, folder: str) -> None:
        self.loop, ends = Loop(), [[sock.detach() for sock in socket.socketpair()] for _ in range(2)]
        self.leader = Leader(self.loop, Line(ends[0][0], ends[0][0]), ends[1][0], folder, 1000.0)
        self.heard: dict[str, Message] = {}  # by the launcher
        self.launcher = open_line(self.loop, ends[0][1], self._hear, lost_after_s=1000)
        self._agent = open_line(self.loop, ends[1][1], self._end, lost_after_s=1000)
        plan = make_plan(1)
        node = plan.nodes[0]._replace(addr="127.0.0.1")
        placed = job.to_data(job.place(plan._replace(nodes=(node,)), [node]))
        self.launcher.send({**LEAD, "placed": placed})
        self.launcher.send({"type": "follow", "cursor": 0})
        self.run(lambda: "leading" in self.heard)

    def _hear(self, message: Message) -> None:
        self.heard[message["type"]] = message

    def _end(self, message: Message) -> None:
        if message["type"] == "finish":
            self._agent.send({"type": "finished", "killed": 0, "left": []})

    def run(self, until: Callable[[], bool]) -> None:
        self.loop.run(until, after_each=[self.leader.push])

    def observe(self) -> socket.socket:
        """Return the observer's end of a line."""
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(self.leader._socket_path)
        known = len(self.leader._observers)
        self.run(lambda: len(self.leader._observers) > known)
        return sock

    def close(self) -> None:
        """End the job."""
        self.launcher.send(STOP)
        self.run(lambda: "over" in self.heard)
        for key in list(self.loop._selector.get_map().values()):
            if isinstance(listener := getattr(key.data[0], "__self__", None), Listener):
                listener.close()
        for line in (self.launcher, self._agent, *(observer.line for observer in self.leader._observers)):
            line.close()
        self.loop.close()


@settings(max_examples=60, deadline=None)
@example([{**STOP, "number": 2**70}])
@example([{**STOP, "code": 256}])
@example([{**STOP, "of": Nest(900)}])
@given(st.lists(OF_OBSERVER, min_size=1, max_size=6))
def test_hostile_observer_ends_the_head_only_by_its_requests(said: list[Message]) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Led(folder)) as led:
        with led.observe() as far:
            far.sendall(sent(said))
            far.shutdown(socket.SHUT_WR)
            led.run(lambda: len(led.leader._observers) == 1)
        if not led.heard.get("over"):
            led.launcher.send({"type": "status"})
            led.run(lambda: "status" in led.heard)
    assert 0 < led.heard["over"]["code"] < 256


def test_observers_beyond_the_limit_are_refused_in_words(tmp_path: Path) -> None:
    with contextlib.closing(Led(str(tmp_path))) as led, contextlib.ExitStack() as stack:
        for _ in range(MAX_OBSERVERS - 1):  # beside the launcher
            stack.enter_context(led.observe())
        sock = stack.enter_context(socket.socket(socket.AF_UNIX))
        sock.settimeout(30)
        sock.connect(led.leader._socket_path)
        led.run(lambda: bool(select.select([sock], [], [], 0)[0]))
        _, refused = Decoder().feed(sock.recv(1 << 16))
        assert isinstance(refused, dict) and refused["text"].startswith(f"{MAX_OBSERVERS} shells")
        led.run(lambda: len(led.leader._observers) == MAX_OBSERVERS)


ORDERS: tuple[list[Message], ...] = (
    [{"type": "begin", "nodes": [], "numbers": {}}],
    [{"type": "reach", "doors": [[1, 2]], "limit_s": 1}],
    [{"type": "inspect", "node": 0, "secret": "5e"}],
    [{"type": "finish", "linger_s": Nest(900)}],
    [{**ORDERED, "output_dir": "\0"}],
)


def test_hostile_head_ends_an_agent_in_words(tmp_path: Path) -> None:
    argv = [*NODE, "keeper", "30", "0.1", "serve"]
    with contextlib.ExitStack() as stack:
        agents = [
            stack.enter_context(
                subprocess.Popen(
                    argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
                )
            )
            for _ in ORDERS
        ]
        for agent, orders in zip(agents, ORDERS, strict=True):
            assert agent.stdin
            agent.stdin.write(sent(orders))
            agent.stdin.flush()
        for agent in agents:
            assert agent.stdout and agent.stdin
            decoder, said = Decoder(), list[str]()
            while "trouble" not in said:
                data = os.read(agent.stdout.fileno(), 1 << 16)
                assert data, agent.communicate()[1]
                said += [str(m["type"]) for m in decoder.feed(data) if isinstance(m, dict)]
            _, words = agent.communicate()
            assert b"Traceback" not in words and agent.returncode == codes.PEER, words


def count(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Renumber numbered events, so that all of them are accepted."""
    return [{**e, "n": i} if e.get("n") in range(len(NUMBERED)) else e for i, e in enumerate(events)]


def show(events: Sequence[Event]) -> None:
    """Show events in all views."""
    views: tuple[View, ...] = (
        PlainView(io.StringIO(), lambda: 0.0), JsonView(io.StringIO()), LiveView(io.StringIO(), lambda: 0.0),
    )  # fmt: skip
    for view in views:
        for e in events:
            view.show_event(e)
            view.tick()
        view.close()


@settings(max_examples=100, deadline=None)
@given(OF_CHECKED, st.lists(OF_NODE, max_size=2))
def test_hostile_host_is_a_finding_of_check(answers: list[Message], others: list[Message]) -> None:
    with contextlib.closing(Loop()) as loop:
        ours, theirs = socket.socketpair()
        fd = ours.detach()
        with theirs:
            theirs.sendall(sent([*answers, *others]))
            theirs.shutdown(socket.SHUT_WR)
            inspection = Inspection(loop, [(make_plan(1).nodes[0], Line(fd, fd))], Wanted(), 30.0)
            inspection.ask_facts(lambda _node: cast(Any, {}))
            inspection.try_network()
            inspection.end()
            inspection.close()
    seen = [inspection.list_seen()[0]]
    findings = judge_hosts(seen, Wanted(), [0])
    assert findings and choose_check_code(findings)  # its line is closed before it has answered all
    for as_json in (False, True):
        out = io.StringIO()
        tell(seen, findings, out, as_json=as_json)
        assert not find_obeyed(out.getvalue())
