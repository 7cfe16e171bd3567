"""Invalid answers of agents to `pslaunch check`: a finding about their host, no delay for others."""

from __future__ import annotations

import socket
from typing import Any, cast

import pytest

from pslaunch.backends.lines import Line
from pslaunch.check.findings import Seen, Wanted, judge_hosts
from pslaunch.check.inspection import Inspection
from pslaunch.node.job import Node
from pslaunch.node.line import wire
from pslaunch.node.line.wire import encode_control
from pslaunch.node.loop import Loop
from support.node_facts import FACTS, change_facts


def inspected(facts: Any) -> Any:
    return {"type": "inspected", "facts": facts}


def opened(port: Any) -> Any:
    return {"type": "opened", "port": port}


def asked(*answers: Any) -> Seen:
    """Return the observations of a host that gives these answers to any question."""
    loop = Loop()
    ours, theirs = socket.socketpair()
    read_fd = ours.detach()
    with theirs:
        for message in (wire.make_hello(), *answers, {"type": "finished"}):
            theirs.sendall(encode_control(message))
        node = Node(0, "a", "", "/ws", "/ws/log", "/ws/output", "/ws/.pslaunch")
        inspection = Inspection(loop, [(node, Line(read_fd, read_fd))], Wanted(), 30.0)
        inspection.ask_facts(lambda _node: cast(Any, {}))
        inspection.try_network()
        inspection.end()
        inspection.close()
        loop.close()
    return inspection.list_seen()[0]


REACHED: Any = {"type": "reached", "reached": []}


@pytest.mark.timeout(60)
def test_valid_answers_are_kept() -> None:
    seen = asked(inspected(FACTS), opened(7164), REACHED)
    assert not seen.lost and seen.facts == FACTS


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        ([{"type": "inspected"}], "inspected"),
        ([inspected([])], "inspected"),
        ([inspected(change_facts(addrs=3))], "inspected"),
        ([inspected(change_facts(addrs=[]))], "inspected"),
        ([inspected(change_facts(ports={"many": ""}))], "inspected"),
        ([inspected(FACTS), {"type": "opened"}], "opened"),
        ([inspected(FACTS), opened("door")], "opened"),
        ([inspected(FACTS), opened(1 << 40)], "opened"),
        ([inspected(FACTS), opened(7164), {"type": "reached", "reached": 7}], "reached"),
        ([inspected(FACTS), opened(7164), {"type": "reached", "reached": [[9, "10.0.0.9"]]}], "reached"),
    ],
)
def test_an_invalid_answer_is_a_finding(answers: list[Any], kind: str) -> None:
    seen = asked(*answers)
    assert f"the message {kind!r} can't be right" in seen.lost
    assert ("silent", seen.lost) in [(f.kind, f.text) for f in judge_hosts([seen], Wanted(), [0])]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("folders", {}),
        ("folders__workspace__path", None),
        ("folders__workspace__free_bytes", "much"),
        (
            "folders__workspace",
            {"path": "/ws", "there": False, "error": "", "free_bytes": 1 << 42},
        ),  # no parent
        ("agent_python", None),
        ("memory", []),
        ("programs__version", 3),
        ("programs__missing", 7),
        ("proxies", 1),
    ],
)
def test_invalid_facts_are_a_finding(path: str, value: Any) -> None:
    seen = asked(inspected(change_facts(**{path: value})), opened(7164), REACHED)
    assert seen.facts is None and seen.lost.startswith("the message 'inspected' can't be right: ")
