"""The gate and sealed lines: the secret is needed to enter, and every change is noticed."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslaunch.node.line import gate, wire
from pslaunch.node.line.gate import MAX_HANDOUTS, Gate
from pslaunch.node.line.wire import Data, Decoder, Line, Seal, WireError, encode_control, encode_head
from pslaunch.node.loop import Loop
from pslaunch.runtime.shared import prove
from support.clock import own_s
from support.lines import open_line
from support.process import poll_until

SECRET = b"of the job"
ASKING = b"the zip, please\n"


def sealed(messages: list[Any], key: bytes = b"k") -> bytes:
    seal = Seal(key)
    return b"".join(frame + seal.compute_mac(frame) for frame in map(encode_control, messages))


MESSAGES: list[Any] = [{"type": "a"}, {"type": "b", "text": "x" * 70_000}, {"type": "c"}]


@given(st.data())
def test_a_sealed_line_takes_any_split_and_no_flipped_bit(data: st.DataObject) -> None:
    stream = sealed(MESSAGES)
    cut = data.draw(st.integers(0, len(stream)))
    decoder = Decoder(Seal(b"k"))
    assert decoder.feed(stream[:cut]) + decoder.feed(stream[cut:]) == MESSAGES
    at = data.draw(st.integers(0, len(stream) * 8 - 1))
    changed = bytearray(stream)
    changed[at // 8] ^= 1 << at % 8
    decoder = Decoder(Seal(b"k"))
    try:
        assert decoder.feed(bytes(changed)) != MESSAGES
        assert len(decoder.feed(b"")) == 0
    except WireError:
        pass


def test_a_repeated_left_out_or_foreign_frame_is_refused() -> None:
    one = sealed(MESSAGES[:1])
    for stream in (
        one + one,
        sealed(MESSAGES[:1], key=b"other"),
        sealed([MESSAGES[0], MESSAGES[2]])[len(one) :],
    ):
        with pytest.raises(WireError, match="changed"):
            Decoder(Seal(b"k")).feed(stream)


def test_mac_of_a_piece_covers_all_but_its_content() -> None:
    piece = Data(7, 1 << 40, os.urandom(1000))
    seal = Seal(b"k")
    head = encode_head(piece)
    head += seal.compute_mac(head)
    control = sealed(MESSAGES[:1])
    assert Decoder(Seal(b"k")).feed(head + piece.data) == [piece]
    for at in range(len(head)):
        changed = bytearray(head + piece.data + control)
        changed[at] ^= 1
        with pytest.raises(WireError):  # or it waits for bytes that the head did not announce
            assert Decoder(Seal(b"k")).feed(bytes(changed) + bytes(wire.MAX_DATA_BYTES)) == []
    changed = bytearray(head + piece.data)
    changed[-1] ^= 1
    (found,) = Decoder(Seal(b"k")).feed(bytes(changed))
    assert isinstance(found, Data) and found[:2] == piece[:2]
    assert found != piece  # as the manifest's hash shows


class Recorded:
    """A caller that proves itself to a server, and what both have said."""

    def __init__(self, secret: bytes = SECRET, plane: prove.Plane = gate.PLANE) -> None:
        self.server = prove.Server(gate.PLANE, SECRET, lambda _text: "")
        ours, theirs = socket.socketpair()
        with ours, theirs, ThreadPoolExecutor(1) as aside:
            dialled = aside.submit(prove.dial, theirs, plane, secret, b"welcome", time.monotonic() + 20)
            self.said = self.answered = b""
            while not (self.server.proved or self.server.failure):
                data = ours.recv(4096)
                self.said += data
                answer = self.server.feed(data)
                self.answered += answer
                ours.sendall(answer)
            self.error = dialled.exception()


def listen_to(said: bytes, *pieces: int) -> prove.Server:
    """Return a new server of the job that has heard this in pieces."""
    server = prove.Server(gate.PLANE, SECRET, lambda _text: "")
    for begin, end in itertools.pairwise((0, *sorted(pieces), len(said))):
        if not server.failure:
            server.feed(said[begin:end])
    return server


HELLO_BYTES = len(gate.PLANE.knock(SECRET, bytes(prove.NONCE_BYTES)))


def test_a_recorded_proof_is_refused_at_every_cut() -> None:
    recorded = Recorded()
    assert recorded.server.proved and not recorded.error
    for cut in range(len(recorded.said)):
        part = listen_to(recorded.said[:cut])
        assert not part.proved and (part.failure == "" or "secret is not" in part.failure)
        whole = listen_to(recorded.said, cut)
        assert not whole.proved and "secret is not" in whole.failure
        mixed = listen_to(recorded.said[:HELLO_BYTES] + recorded.said[cut:])
        assert not mixed.proved


def test_any_changed_byte_of_a_proof_is_refused() -> None:
    """Among them other versions of the handshake, lower ones too."""
    recorded = Recorded()
    for at in range(len(recorded.said)):
        changed = bytearray(recorded.said)
        changed[at] ^= 1 << at % 8
        assert not listen_to(bytes(changed)).proved
    for version in {*range(256)} - {prove.VERSION}:
        older = recorded.said[:4] + bytes([version]) + recorded.said[5:]
        assert "use equal versions" in listen_to(older).failure


def test_an_answer_that_was_recorded_or_changed_is_no_head() -> None:
    """The caller refuses it too: an agent obeys only a head of its job."""
    answered = Recorded().answered
    for at in range(0, len(answered) + 1, 5):
        changed = bytearray(answered)
        if at < len(answered):
            changed[at] ^= 1
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.sendall(changed)
            ours.shutdown(socket.SHUT_WR)
            with pytest.raises((prove.ProofError, ConnectionError)):
                prove.dial(theirs, gate.PLANE, SECRET, b"welcome", time.monotonic() + 20)


OTHER_PLANE = gate.PLANE._replace(label=b"pslaunch data plane")


@pytest.mark.parametrize(
    ("secret", "plane"), [(b"", gate.PLANE), (b"of another job", gate.PLANE), (SECRET, OTHER_PLANE)]
)
def test_caller_with_another_secret_or_purpose_is_refused(secret: bytes, plane: prove.Plane) -> None:
    recorded = Recorded(secret, plane)
    assert not recorded.server.proved and "secret is not" in recorded.server.failure
    assert isinstance(recorded.error, prove.ProofError)


@given(
    st.lists(st.binary(max_size=80) | st.sampled_from([prove.HEAD.pack(b"PSHS", 4, k, 0) for k in range(7)]))
)
def test_anything_else_is_refused_or_waits(said: list[bytes]) -> None:
    server = listen_to(b"".join(said), *itertools.accumulate(map(len, said[:-1])))
    assert not server.proved and len(server.buffer) <= 4096 + prove.HEAD.size


class Guarded:
    """A gate on a loop, with admitted and refused callers."""

    def __init__(self, port: int = 0, handout: bytes = b"") -> None:
        self.loop = Loop()
        self.admitted: list[tuple[bytes, Line]] = []
        self.refused: list[str] = []
        self.gate = Gate(
            self.loop, "127.0.0.1", SECRET, port=port,
            check=lambda text: "" if text == b"welcome" else "not you",
            admit=lambda *found: self.admitted.append(found), note_refusal=self.refused.append,
            handout=(ASKING, handout),
        )  # fmt: skip
        self._aside = ThreadPoolExecutor(1)

    def dial(
        self, secret: bytes = SECRET, text: bytes = b"welcome", *others: str, limit_s: float = 5.0
    ) -> Future[Line]:
        """Dial it in a thread, after other addresses."""
        addrs = [*others, "127.0.0.1"]
        return self._aside.submit(gate.dial, addrs, self.gate.port, secret, text, limit_s)

    def until(self, what: list[str] | list[tuple[bytes, Line]]) -> None:
        self.loop.run(lambda: bool(what))

    def close(self) -> None:
        self._aside.shutdown()
        self.gate.close()
        self.loop.close()


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    with contextlib.closing(Guarded()) as found:
        yield found


def test_a_gate_is_at_the_port_that_is_asked_for_or_else_at_any() -> None:
    with contextlib.closing(Guarded()) as first, contextlib.closing(Guarded(first.gate.port)) as second:
        port = first.gate.port
        assert second.gate.port not in (0, port)
    with contextlib.closing(Guarded(port)) as third:
        assert third.gate.port == port


def test_caller_with_the_secret_gets_a_sealed_line(guarded: Guarded) -> None:
    dialled = guarded.dial()
    guarded.until(guarded.admitted)
    text, ours = guarded.admitted[0]
    assert text == b"welcome"
    heard: list[Any] = []
    lines = [open_line(guarded.loop, one, heard.append) for one in (ours, dialled.result())]
    lines[0].send({"type": "down"})
    lines[1].send({"type": "up"})
    guarded.loop.run(lambda: {"down", "up"} <= {m["type"] for m in heard})
    for one in lines:
        one.close()


@pytest.mark.parametrize(
    ("secret", "text", "why"), [(b"wrong", b"welcome", "secret"), (SECRET, b"me", "not you")]
)
def test_others_are_refused_in_words(guarded: Guarded, secret: bytes, text: bytes, why: str) -> None:
    dialled = guarded.dial(secret, text)
    guarded.until(guarded.refused)
    with pytest.raises(prove.ProofError, match=why):
        dialled.result()
    assert not guarded.admitted


@pytest.mark.parametrize(
    "noise", [bytes(range(100, 200)), b"GET / HTTP/1.1\r\n\r\n", struct.pack("<4sBBH", b"PSHS", 1, 3, 65535)]
)
def test_noise_is_dropped_and_the_gate_goes_on(guarded: Guarded, noise: bytes) -> None:
    with socket.create_connection(("127.0.0.1", guarded.gate.port)) as stranger:
        stranger.sendall(noise)
        guarded.until(guarded.refused)
    test_caller_with_the_secret_gets_a_sealed_line(guarded)


def test_caller_after_a_thousand_silent_ones_is_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prove, "SUM_UP_S", 1.0)
    monkeypatch.setattr(gate, "GATE_TICK_S", 0.1)
    with contextlib.closing(Guarded()) as guarded, contextlib.ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(socket.create_connection(("127.0.0.1", guarded.gate.port)))
        dialled = guarded.dial()
        guarded.until(guarded.admitted)
        for line in (guarded.admitted[0][1], dialled.result()):
            line.close()
        assert "it did not prove the secret, and others wait" in guarded.refused[0]
        guarded.loop.run(lambda: "more from" in guarded.refused[-1])
    assert re.fullmatch(r"\.\.\. and \d+ more from 127\.0\.0\.1 in the last minute", guarded.refused[-1])
    assert sum("more from" not in line for line in guarded.refused) <= 2 * prove.IN_FULL


def test_dripping_caller_is_dropped_at_the_limit() -> None:
    enough = threading.Event()
    answer = prove.encode_message(prove.MessageKind.CHALLENGE, bytes(prove.NONCE_BYTES + prove.MAC_BYTES))

    def drip(listener: socket.socket) -> None:
        with listener.accept()[0] as sock, contextlib.suppress(OSError):
            for byte in answer:
                sock.sendall(bytes([byte]))
                if enough.wait(0.1):
                    return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        began_s = own_s()
        with pytest.raises(TimeoutError):
            gate.dial(["127.0.0.1"], listener.getsockname()[1], SECRET, b"", 0.5)
        assert own_s() - began_s < 3.0  # all of the answer takes 7 s
        enough.set()
        thread.join()


def test_silent_addresses_share_the_limit_and_the_last_one_has_its_turn(guarded: Guarded) -> None:
    port = guarded.gate.port
    with contextlib.ExitStack() as stack:
        silent = [f"127.0.0.{i}" for i in range(2, 5)]
        for addr in silent:
            stack.enter_context(socket.create_server((addr, port)))
        began_s = own_s()
        with pytest.raises(TimeoutError):
            gate.dial(silent, port, SECRET, b"welcome", 0.6)
        assert own_s() - began_s < gate.TRY_S
        dialled = guarded.dial(SECRET, b"welcome", *silent, limit_s=4.0)
        guarded.until(guarded.admitted)
        found = dialled.result()
    for line in (guarded.admitted[0][1], found):
        line.close()


def list_connecting(port: int) -> set[str]:
    """Return the own addresses of connections to a port that no packet has answered yet."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {own for _, own, other, state, *_ in lines if other.endswith(f":{port:04X}") and state == "02"}


def test_lost_packet_of_a_head_that_is_to_come_is_not_waited_for() -> None:
    tried: set[str] = set()
    limit_s = prove.TIMEOUT_S  # of a single try
    with ThreadPoolExecutor(1) as pool:
        with socket.socket() as full, socket.socket() as first:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            port = full.getsockname()[1]
            first.connect(("127.0.0.1", port))  # all later ones get no answer
            dialled = pool.submit(gate.dial, ["127.0.0.1"], port, SECRET, b"welcome", limit_s, to_come=True)

            def is_tried_again() -> bool:
                tried.update(list_connecting(port))
                return len(tried) > 1 or dialled.done()

            poll_until(is_tried_again, describe="no second try")
        assert len(tried) > 1
        with contextlib.closing(Guarded(port)) as guarded:
            guarded.until(guarded.admitted)
        for line in (guarded.admitted[0][1], dialled.result()):
            line.close()


def test_without_an_address_nobody_is_dialled() -> None:
    with pytest.raises(ConnectionError, match="no address"):
        gate.dial([], 1, SECRET, b"", 1.0)


def ask(port: int) -> bytes:
    """Return all that the gate gives to a caller who asks for the handout."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        sock.sendall(ASKING)
        return b"".join(iter(lambda: sock.recv(1 << 16), b""))


def test_everybody_who_asks_gets_the_handout_without_proof() -> None:
    content = os.urandom(4 << 20)  # more than a socket holds
    guarded = Guarded(handout=content)
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(ask, guarded.gate.port) for _ in range(3)]
        guarded.loop.run(lambda: all(one.done() for one in asked) or bool(guarded.refused))
    assert [one.result() for one in asked] == [content] * 3 and not guarded.refused and not guarded.admitted
    guarded.gate.close()


def test_handout_is_given_to_a_limited_number_at_once() -> None:
    guarded = Guarded(handout=os.urandom(4 << 20))
    with contextlib.ExitStack() as at_end, ThreadPoolExecutor(1) as pool:
        callers = [
            at_end.enter_context(socket.create_connection(("127.0.0.1", guarded.gate.port), timeout=10))
            for _ in range(MAX_HANDOUTS + 1)
        ]
        for sock in callers:
            sock.sendall(ASKING)
        closed = pool.submit(callers[-1].recv, 1)
        guarded.loop.run(closed.done)
        assert closed.result() == b"" and callers[0].recv(1)
        guarded.gate.close()
