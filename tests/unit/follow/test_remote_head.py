"""Remote heads, seen from the launcher's end of the line."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pslaunch.backends.lines import Line
from pslaunch.follow.remote_head import SLOW_S, RemoteHead
from pslaunch.node import codes
from pslaunch.node.dispatch.sender import encode_numbers
from pslaunch.node.head.events import MAX_EVENTS
from pslaunch.node.job import Package
from pslaunch.node.line.wire import Data, MessageLine
from pslaunch.node.loop import Loop
from pslaunch.ship.package import PackageFolder
from support.process import open_below


def both_ends(
    loop: Loop,
    *,
    name: str = "node 0",
    supply: PackageFolder | None = None,
    on_message: Callable[[Any], None] = lambda _m: None,
    on_data: Callable[[Data], None] = lambda _d: None,
) -> tuple[RemoteHead, MessageLine[Any]]:
    """The launcher's end of a line, and what the head has of it."""
    near, far = (s.detach() for s in socket.socketpair())
    head = RemoteHead(loop, Line(near, near), name=name, lost_after_s=30, supply=supply)
    line: MessageLine[Any] = MessageLine(
        loop, far, far, lost_after_s=30, on_message=on_message, on_lost=lambda _why: None, on_data=on_data
    )
    return head, line


@pytest.mark.timeout(60)
@pytest.mark.parametrize("first", ["head", "launcher"])
def test_a_line_that_ends_while_the_package_is_sent_keeps_nothing_open(tmp_path: Path, first: str) -> None:
    (tmp_path / "large").write_bytes(os.urandom(12_000_000))
    loop, threads = Loop(), threading.active_count()
    come: list[Data] = []
    head, line = both_ends(loop, supply=PackageFolder(loop, Package(str(tmp_path))), on_data=come.append)
    line.send({"type": "wants"})
    loop.run(lambda: head._package._sender is not None)
    line.send({"type": "lacks", "manifest": False, "files": encode_numbers([0]), "offsets": {}})
    loop.run(lambda: bool(come))
    assert tmp_path / "large" in open_below(tmp_path)
    (line if first == "head" else head).close()
    loop.run(lambda: not open_below(tmp_path) and threading.active_count() == threads)
    assert head.done == (first == "head")
    for end in (line, head):
        end.close()
    loop.close()


@pytest.mark.timeout(60)
def test_head_that_requests_missing_files_is_lost(tmp_path: Path) -> None:
    (tmp_path / "small").write_text("small")
    loop = Loop()
    head, line = both_ends(loop, supply=PackageFolder(loop, Package(str(tmp_path))))
    line.send({"type": "wants"})
    loop.run(lambda: head._package._sender is not None)
    line.send({"type": "lacks", "manifest": False, "files": encode_numbers([7]), "offsets": {}})
    loop.run(lambda: head.done)
    (event,) = head.list_events(0)[0]
    assert head.code == codes.NODE_LOST and "more files than the 1 of the package" in event["reason"]
    assert event["reason"] == f"{event['failure']['what']} {event['failure']['text']}"  # the name once
    line.close()
    loop.close()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("answers", [False, True])
def test_unanswered_request_to_end_is_reported(answers: bool) -> None:
    now_s = 0.0
    loop = Loop(clock=lambda: now_s)
    come: list[str] = []
    head, line = both_ends(loop, name="node 0 (n)", on_message=lambda m: come.append(m["type"]))
    said: list[str] = []
    head.on_slow = said.append
    head.stop(2, "interrupted")
    loop.run(lambda: "stop" in come)
    # Events on their way before the head began to hang are no answer.
    line.send({"type": "events", "events": [{"n": 0, "time": 0.0, "event": "note", "text": "early"}]})
    if answers:
        line.send({"type": "stopping"})
    loop.run(lambda: bool(head.list_events(0)[0]) and answers == ("stopping" in head.answers))
    now_s = SLOW_S + 0.1
    loop.run_once(0.0)
    text = "node 0 (n) does not answer the request to end the job; 8 s after a second request it is given up"
    assert said == ([] if answers else [text])
    for end in (line, head):
        end.close()
    loop.close()


@pytest.mark.timeout(60)
def test_head_that_leaves_after_the_job_is_not_lost() -> None:
    loop = Loop()
    head, line = both_ends(loop)
    line.send({"type": "over", "code": codes.PEER})
    line.close()
    loop.run(lambda: head.done)
    loop.run_once(0.1)  # as where results are fetched after that
    assert head.code == codes.PEER and not head.list_events(0)[0]
    loop.close()


@pytest.mark.timeout(60)
def test_missing_events_are_reported_also_if_dropped_here() -> None:
    loop = Loop()
    head, line = both_ends(loop)
    numbers = range(1, MAX_EVENTS + 2)  # all that a head remembers, and one
    for first in numbers[::1000]:
        some = [{"n": n, "time": 0.0, "event": "note", "text": ""} for n in numbers if 0 <= n - first < 1000]
        line.send({"type": "events", "events": some})
    line.send({"type": "stopping"})
    loop.run(lambda: "stopping" in head.answers)
    events, cursor = head.list_events(0)
    assert (events[0]["n"], events[0]["missing"], cursor) == (1, 2, numbers[-1] + 1)
    assert [e["n"] for e in events[1:]] == list(numbers[1:]) and head.list_events(cursor) == ([], cursor)
    for end in (line, head):
        end.close()
    loop.close()


NOTE = {"n": 0, "time": 0.0, "event": "note", "text": ""}
FAILURE = {
    "what": "trainer/0", "node": 0, "code": 3, "text": "", "signal": "", "log": "", "tail": [], "advice": "",
}  # fmt: skip
END = {"n": 0, "time": 0.0, "event": "end", "code": 3, "reason": "", "elapsed_s": 0.0, "failure": FAILURE}


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([{"type": "over", "code": 256}], "code can't be '256'"),
        ([{"type": "events", "events": [END]}, {"type": "over", "code": 0}], "the job has ended with 3"),
        ([{"type": "events", "events": [{**END, "code": 0}]}], "can't end with 0"),
        ([{"type": "events", "events": [NOTE, NOTE]}], "event 0 after 0"),
        ([{"type": "events", "events": [{**NOTE, "n": 10**30}]}], "n can't be"),
        ([{"type": "leading", "port": 1, "addrs": ["127.0.0.1"] * 65}], "at most 64 addresses"),
        ([{"type": "leading", "port": 1, "addrs": ["a host"]}], "'a host' is not an address"),
        ([{"type": "leading", "port": 65536, "addrs": ["::1"]}], "port can't be"),
    ],
)
def test_head_with_impossible_messages_is_lost(said: list[dict[str, Any]], why: str) -> None:
    loop = Loop()
    head, line = both_ends(loop)
    for message in said:
        line.send(message)
    loop.run(lambda: head.done)
    assert head.code == codes.NODE_LOST and why in head.lost
    line.close()
    loop.close()


@pytest.mark.timeout(60)
def test_lost_job_has_run_since_its_first_event() -> None:
    loop = Loop()
    head, line = both_ends(loop)
    line.send({"type": "events", "events": [{**NOTE, "time": time.time() - 60}]})
    line.send({"type": "stopping"})
    loop.run(lambda: "stopping" in head.answers)
    line.close()
    loop.run(lambda: head.done)
    assert head.list_events(1)[0][0]["elapsed_s"] >= 60
    loop.close()


@pytest.mark.timeout(60)
def test_unrequested_answers_are_not_kept() -> None:
    loop = Loop()
    head, line = both_ends(loop)
    for i in range(1000):
        line.send({"type": f"answer {i}", "text": "x" * 1000})
    line.send({"type": "stopping"})
    loop.run(lambda: "stopping" in head.answers)
    assert list(head.answers) == ["stopping"]
    for end in (line, head):
        end.close()
    loop.close()
