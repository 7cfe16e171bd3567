"""Lines out of bytes, whatever the pieces."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pslaunch.node import logs
from pslaunch.node.logs import LineSplitter, Text, clean, tail


def split(pieces: list[bytes]) -> list[Text]:
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
    assert split(pieces) == [Text(clean(line)) for line in lines]


@given(st.binary())
def test_noise_never_crashes_and_holds_no_control_characters(noise: bytes) -> None:
    for text in split([noise]):
        assert not any((ord(c) < 32 and c != "\t") or 127 <= ord(c) < 160 for c in text.text)


def test_a_line_without_end_comes_last() -> None:
    assert split([b"one\ntwo"]) == [Text("one"), Text("two")]


def test_crlf_is_a_line_end_also_when_cut_in_two() -> None:
    assert split([b"one\r", b"\ntwo\r\n"]) == [Text("one"), Text("two")]


def test_what_a_carriage_return_overwrites_is_left_out_but_for_one_state_every_few_seconds() -> None:
    now = 0.0
    splitter = LineSplitter(lambda: now)
    assert splitter.feed(b"10%\r20%\r") == [Text("10%")]
    assert splitter.feed(b"30%\r40%\r") == []
    now = logs.OVERWRITTEN_EVERY_S
    assert splitter.feed(b"50%\r60%") == [Text("50%")]
    assert splitter.feed(b"\r100%\n")[-1] == Text("100%")


def test_a_long_line_comes_in_pieces_and_memory_stays_bounded() -> None:
    splitter = LineSplitter(lambda: 0.0)
    found = [t for _ in range(100) for t in splitter.feed(b"x" * 60_000)]
    found += splitter.feed(b"\n")
    assert all(t.more for t in found[:-1]) and not found[-1].more
    assert sum(len(t.text) for t in found) == 6_000_000
    assert max(len(t.text) for t in found) <= logs.MAX_LINE_CHARS


def test_escape_sequences_go() -> None:
    assert clean("\x1b[31mred\x1b[0m \x1b]0;title\x07tab\there") == "red tab\there"


def test_tail(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_bytes(b"".join(b"line %d\n" % i for i in range(5000)) + b"\n\n")
    assert tail(str(log), 3) == ("line 4997", "line 4998", "line 4999")
    assert tail(str(tmp_path / "none")) == ()
    log.write_bytes(b"x" * 100_000)
    assert len(tail(str(log))) == 1
