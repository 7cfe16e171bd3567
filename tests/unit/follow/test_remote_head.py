"""Remote heads, seen from the launcher's end of the line."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pslaunch.backends.lines import Line
from pslaunch.follow.remote_head import SLOW_S, RemoteHead
from pslaunch.node import codes
from pslaunch.node.dispatch.sender import encode_numbers
from pslaunch.node.head.events import MAX_EVENTS
from pslaunch.node.job import Package
from pslaunch.node.line.wire import Data
from pslaunch.node.loop import Loop
from pslaunch.ship.package import PackageFolder
from support.hostile import Nest
from support.lines import open_line
from support.process import open_below

pytestmark = pytest.mark.timeout(60)


class Ends:
    """The launcher's end of a line, and what the head has of it."""

    def __init__(self, supplied: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.loop = Loop(clock=clock)
        near, far = (s.detach() for s in socket.socketpair())
        supply = PackageFolder(self.loop, Package(str(supplied))) if supplied else None
        self.head = RemoteHead(self.loop, Line(near, near), name="node 0 (n)", lost_after_s=30, supply=supply)
        self.heard: list[str] = []
        self.come: list[Data] = []
        self.line = open_line(
            self.loop, far, lambda m: self.heard.append(m["type"]), on_data=self.come.append, lost_after_s=30
        )

    def tell(self, *messages: dict[str, Any]) -> None:
        """Send messages and let the launcher read them."""
        for message in (*messages, {"type": "stopping"}):
            self.line.send(message)
        self.loop.run(lambda: "stopping" in self.head.answers)

    def ask_for(self, files: list[int]) -> None:
        """Ask the launcher for files of its package."""
        self.line.send({"type": "wants"})
        self.loop.run(lambda: self.head._package._sender is not None)
        self.line.send({"type": "lacks", "manifest": False, "files": encode_numbers(files), "offsets": {}})

    def close(self) -> None:
        for end in (self.line, self.head, self.loop):
            end.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    with contextlib.closing(Ends()) as found:
        yield found


@pytest.mark.parametrize("first", ["head", "launcher"])
def test_a_line_that_ends_while_the_package_is_sent_keeps_nothing_open(tmp_path: Path, first: str) -> None:
    (tmp_path / "large").write_bytes(os.urandom(12_000_000))
    threads = threading.active_count()
    with contextlib.closing(Ends(tmp_path)) as ends:
        ends.ask_for([0])
        ends.loop.run(lambda: bool(ends.come))
        assert tmp_path / "large" in open_below(tmp_path)
        (ends.line if first == "head" else ends.head).close()
        ends.loop.run(lambda: not open_below(tmp_path) and threading.active_count() == threads)
        assert ends.head.done == (first == "head")


def test_head_that_requests_missing_files_is_lost(tmp_path: Path) -> None:
    (tmp_path / "small").write_text("small")
    with contextlib.closing(Ends(tmp_path)) as ends:
        ends.ask_for([7])
        ends.loop.run(lambda: ends.head.done)
        (event,) = ends.head.list_events(0)[0]
        assert ends.head.code == codes.NODE_LOST and "more files than the 1 of the package" in event["reason"]
        assert event["reason"] == f"{event['failure']['what']} {event['failure']['text']}"  # the name once


NOTE = {"n": 0, "time": 0.0, "event": "note", "text": ""}
JOB = {
    "job": "j", "name": "j", "epoch": 0, "backend": "k8s", "server": "none", "why": "", "workspace": "/ws",
    "nodes": [], "processes": [],
}  # fmt: skip


@pytest.mark.parametrize("answers", [False, True])
def test_unanswered_request_to_end_is_reported(answers: bool) -> None:
    now_s = 0.0
    with contextlib.closing(Ends(clock=lambda: now_s)) as ends:
        said: list[str] = []
        ends.head.on_slow = said.append
        ends.head.stop(2, "interrupted")
        ends.loop.run(lambda: "stop" in ends.heard)
        # Events on their way before the head began to hang are no answer.
        ends.line.send({"type": "events", "events": [NOTE]})
        if answers:
            ends.tell()
        ends.loop.run(lambda: bool(ends.head.list_events(0)[0]))
        now_s = SLOW_S + 0.1
        ends.loop.run_once(0.0)
    text = "node 0 (n) does not answer the request to end the job; 8 s after a second request it is given up"
    assert said == ([] if answers else [text])


def test_head_that_leaves_after_the_job_is_not_lost(ends: Ends) -> None:
    ends.line.send({"type": "over", "code": codes.PEER})
    ends.line.close()
    ends.loop.run(lambda: ends.head.done)
    ends.loop.run_once(0.1)  # as where results are fetched after that
    assert ends.head.code == codes.PEER and not ends.head.list_events(0)[0]


def test_missing_events_are_reported_also_if_dropped_here(ends: Ends) -> None:
    numbers = range(1, MAX_EVENTS + 2)  # all that a head remembers, and one
    pieces = [[{**NOTE, "n": n} for n in numbers[at : at + 1000]] for at in range(0, len(numbers), 1000)]
    ends.tell(*({"type": "events", "events": piece} for piece in pieces))
    events, cursor = ends.head.list_events(0)
    assert (events[0]["n"], events[0]["missing"], cursor) == (1, 2, numbers[-1] + 1)
    assert [e["n"] for e in events[1:]] == list(numbers[1:]) and ends.head.list_events(cursor) == ([], cursor)


FAILURE = {
    "what": "trainer/0", "node": 0, "code": 3, "text": "", "signal": "", "log": "", "tail": [], "advice": "",
}  # fmt: skip
STATUS = {"job": "j", "state": "running", "events": 0}
END = {"n": 0, "time": 0.0, "event": "end", "code": 3, "reason": "", "elapsed_s": 0.0, "failure": FAILURE}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([{"type": "over", "code": 256}], "code can't be '256'"),
        ([{"type": "events", "events": [END]}, {"type": "over", "code": 0}], "the job has ended with 3"),
        ([{"type": "events", "events": [{**END, "code": 0}]}], "can't end with 0"),
        ([{"type": "events", "events": [NOTE, NOTE]}], "event 0 after 0"),
        ([{"type": "events", "events": [{**NOTE, "n": 10**30}]}], "event 1" + "0" * 30),
        ([{"type": "events", "events": [{**NOTE, "n": 2**50}]}], "event 1125899906842624 after -1"),
        ([{"type": "events", "events": [{**NOTE, "time": -(2**64)}]}], "time can't be"),
        ([{"type": "events", "events": [{**NOTE, "of": Nest(900)}]}], "RecursionError"),
        ([{"type": "status", **STATUS, "failure": {"of": Nest(900)}}], "RecursionError"),
        ([{"type": "leading", "port": 1, "addrs": ["127.0.0.1"] * 65}], "at most 64 addresses"),
        ([{"type": "leading", "port": 1, "addrs": ["a host"]}], "'a host' is not an address"),
        ([{"type": "leading", "port": 65536, "addrs": ["::1"]}], "port can't be"),
    ],
)
def test_head_with_impossible_messages_is_lost(ends: Ends, said: list[dict[str, Any]], why: str) -> None:
    for message in said:
        ends.line.send(message)
    ends.loop.run(lambda: ends.head.done)
    assert ends.head.code == codes.NODE_LOST and why in ends.head.lost


def test_lost_job_has_run_since_its_first_event(ends: Ends) -> None:
    ends.tell({"type": "events", "events": [{**NOTE, "time": time.time() - 60}]})
    ends.line.close()
    ends.loop.run(lambda: ends.head.done)
    assert ends.head.list_events(1)[0][0]["elapsed_s"] >= 60


def test_unrequested_answers_are_not_kept(ends: Ends) -> None:
    ends.tell(*({"type": f"answer {i}", "text": "x" * 1000} for i in range(1000)))
    assert list(ends.head.answers) == ["stopping"]


def test_events_of_the_head_that_comes_after_a_lost_one_go_on_in_the_numbers_of_its_own() -> None:
    opened: list[socket.socket] = []

    def reopen() -> Line:
        near, far = socket.socketpair()
        opened.append(far)
        fd = near.detach()
        return Line(fd, fd)

    def begin(time_s: float) -> list[dict[str, Any]]:
        return [{**NOTE, "n": 0, "time": time_s, "event": "job", **JOB}, {**NOTE, "n": 1, "time": time_s}]

    with contextlib.closing(Ends()) as ends:
        ends.head._reopen = reopen
        ends.tell({"type": "events", "events": begin(1.0)})
        asked: list[Any] = []
        line = ends.line
        for times, of in (((), 1.0), ((2.0,), 1.0), ((), 2.0)):
            line.close()
            ends.loop.run(lambda: bool(opened))
            line = open_line(ends.loop, opened.pop().detach(), asked.append)
            ends.loop.run(lambda: any(m["type"] == "follow" for m in asked))
            (follow,) = (m for m in asked if m["type"] == "follow")
            assert follow == {"type": "follow", "cursor": 2, "of": of}
            asked.clear()
            for time_s in times:
                line.send({"type": "events", "events": begin(time_s)})
                ends.loop.run(lambda: len(ends.head.list_events(0)[0]) == 4)
        assert [(e["n"], e["event"]) for e in ends.head.list_events(0)[0]] == [
            (0, "job"), (1, "note"), (2, "job"), (3, "note"),
        ]  # fmt: skip
        line.close()
