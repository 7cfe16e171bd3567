"""Hostile messages of nodes and heads: no traceback, and never 0 after a failure."""

from __future__ import annotations

import contextlib
import io
import socket
from collections.abc import Sequence
from typing import Any, get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from pslaunch.backends.base import Line
from pslaunch.node import job, messages
from pslaunch.node.head.head import Head
from pslaunch.node.job import Count, Limits, Node, Plan, Role
from pslaunch.node.line import wire
from pslaunch.node.line.wire import Message, encode_control
from pslaunch.node.loop import Loop
from pslaunch.run.observe import RemoteHead
from pslaunch.views.live import LiveView
from pslaunch.views.view import Event, JsonView, PlainView, View
from support.hostile import spoilt

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
    known = {"key": "trainer/0", "addrs": ["::1"], "signal": "", "shared": None}
    return {k: known.get(k, v) for k, v in message.items()}


OF_NODE = st.one_of(*map(st.from_type, get_args(messages.OfAgent))).map(usual).flatmap(spoilt)
OVER = st.builds(lambda code: {"type": "over", "code": code}, st.sampled_from([0, 3, 256]))
BUILT = (messages.EventsMsg, messages.OverMsg, messages.StatusMsg)
ANSWERS = [st.from_type(m) for m in get_args(messages.ToObserver) if m not in BUILT]
OF_HEAD = st.one_of(*ANSWERS, OVER, st.just(STATUS)).map(usual).flatmap(spoilt)


def sent(messages: list[Message]) -> bytes:
    return b"".join(b"".join(encode_control(m)) for m in (wire.make_hello(), *messages))


@settings(max_examples=100, deadline=None)
@given(st.lists(OF_NODE, min_size=1, max_size=6))
def test_hostile_node_ends_the_head_only_with_a_message(said: list[Message]) -> None:
    now_s = 0.0
    nodes = (Node(0, "n0", "", "/ws", "/ws/log", "/ws/output", "/ws/.pslaunch"),)
    plan = Plan(
        job_id="demo-1", name="demo", epoch=0, backend="local", server="bundled", why="given",
        roles=(Role("trainer", Count("per_node", 1), ("python", "train.py")),),
        port=None, ports_num=1, ports_num_for_sparse=0, trainer_count=1, use_gpu=False, added_env={},
        flags={}, limits=Limits(5.0, 1000.0, 60.0, None, 60.0), nodes=nodes,
    )  # fmt: skip
    with contextlib.closing(Loop(clock=lambda: now_s)) as loop:
        head = Head(loop, job.place(plan, nodes), "5e" * 32, lambda: 0.0)
        ours, theirs = socket.socketpair()
        with theirs:
            fd = ours.detach()
            head.attach(nodes[0], fd, fd, lambda: "")
            theirs.sendall(sent(said))
            theirs.shutdown(socket.SHUT_WR)
            while not head.done:
                loop.run_once(0.0)
                now_s += 0.5
        failed = any(
            e["event"] in ("process", "end") and e["code"] for e in head.list_events(0)[0] if "code" in e
        )
        assert head.code < 256 and not (failed and head.code == 0)
        show(head.list_events(0)[0])
        head.close()


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


def count(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Renumber numbered events, so that all of them are accepted."""
    return [{**e, "n": i} if e.get("n") in range(len(NUMBERED)) else e for i, e in enumerate(events)]


def show(events: Sequence[Event]) -> None:
    """Show events in all views."""
    views: tuple[View, ...] = (
        PlainView(io.StringIO(), lambda: 0.0), JsonView(io.StringIO()), LiveView(io.StringIO(), lambda: 0.0),
    )  # fmt: skip
    for view in views:
        for n, e in enumerate(events):
            view.show_event(e)
            view.tick(20.0 * n)
        view.close()
