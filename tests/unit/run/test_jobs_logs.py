"""Logs of an ended job read as its lines did while it ran."""

from __future__ import annotations

from pslaunch.node.logs import MAX_LINE_CHARS
from pslaunch.run.jobs import _split_lines


def test_terminal_controls_are_removed() -> None:
    pieces = [b"\x1b]0;title\x07one\r", b"\ntw\xc3", b"\xb6\n\x1b[2Jlast"]
    assert [line.text for line in _split_lines(iter(pieces))] == ["one", "twö", "last"]


def test_a_line_without_an_end_is_not_collected() -> None:
    pieces = (b"x" * MAX_LINE_CHARS for _ in range(1 << 40))  # more than any memory
    assert len(next(_split_lines(pieces)).text) == MAX_LINE_CHARS
