"""The head and messages of nodes: nonsense loses that node, and an unanswered end has a limit."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pslaunch.node import codes, job, procs
from pslaunch.node.head import head, observed, output
from pslaunch.node.head.head import Head
from pslaunch.node.job import Count, Limits, Node, Plan, Role
from pslaunch.node.later import record
from pslaunch.node.later.record import RESTART
from pslaunch.node.line import wire
from pslaunch.node.line.wire import Decoder, Line, Message, Output, encode_control
from pslaunch.node.logs import MAX_LINE_CHARS
from pslaunch.node.loop import Loop
from pslaunch.runtime.shared.env import get_snapshot_var
from support.lines import encode_piece, open_line

if TYPE_CHECKING:
    from pslaunch.node.messages import Memory, Restarted

PREPARED: Message = {
    "type": "prepared", "host": "n0", "run_dir": "/run", "python": "python", "workspace": "/ws",
    "log_dir": "/ws/log", "output_dir": "/ws/output", "state_dir": "/ws/.pslaunch", "shared": None,
    "resources": {"gpus": [], "gpus_by": "", "cores": []},
}  # fmt: skip
PIECE = encode_piece(Output(0, 0, b"yes\n"))


def trainers(count: int) -> job.Placed:
    """One on each node."""
    nodes = tuple(Node(i, f"n{i}", "", "/ws", "/ws/log", "/ws/output", "/ws/.pslaunch") for i in range(count))
    plan = Plan(
        job_id="demo-1", name="demo", epoch=0, backend="local", server="bundled", why="given",
        roles=(Role("trainer", Count("per_node", 1), ("python", "train.py")),),
        port=None, ports_num=1, ports_num_for_sparse=0, trainer_count=1, use_gpu=False, added_env={},
        flags={}, limits=Limits(5.0, 1000.0, 60.0, None, 60.0), nodes=nodes,
    )  # fmt: skip
    return job.place(plan, nodes)


ON_CLAIM = {get_snapshot_var("snapshot_dir"): "/data"}


class Led:
    """A head and node 0, which sends the messages of a test; the test sets the clock. Others do not come."""

    def __init__(self, nodes: int = 1, known: Memory | None = None, **limits: Any) -> None:
        """known: of an epoch that another head has left 20 s ago."""
        self.now_s = 0.0
        self.loop = Loop(clock=lambda: self.now_s)
        placed = trainers(nodes)
        placed = placed._replace(plan=placed.plan._replace(limits=placed.plan.limits._replace(**limits)))
        if known:
            placed = placed._replace(plan=placed.plan._replace(backend="k8s", added_env=ON_CLAIM))
        self.head = Head(self.loop, placed, "5e" * 32, lambda: 0.0)
        ours, self._node = socket.socketpair()
        fd = ours.detach()
        self.head.attach(self.head.placed.nodes[0], Line(fd, fd))
        self._decoder = Decoder()
        self.say(encode(wire.make_hello()))
        if known:
            self.say(encode({"type": "known", "memory": known, "ago_s": 20.0}))
        elif nodes == 1:
            self.until_told("prepare")

    def say(self, frames: bytes) -> None:
        """Send bytes from the node and let the head read them."""
        before_s = self.head.links[0].line.silence.heard_s
        self._node.sendall(frames)
        self.now_s += 0.001
        self.loop.run(lambda: self.head.links[0].line.silence.heard_s > before_s)

    def until_told(self, kind: str) -> None:
        self._node.setblocking(False)
        heard: list[Any] = []
        while kind not in heard:
            self.loop.run_once(0.0)
            with contextlib.suppress(BlockingIOError):
                items = self._decoder.feed(os.read(self._node.fileno(), 1 << 16))
                heard += [item["type"] for item in items if isinstance(item, dict)]

    def later(self, by_s: float) -> None:
        self.now_s += by_s
        self.loop.run_once(0.0)

    def events(self, event: str) -> list[dict[str, Any]]:
        return [e for e in self.head.list_events(0)[0] if e["event"] == event]

    def notes(self) -> list[str]:
        return [e["text"] for e in self.events("note")]

    def close(self) -> None:
        self._node.close()
        for link in self.head.links.values():
            link.line.close()
        self.loop.close()


@pytest.fixture
def led() -> Iterator[Led]:
    with contextlib.closing(Led()) as found:
        yield found


EXITED: Message = {
    "type": "exited", "key": "trainer/0", "code": 0, "signal": "", "asked": False, "oom": False, "written": 0,
    "tail": [], "ahead": False,
}  # fmt: skip
TROUBLE: Message = {"type": "trouble", "key": "", "code": 74, "text": "the disk"}
FINISHED: Message = {"type": "finished", "killed": 0, "left": []}
OTHERS = "trainer/1 belongs to another node"


def encode(said: Mapping[str, Any] | str) -> bytes:
    """Return the frame of a message, or of a text in its place."""
    if isinstance(said, str):
        return wire.HEADER.pack(len(said), wire.CONTROL) + said.encode()
    return encode_control(said)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ('{"type": "received", "bytes": Infinity}', "Infinity is not a number"),
        ('{"type": "exited", "key": "trainer/0", "written": 1e999}', "OverflowError"),
        ('{"type": "furnished"}', "KeyError"),
        ({**PREPARED, "addrs": []}, "a node has at least one address"),
        ({**PREPARED, "addrs": ["127.0.0.1"] * 65}, "a node has at most 64 addresses"),
        ({**PREPARED, "addrs": ["a host"]}, "'a host' is not an address"),
        ({**EXITED, "code": 256}, "code can't be '256'"),
        ({**EXITED, "signal": "SIGKILL"}, "code can't be '0'"),
        ({**TROUBLE, "code": 0}, "code can't be '0'"),
        ({"type": "opened", "port": 65536}, "port can't be '65536'"),
        ({"type": "started", "key": "trainer/0", "pid": [7]}, "pid can't be '[7]'"),
        *(({"type": kind, "python": "", "reached": []}, f"{kind!r} was not asked for")
          for kind in ("bound", "shut", "furnished", "reached")),
        ({**EXITED, "key": "trainer/1"}, OTHERS),
        ({**TROUBLE, "key": "trainer/1"}, OTHERS),
        ({"type": "progress", "key": "trainer/1", "state": "finished"}, OTHERS),
    ],
)  # fmt: skip
def test_nonsense_loses_its_node_with_a_reason(said: Message | str, why: str) -> None:
    with contextlib.closing(Led(nodes=2 if why == OTHERS else 1)) as led:
        led.say(encode(said))
        led.loop.run(lambda: led.head.done)
        assert led.head.code == codes.NODE_LOST and why in led.events("node")[-1]["text"]
        waiting = {"process": "trainer/0", "node": 0, "state": "waiting"}
        assert led.head.make_status()["processes"][0] == waiting  # has no value that events refuse


def test_what_is_said_of_programs_of_an_older_epoch_is_not_heard(led: Led) -> None:
    """Its exit would be a failure of the program that runs now."""
    plan = led.head.placed.plan
    led.head.placed = led.head.placed._replace(plan=plan._replace(epoch=1))
    for old in (
        EXITED,
        {**TROUBLE, "key": "trainer/0"},
        {"type": "progress", "key": "trainer/0", "batch": 1},
        {"type": "bound"},  # ports of that epoch
    ):
        led.say(encode({**old, "code": 3} if old is EXITED else old))
    assert not led.head.is_ending and not led.events("process") and not led.events("progress")
    led.say(encode(TROUBLE))  # of the node
    assert led.head.is_ending


def test_node_gives_only_output_of_its_own_processes() -> None:
    with contextlib.closing(Led(nodes=2)) as led:
        led.say(encode_piece(Output(1, 0, b"not mine")))
        led.loop.run(lambda: led.head.done)
        assert OTHERS in led.events("node")[-1]["text"]


def test_long_text_of_a_node_is_cut(led: Led) -> None:
    led.say(encode({**TROUBLE, "text": "x" * 100_000}))
    led.loop.run(lambda: led.head.is_ending)
    assert max(len(e["why"]) for e in led.events("ending")) == MAX_LINE_CHARS


def test_events_for_an_observer_fit_a_message(led: Led) -> None:
    for text in ("\N{GRINNING FACE}", "\N{LATIN SMALL LETTER E WITH ACUTE}", '"'):
        first = led.head.list_events(0)[1]
        for _ in range(observed.CHUNK):
            led.head.tell("line", process="trainer/0", text=text * MAX_LINE_CHARS)
        cursor = first
        while cursor < first + observed.CHUNK:
            events, cursor = led.head.list_events(cursor, observed.CHUNK, observed.CHUNK_BYTES)
            assert events and encode_control({"type": "events", "events": events})


@pytest.mark.parametrize("odd", [10**30, 10**400, -1], ids=["large", "no float", "below 0"])
def test_a_number_beyond_counting_in_a_report_is_left_out(led: Led, odd: int) -> None:
    report = {"pass": odd, "passes": odd, "batches": odd, "cost": 10**400, "batch": 7}
    led.say(encode({"type": "progress", "key": "trainer/0", **report}))
    (event,) = led.events("progress")
    assert event["batch"] == 7 and not {"pass", "passes", "batches", "cost"} & event.keys()


def test_only_metrics_have_names_of_their_own_in_a_report(led: Led) -> None:
    report = {"metric.auc": 0.5, "metric.x": "y", "state.x": "y", "cost.x": 1.0, "new": True}
    led.say(encode({"type": "progress", "key": "trainer/0", **report}))
    (event,) = led.events("progress")
    assert event.keys() == {"n", "time", "event", "process", "metric.auc"}


def finishing(led: Led) -> None:
    led.head.stop(15, "asked to end")
    led.until_told("finish")


def test_a_node_that_does_not_answer_the_end_is_given_up(led: Led) -> None:
    finishing(led)
    led.later(head.FINISH_LIMIT_S - 0.5)
    assert not led.events("end")
    led.later(1.0)
    assert led.head.done and "no answer while ending" in led.notes()[0]


def test_late_output_is_shown_up_to_a_limit_and_then_counted(led: Led) -> None:
    finishing(led)
    told = b"yes\n" * output.SHOW_LINES
    for piece in (Output(0, 0, told), Output(0, len(told), b"yes\nyes\n")):
        led.say(encode_piece(piece))
        led.later(0.1)
    led.say(encode({**EXITED, "written": len(told) + 8}))
    assert [e["text"] for e in led.events("line")] == ["yes"] * output.SHOW_LINES
    assert [e["bytes"] for e in led.events("gap")] == [8]
    led.say(encode_piece(Output(0, len(told) + 8, b"of a process left over\n")))
    assert [e["bytes"] for e in led.events("gap")] == [8, 23]


def test_failure_ahead_of_its_output_ends_the_job_and_the_output_follows(led: Led) -> None:
    led.head._supervisor.note_start("trainer/0")
    told = b"yes\n" * 5_000
    failed = {**EXITED, "code": 3, "written": 2 * len(told)}
    led.say(encode({**failed, "ahead": True}))
    assert led.events("ending") and not led.events("process")
    led.say(encode_piece(Output(0, 0, told)))
    led.later(0.1)
    led.say(encode(failed))
    assert len(led.events("line")) == 5_000
    assert [e["bytes"] for e in led.events("gap")] == [len(told)]
    assert [e["code"] for e in led.events("process")] == [3]
    led.say(encode(FINISHED))
    assert led.head.done and led.head.code == 3
    assert led.head.make_status()["state"] == "ending"  # the record says that it has ended, and why


def test_lines_of_many_that_fail_are_bounded_together(led: Led) -> None:
    led.head._supervisor.note_start("trainer/0")
    ahead = encode({**EXITED, "code": 3, "ahead": True})
    led.say(ahead)
    led.say(ahead)
    assert led.head._output._lines_left["trainer/0"] == output.SHOW_LINES + output.SHOW_LINES_OF_FAILED


def test_an_answer_may_come_behind_much_output(led: Led) -> None:
    finishing(led)
    for _ in range(4):
        led.later(head.FINISH_LIMIT_S * 0.9)
        led.say(PIECE)
    led.later(head.FINISH_LIMIT_S * 0.9)
    led.say(encode(FINISHED))
    assert led.head.done and not led.notes()


def test_a_node_that_sends_on_without_an_answer_is_given_up_at_last(led: Led) -> None:
    finishing(led)
    while not led.head.done:
        led.later(1.0)
        if not led.head.done:
            led.say(PIECE)
        assert led.now_s < head.FINISH_MOST_S + 5
    assert led.now_s > head.FINISH_MOST_S - 1 and "no answer while ending" in led.notes()[0]


@pytest.mark.timeout(60)
def test_a_head_in_a_launcher_goes_once_its_followers_know_the_end(
    led: Led, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    attached = observed.Attached(led.loop, led.head, None)
    led.head.settled()
    (path,) = Path(record.get_folder()).iterdir()
    sock = procs.connect(json.loads(path.read_text())["socket"])
    heard: list[Any] = []
    lost: list[str] = []
    follower = open_line(led.loop, sock.detach(), heard.append, on_lost=lost.append)
    follower.send({"type": "follow", "cursor": 0})
    for _ in range(1_000):
        led.head.tell("line", process="trainer/0", text="x" * MAX_LINE_CHARS)
    finishing(led)
    led.say(encode(FINISHED))
    attached.close()
    led.loop.run(lambda: bool(lost))
    assert heard.pop() == {"type": "over", "code": led.head.code}
    assert [e["n"] for m in heard for e in m.get("events", ())] == [
        e["n"] for e in led.head.list_events(0)[0]
    ]


KNOWN: Memory = {
    "epoch": 1, "told": [], "same": [], "cut": 30, "sealed": None, "at": {"trainer/0": [0, 7, 1]},
    "ran_s": 5.0, "job_s": 40.0, "why": "its pod",
}  # fmt: skip


@pytest.mark.parametrize("timeout_s", [None, 70.0])
def test_a_head_counts_on_where_another_was_lost(timeout_s: float | None) -> None:
    with contextlib.closing(Led(known=KNOWN, max_restarts=2, timeout_s=timeout_s)) as led:
        (ending,) = led.events("restart")
        assert (ending["state"], ending["epoch"], ending["restart"]) == ("ending", 2, 2)
        assert ending["why"] == "node 0 (n0) was lost: its pod"
        led.say(encode({"type": "cleared", "epoch": 2, "left": []}))
        led.until_told("prepare")
        led.head.start([])
        running = led.events("restart")[1]
        assert (running["state"], running["step"]) == ("running", 30) and 20.0 <= running["lost_s"] < 21.0
        assert led.head.make_status()["restarts"] == [{key: running[key] for key in RESTART}]
        assert 60.0 <= led.head.make_status()["elapsed_s"] < 61.0
        led.later(11.0)
        assert led.head.is_ending == (timeout_s is not None)


def test_a_restart_that_a_head_has_told_and_left_to_the_next_one_is_no_further_one() -> None:
    told: Restarted = {"epoch": 1, "restart": 1, "of": 1, "why": "so", "step": None, "lost_s": None}
    with contextlib.closing(Led(known={**KNOWN, "told": [told]}, max_restarts=1)) as led:
        assert not led.events("restart") and not led.head.is_ending
        led.say(encode({"type": "cleared", "epoch": 1, "left": []}))
        led.until_told("prepare")
        led.head.start([])
        (running,) = led.events("restart")
        assert (running["epoch"], running["step"]) == (1, 30) and 25.0 <= running["lost_s"] < 26.0


def test_a_head_after_a_lost_one_ends_the_job_where_no_restart_is_left() -> None:
    with contextlib.closing(Led(known=KNOWN, max_restarts=1)) as led:
        led.until_told("finish")
        assert led.notes() == ["no restart: --max_restarts=1 is used up"] and not led.events("restart")


@pytest.mark.parametrize("code", [codes.INT, codes.TIMEOUT, codes.IO])
def test_an_end_is_heard_while_a_restart_waits_for_a_cluster_that_may_end_all(code: int) -> None:
    ours, node1 = socket.socketpair()
    with node1, contextlib.closing(Led(nodes=2, max_restarts=1)) as led:
        plan = led.head.placed.plan._replace(backend="k8s", added_env=ON_CLAIM)
        led.head.placed = led.head.placed._replace(plan=plan)
        fd = ours.detach()
        led.head.attach(led.head.placed.nodes[1], Line(fd, fd))
        led.head.start([])
        led.say(encode({"type": "progress", "key": "trainer/0", "batch": 1}))
        led.say(encode({**TROUBLE, "code": codes.NODE_LOST, "text": "asked to end"}))
        assert [e["state"] for e in led.events("restart")] == ["ending"] and not led.events("ending")
        led.later(head.LOOK_FOR_ALL_S / 2)
        if code == codes.IO:
            led.say(encode(TROUBLE))
        else:
            led.head.stop(15 if code == codes.TIMEOUT else 2, "the disk", code)
        (ending,) = led.events("ending")
        assert ending["why"].endswith("the disk")
        led.later(head.LOOK_FOR_ALL_S)
        assert not led.head.has_left
        led.say(encode(FINISHED))
        led.later(head.FINISH_LIMIT_S)  # of node 1
        assert led.head.done and led.head.code == code
        assert bool(led.head.end["failure"]) == (code == codes.IO)
