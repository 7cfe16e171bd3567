"""The wire between head and agent: any split, any flipped byte, a slow reader, a silent peer."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslaunch.node.line import wire
from pslaunch.node.line.wire import (
    Data,
    Decoder,
    Line,
    MessageLine,
    Output,
    WireError,
    encode_control,
    encode_head,
)
from pslaunch.node.loop import Loop
from support.lines import open_line

messages = st.dictionaries(
    st.text(max_size=20), st.one_of(st.text(max_size=50), st.integers(), st.none())
).map(lambda d: {**d, "type": "x"})
outputs = st.builds(Output, st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.binary(max_size=200))
pieces = st.builds(Data, st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.binary(max_size=200))
items = st.lists(st.one_of(messages, outputs, pieces), max_size=8)


def encode(item: Any | Output | Data) -> bytes:
    return encode_head(item) + item.data if isinstance(item, (Data, Output)) else encode_control(item)


@given(items, st.data())
def test_any_split_gives_the_same_items(sent: list[Any | Output], data: st.DataObject) -> None:
    stream = b"".join(map(encode, sent))
    decoder, got, rest = Decoder(), [], stream
    while rest:
        n = data.draw(st.integers(1, len(rest)))
        got += decoder.feed(rest[:n])
        rest = rest[n:]
    assert got == sent


@given(items, st.data())
def test_a_flipped_bit_is_an_error_or_other_items_never_a_crash(
    sent: list[Any | Output], data: st.DataObject
) -> None:
    stream = bytearray(b"".join(map(encode, sent)) or b"\0")
    at = data.draw(st.integers(0, len(stream) * 8 - 1))
    stream[at // 8] ^= 1 << at % 8
    try:
        for item in Decoder().feed(bytes(stream)):
            assert isinstance(item, (dict, Output, Data))
    except WireError:
        pass


def test_no_frame_over_its_limit_is_sent_or_taken() -> None:
    with pytest.raises(WireError, match="limit"):
        encode_control({"type": "x", "text": "y" * wire.MAX_CONTROL_BYTES})
    for kind, (least, most) in wire._SIZES.items():
        for length in (least - 1, most + 1):
            if length >= 0:
                with pytest.raises(WireError, match="not a pslaunch peer"):
                    Decoder().feed(wire.HEADER.pack(length, kind))


@pytest.mark.parametrize(
    "noise", [b"Welcome to node1!\n", b"\xff" * 6, struct.pack("<IB", 2**31, 1), struct.pack("<IB", 2, 5)]
)
def test_random_bytes_are_named_in_the_error(noise: bytes) -> None:
    with pytest.raises(WireError, match="not a pslaunch peer; it sent"):
        Decoder().feed(noise)


NO_NUMBERS = ("nan", '{"type": "x", "n": NaN}', '{"type": "x", "n": -Infinity}')


@pytest.mark.parametrize("text", [*NO_NUMBERS, "[1]", '{"type": 3}', "{", "[" * 100_000])
def test_json_that_is_no_message_is_refused(text: str) -> None:
    with pytest.raises(WireError):
        Decoder().feed(wire.HEADER.pack(len(text), wire.CONTROL) + text.encode())


def test_a_version_skew_names_both_versions() -> None:
    with pytest.raises(WireError, match=rf"version 99.*this side {wire.WIRE_VERSION}"):
        wire.check_hello({"type": "hello", "wire": 99, "version": "9.9"})


class Peers:
    """A line that waits 3 s for each byte, and a raw socket at its other end; the test sets the clock."""

    def __init__(self) -> None:
        self.now_s, self.lost = 0.0, list[str]()
        self.loop = Loop(clock=lambda: self.now_s)
        ours, self.raw = socket.socketpair()
        self.raw.setblocking(False)
        self.line = open_line(self.loop, ours.detach(), on_lost=self.lost.append, lost_after_s=3)

    def until(self, end_s: int) -> None:
        while self.now_s < end_s:
            self.now_s += 1
            for _ in range(3):
                self.loop.run_once(0.0)

    def close(self) -> None:
        self.line.close()
        self.raw.close()
        self.loop.close()


@pytest.fixture
def peers() -> Iterator[Peers]:
    with contextlib.closing(Peers()) as found:
        yield found


def test_heartbeats_keep_an_idle_line_for_an_hour() -> None:
    now_s = [0.0]
    loop = Loop(clock=lambda: now_s[0])
    lost: list[str] = []
    lines = [
        open_line(loop, sock.detach(), on_lost=lost.append, lost_after_s=3) for sock in socket.socketpair()
    ]
    for second in range(3600):
        now_s[0] = float(second)
        for _ in range(3):  # beats go out, and come in
            loop.run_once(0.0)
    assert not lost
    for line in lines:
        line.close()
    loop.close()


def test_a_first_byte_that_never_comes_is_missed(peers: Peers) -> None:
    peers.until(3)
    assert peers.lost == ["no message for 3 s"]


def test_beats_may_come_before_the_hello(peers: Peers) -> None:
    for end_s in range(2, 602, 2):
        peers.raw.sendall(wire.BEAT)
        peers.until(end_s)
    peers.raw.sendall(encode(wire.make_hello()))
    peers.until(603)
    assert not peers.lost


def test_a_pause_of_the_whole_machine_is_no_silence(peers: Peers) -> None:
    peers.raw.sendall(encode(wire.make_hello()))
    peers.loop.run_once(0.0)
    peers.now_s += 60
    for _ in range(3):
        peers.loop.run_once(0.0)
    assert not peers.lost
    peers.until(62)
    assert not peers.lost
    peers.until(63)
    assert peers.lost == ["no message for 63 s"]


def test_last_messages_of_a_closed_line_arrive() -> None:
    loop, heard, lost = Loop(), list[str](), list[str]()
    (our_read, their_write), (their_read, our_write) = os.pipe(), os.pipe()
    os.write(their_write, encode(wire.make_hello()) + encode({"type": "over"}))
    os.close(their_read)
    line: MessageLine[Any] = MessageLine(
        loop, Line(our_read, our_write), lost_after_s=5, on_lost=lost.append,
        on_message=lambda m: heard.append(m["type"]),
    )  # fmt: skip
    line._write()  # finds nobody there, before anything was read
    loop.run(lambda: len(heard) == 2)
    os.close(their_write)
    loop.run(lambda: bool(lost))
    assert heard == ["hello", "over"] and "closed" in lost[0]
    loop.close()


def test_output_before_hello_is_refused(peers: Peers) -> None:
    peers.raw.sendall(encode(Output(0, 0, b"x")))
    peers.loop.run(lambda: bool(peers.lost))
    assert "hello" in peers.lost[0]


@pytest.mark.parametrize("wrong", [*wire.NONSENSE, KeyError, IndexError, ZeroDivisionError])
def test_message_that_can_not_be_right_ends_the_line(peers: Peers, wrong: type[Exception]) -> None:
    def hear(message: Any) -> None:
        if message["type"] == "x":
            raise wrong

    peers.line._on_message = hear
    peers.raw.sendall(encode(wire.make_hello()) + encode({"type": "x"}))
    peers.loop.run(lambda: bool(peers.lost))
    assert f"'x' can't be right: {wrong.__name__}" in peers.lost[0] and not peers.line.open


def test_control_goes_before_bulk_and_bulk_is_bounded(peers: Peers) -> None:
    taken = 0
    while peers.line.send_output(Output(0, taken, b"x" * 60_000)):
        taken += 1
    assert taken * 60_000 < 4 * wire.MAX_BULK_BYTES  # what the socket holds, and the queue
    peers.line.send({"type": "exited"}, in_order=True)
    peers.line.send({"type": "urgent"})
    decoder, kinds = Decoder(), list[str]()
    while "exited" not in kinds:
        peers.loop.run_once(0.05)
        try:
            data = os.read(peers.raw.fileno(), 1 << 20)
        except BlockingIOError:
            continue
        kinds += [item["type"] if isinstance(item, dict) else "output" for item in decoder.feed(data)]
    assert kinds[0] == "hello"
    assert kinds.index("urgent") < len(kinds) - 2  # it overtook what was queued before it
    assert kinds[-1] == "exited" and kinds.count("output") == taken
    assert peers.line.is_idle


def test_peer_that_asks_and_never_reads_is_lost(peers: Peers) -> None:
    """The answers to it take a bounded part of memory."""
    answer = {"type": "x", "text": "x" * 1_000_000}
    sent = 0
    while peers.line.open and sent < 1000:
        peers.line.send(answer)
        sent += 1
        peers.until(int(peers.now_s) + 1) if peers.line._deaf else peers.loop.run_once(0.0)
    assert sent * 1_000_000 < 6 * wire.MAX_CONTROL_BYTES
    assert peers.lost == ["it does not read what is sent to it"]


@pytest.mark.parametrize(
    ("data", "most"), [(b"\n" * 20_000, wire.MAX_BULK_BYTES // 2), (b"x", 2 * wire.MAX_BULK_LINES)]
)
def test_output_is_bounded_by_lines_and_pieces(peers: Peers, data: bytes, most: int) -> None:
    taken = 0
    while peers.line.send_output(Output(0, taken, data)):
        taken += len(data)
    assert wire.MAX_BULK_LINES < taken < most  # what the socket holds, and the queue
