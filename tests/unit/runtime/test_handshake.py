"""The handshake: who proves what, what is compared, and bytes that come in any pieces or are not ours."""

from __future__ import annotations

import dataclasses
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslaunch.runtime.client.handshake import (
    OBSERVER,
    PLANE,
    Hello,
    compare,
    find_foreign,
    greet,
    is_silent,
    make_side,
    read_hello,
)
from pslaunch.runtime.shared.prove import (
    ADDRESSES,
    HEAD,
    IN_FULL,
    SUM_UP_S,
    MessageKind,
    ProofError,
    Refusals,
    Server,
    encode_message,
)

pytestmark = pytest.mark.asan

HELLO = Hello(
    trainer_id=1,
    num_gradient_servers=2,
    ports_num=1,
    ports_num_for_sparse=0,
    incarnation=2**64 - 1,
    epoch=0,
    pserver=0,
    pservers=1,
    shard=0,
)


def accept_all(hello: Hello) -> str:
    return ""


def talk(side: Server, secret: bytes, hello: Hello = HELLO) -> None:
    """Both sides over a socket pair; raises what the client's raises."""
    ours, theirs = socket.socketpair()

    def serve() -> None:
        while data := theirs.recv(4096):
            theirs.sendall(side.feed(data))
            if side.proved or side.failure:
                return

    with ours, theirs:
        ours.settimeout(10)
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            greet(ours, secret, hello)
        finally:
            ours.shutdown(socket.SHUT_WR)
            thread.join()


def prove(side: Server, text: bytes, secret: bytes = b"s") -> bytes:
    """Say a text with its proof, after a knock by somebody who knows the secret `s`; return the proof."""
    challenge = side.feed(PLANE.knock(b"s", b"n" * 32))[HEAD.size :]
    mac = PLANE.compute_mac(secret, b"trainer", b"n" * 32 + challenge[:32], text)
    side.feed(proof := encode_message(MessageKind.PROOF, mac + text))
    return proof


@pytest.mark.parametrize(("theirs", "ours"), [(b"a", b"b"), (b"", b"b"), (b"a", b"")])
def test_other_secrets_are_refused_by_both(theirs: bytes, ours: bytes) -> None:
    side = make_side(theirs, accept_all)
    with pytest.raises(ProofError, match="secret"):
        talk(side, ours)
    assert not side.proved


def test_a_trainer_without_the_secret_is_refused_by_the_server() -> None:
    side = make_side(b"secret", accept_all)
    side.feed(PLANE.knock(b"secret", b"n" * 32))  # as a trainer has said it on another connection
    answer = side.feed(encode_message(MessageKind.PROOF, b"m" * 32 + HELLO.encode()))
    assert HEAD.unpack_from(answer)[2] == MessageKind.REFUSED
    assert "secret" in side.failure


@pytest.mark.parametrize("first", [b"n" * 32, b"n" * 64])
def test_first_words_without_the_secret_are_refused_at_once(first: bytes) -> None:
    side = make_side(b"secret", accept_all)
    side.feed(encode_message(MessageKind.NONCE, first))
    assert side.failure and not side.nonces


def test_a_proof_of_another_conversation_is_refused() -> None:
    first, second = make_side(b"s", accept_all), make_side(b"s", accept_all)
    second.feed(PLANE.knock(b"s", b"n" * 32))
    second.feed(prove(first, HELLO.encode()))
    assert not second.proved
    assert read_hello(first.text) == HELLO


@given(st.lists(st.integers(1, 50)))
def test_pieces_of_any_size_say_the_same(sizes: list[int]) -> None:
    side = make_side(b"", accept_all)
    nonce = PLANE.knock(b"", b"n" * 32)
    answer, at = b"", 0
    for size in [*sizes, len(nonce)]:
        answer += side.feed(nonce[at : at + size]) if at < len(nonce) else b""
        at += size
    assert HEAD.unpack_from(answer)[2] == MessageKind.CHALLENGE


@given(st.binary(max_size=300))
def test_other_bytes_are_refused_or_wait(data: bytes) -> None:
    side = make_side(b"", accept_all)
    side.feed(data)
    assert not side.proved


@given(st.integers(0, 8 * (HEAD.size + 64) - 1))
def test_a_flipped_bit_never_gets_in(bit: int) -> None:
    raw = bytearray(PLANE.knock(b"", b"n" * 32))
    raw[bit // 8] ^= 1 << bit % 8
    side = make_side(b"", accept_all)
    side.feed(bytes(raw))
    assert not side.proved


@pytest.mark.parametrize(
    ("begin", "name"), [(b"PRI * HTTP/2.0\r\n\r\nSM", "gRPC"), (b"PRPC\0\0\0\0", "brpc"), (b"GET / HT", "")]
)
def test_foreign_protocols_are_known(begin: bytes, name: str) -> None:
    side = make_side(b"", accept_all)
    side.feed(begin)
    assert find_foreign(side.buffer) == name
    assert side.failure


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b"7", b"[" * 4000, HELLO.encode().replace(b": 1", b': "1"'), b"\xff"]
)
def test_a_hello_that_is_none_is_refused(text: bytes) -> None:
    side = make_side(b"s", accept_all)
    prove(side, text)
    assert not side.proved
    assert side.failure


def test_an_observer_is_compared_with_nobody_but_proves_the_secret() -> None:
    for secret, proved in ((b"s", True), (b"t", False)):
        side = make_side(b"s", lambda _: "no trainer")
        prove(side, OBSERVER, secret)
        assert (side.proved, bool(side.failure)) == (proved, not proved)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            "num_gradient_servers",
            3,
            "num_gradient_servers is 2 at trainer 1 and 3 at the pserver h:1 (option",
        ),
        ("ports_num_for_sparse", 1, "ports_num_for_sparse is 0 at trainer 1 and 1 at the pserver h:1"),
        ("epoch", 4, "epoch"),
        ("shard", 1, "number"),
    ],
)
def test_both_values_are_named(name: str, value: int, said: str) -> None:
    assert said in compare(HELLO, dataclasses.replace(HELLO, **{name: value}), "h:1")


@pytest.mark.parametrize("listing", ["of another trainer", "by which it has loaded values"])
def test_owner_of_the_other_list_of_pservers_is_named(listing: str) -> None:
    other = dataclasses.replace(HELLO, pserver=1, pservers=2)
    assert f"number 1 of 2 in those {listing} (" in compare(HELLO, other, "h:1", listing)


def test_an_id_beyond_the_trainers_is_named() -> None:
    assert "num_gradient_servers" in compare(dataclasses.replace(HELLO, trainer_id=2), HELLO, "h:1")
    assert compare(HELLO, HELLO, "h:1") == ""


def test_of_a_flood_of_refusals_the_first_are_said_and_the_others_counted() -> None:
    refusals = Refusals()
    assert [refusals.admit("a", 0.0) for _ in range(IN_FULL + 3)] == [True] * IN_FULL + [False] * 3
    assert refusals.admit("b", 1.0)
    assert refusals.collect_sums(SUM_UP_S - 0.1) == []
    assert refusals.collect_sums(SUM_UP_S) == ["... and 3 more from a in the last minute"]
    assert refusals.collect_sums(2 * SUM_UP_S) == []
    assert refusals.admit("a", 2 * SUM_UP_S)


def test_a_flood_from_ever_new_addresses_is_counted_as_one() -> None:
    refusals = Refusals()
    said = sum(refusals.admit(f"10.0.{i // 250}.{i % 250}", 0.0) for i in range(10_000))
    assert said == ADDRESSES + IN_FULL
    more = 10_000 - said
    assert refusals.collect_sums(SUM_UP_S) == [f"... and {more} more from other addresses in the last minute"]


def test_a_pserver_that_is_gone_is_not_silent_one_that_is_stopped_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        address = stopped.getsockname()[:2]
        assert is_silent(address, b"", 0.2)
    assert not is_silent(address, b"", 5.0)
