"""Contents of a trace, and values left out of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pslaunch.node.line.trace import MAX_CHARS, MAX_ITEMS, MAX_WAITING, Trace, conceal

SECRET = "5e" * 32


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ({"type": "prepare", "secret": SECRET}, {"type": "prepare", "secret": "left out"}),
        ({"type": "prepare", "secret": None}, {"type": "prepare", "secret": None}),
        ({"placed": {"plan": {"secret": [SECRET]}}}, {"placed": {"plan": {"secret": "left out"}}}),
        ({"added_env": {"TOKEN": SECRET}, "env": SECRET}, {"added_env": ["TOKEN"], "env": "left out"}),
        ({"events": [{"text": SECRET}] * 3, "setup": [SECRET]}, {"events": 3, "setup": 1}),
        ({"tail": {"no": "list"}}, {"tail": "left out"}),
        ({"files": list(range(MAX_ITEMS + 5))}, {"files": [*range(MAX_ITEMS), "and 5 more"]}),
        ({"text": "x" * 9999}, {"text": "x" * MAX_CHARS + "..."}),
    ],
)
def test_trace_has_no_secret_and_no_long_value(message: dict[str, object], told: object) -> None:
    assert conceal(message) == told


def test_messages_before_the_file_is_known_come_first(tmp_path: Path) -> None:
    trace, path = Trace("node 1"), tmp_path / "trace.jsonl"
    note = trace.make_note("head")
    for number in range(MAX_WAITING + 10):
        note("got", {"type": "signal", "number": number})
    trace.begin(str(path))
    note("sent", {"type": "finished"})
    trace.begin(str(tmp_path / "another"))
    trace.close()
    note("sent", {"type": "finished"})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == MAX_WAITING + 2 and lines[-2]["message"]["number"] == MAX_WAITING + 9
    last = lines[-1]
    assert last.pop("time") > 1e9
    assert last == {"side": "node 1", "sent": "finished", "peer": "head", "message": {"type": "finished"}}
    assert not (tmp_path / "another").exists() and path.stat().st_mode & 0o777 == 0o600


def test_full_disk_does_not_end_a_traced_job() -> None:
    trace = Trace("head")
    trace.begin("/dev/full")
    trace.make_note("node 0")("sent", {"type": "finish"})
    trace.close()
