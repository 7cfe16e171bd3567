"""Lines from bytes in any pieces."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslaunch.node import logs
from pslaunch.node.logs import LineSplitter, LogLine, Stream, clean, read_tail


def split(pieces: list[bytes]) -> list[LogLine]:
    splitter = LineSplitter(lambda: 0.0)
    found = [text for piece in pieces for text in splitter.feed(piece)]
    return found + splitter.feed(b"", final=True)


@given(st.lists(st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]))), st.data())
def test_any_chunking_gives_the_same_lines(lines: list[str], data: st.DataObject) -> None:
    stream = "".join(f"{line}\n" for line in lines).encode()
    pieces, rest = [], stream
    while rest:
        n = data.draw(st.integers(1, len(rest)))
        pieces.append(rest[:n])
        rest = rest[n:]
    assert split(pieces) == [LogLine(clean(line)) for line in lines]


@given(st.binary())
def test_noise_never_crashes_and_holds_no_control_characters(noise: bytes) -> None:
    for text in split([noise]):
        assert not any((ord(c) < 32 and c != "\t") or 127 <= ord(c) < 160 for c in text.text)


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        pytest.param([b"one\ntwo"], ["one", "two"], id="a line without end"),
        pytest.param([b"one\r", b"\ntwo\r\n"], ["one", "two"], id="CRLF, cut in two"),
        pytest.param(
            [b"\rone\n\r\rtwo\n", b"\r", b"three\n"], ["one", "two", "three"], id="CR before a line"
        ),
    ],
)
def test_lines_are_found(pieces: list[bytes], lines: list[str]) -> None:
    assert split(pieces) == [LogLine(line) for line in lines]


def test_overwritten_text_is_left_out_except_one_state_every_few_seconds() -> None:
    now = 0.0
    splitter = LineSplitter(lambda: now)
    assert splitter.feed(b"10%\r20%\r") == [LogLine("10%")]
    assert splitter.feed(b"30%\r40%\r") == []
    now = logs.OVERWRITTEN_EVERY_S
    assert splitter.feed(b"50%\r60%") == [LogLine("50%")]
    assert splitter.feed(b"\r100%\n")[-1] == LogLine("100%")


def test_missing_output_begins_and_ends_between_lines() -> None:
    stream = Stream(lambda: 0.0)
    assert stream.feed(0, b"one\ntw") == [LogLine("one")]
    assert stream.feed(100, b"f a line") == []
    assert stream.feed(108, b"\nfive\nsi") == [109 - 4, LogLine("five")]
    assert stream.end(116) == [LogLine("si")]
    assert stream.end(120) == [4]


def test_partly_shown_line_ends_before_a_gap() -> None:
    stream = Stream(lambda: 0.0)
    shown = stream.feed(0, b"x" * 10_000)
    assert [text.more for text in shown if isinstance(text, LogLine)] == [True]
    assert stream.feed(20_000, b"y\rz\n") == [LogLine("x" * 1808), 10_002, LogLine("z")]


@given(st.lists(st.text("ab", max_size=4), min_size=1, max_size=30), st.data())
def test_shown_and_missing_bytes_add_up(words: list[str], data: st.DataObject) -> None:
    output = "".join(f"{word}\n" for word in words).encode()
    stream, found, at = Stream(lambda: 0.0), [], 0
    while at < len(output):
        size = data.draw(st.integers(1, 5))
        if data.draw(st.booleans()):
            found += stream.feed(at, output[at : at + size])
        at = min(at + size, len(output))
    found += stream.end(at)
    sizes = [x if isinstance(x, int) else len(x.text) + 1 for x in found]
    assert sum(sizes) == len(output) and {x.text for x in found if isinstance(x, LogLine)} <= set(words)


def test_a_long_line_comes_in_pieces_and_memory_stays_bounded() -> None:
    splitter = LineSplitter(lambda: 0.0)
    found = [t for _ in range(100) for t in splitter.feed(b"x" * 60_000)]
    found += splitter.feed(b"\n")
    assert all(t.more for t in found[:-1]) and not found[-1].more
    assert sum(len(t.text) for t in found) == 6_000_000
    assert max(len(t.text) for t in found) <= logs.MAX_LINE_CHARS


def test_escape_sequences_are_removed() -> None:
    assert clean("\x1b[31mred\x1b[0m \x1b]0;title\x07tab\there") == "red tab\there"
    assert clean("to \u202enoitcerid\u202c and \u2066back\u2069") == "to noitcerid and back"


def test_tail_has_the_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_bytes(b"".join(b"line %d\n" % i for i in range(5000)) + b"\n\n")
    assert read_tail(str(log)) == tuple(f"line {i}" for i in range(4980, 5000))
    assert read_tail(str(tmp_path / "none")) == ()
    log.write_bytes(b"x" * 100_000)
    assert len(read_tail(str(log))) == 1
