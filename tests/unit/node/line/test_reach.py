"""Choice of a node's address: doors that identify their node, and the first address open to all."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslaunch.node.codes import Refusal
from pslaunch.node.line.reach import (
    ALL_PAIRS,
    Door,
    list_candidates,
    make_word,
    plan_tries,
    sort_out,
    try_all,
)
from pslaunch.node.loop import Loop
from pslaunch.runtime.shared import nics

SECRET = bytes(32)


@pytest.fixture
def door() -> Iterator[Door]:
    """The door of node 1."""
    loop, over = Loop(), threading.Event()
    door = Door(loop, make_word(SECRET, 1))

    def run() -> None:
        while not over.is_set():
            loop.run_once(0.05)

    thread = threading.Thread(target=run)
    thread.start()
    yield door
    over.set()
    thread.join()
    door.close()
    loop.close()


def test_a_door_opens_at_every_address_of_its_node(door: Door) -> None:
    found = [(1, addr, door.port) for addr in ("127.0.0.1", "127.0.0.2", "::1")]
    there = found if "::1" in nics.list_addresses()["lo"] else found[:2]
    assert sorted(try_all(found, SECRET)) == sorted((node, addr) for node, addr, _ in there)


def test_the_port_of_a_door_is_a_program_s_at_once(door: Door) -> None:
    at = [(1, "127.0.0.1", door.port)]
    assert try_all(at, SECRET) == [(1, "127.0.0.1")]
    door.close()
    with socket.socket() as program:  # without SO_REUSEADDR
        program.bind(("127.0.0.1", door.port))


def test_only_a_door_that_says_the_right_word_counts(door: Door) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as closed:
        ports = [server.getsockname()[1] for server in (closed, silent)]
        closed.close()
        others = [(1, "127.0.0.1", port) for port in ports]
        right, wrong = ((node, "127.0.0.1", door.port) for node in (1, 2))
        assert try_all([wrong, *others, right], SECRET, limit_s=0.3) == [right[:2]]
        assert try_all([right], bytes(31) + b"1", limit_s=0.3) == []


def test_silent_addresses_are_skipped_once_the_first_opens(door: Door) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        targets = [(1, "127.0.0.1", door.port), (1, "127.0.0.1", silent.getsockname()[1])]
        begin_s = time.monotonic()
        assert try_all(targets, SECRET, limit_s=60.0) == [targets[0][:2]]
        assert time.monotonic() - begin_s < 30.0


@pytest.mark.parametrize("says", ["10.9.8.1 50000 10.9.8.7 22", "UNKNOWN 65535 UNKNOWN 65535", ""])
def test_address_of_the_incoming_connection_comes_first(says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CONNECTION", says)
    called = ["10.9.8.7"] if "10.9.8.7" in says else []
    assert list_candidates("") == (
        list(dict.fromkeys([*called, *nics.list_outside_addresses()])) or ["127.0.0.1"]
    )


def test_address_of_a_named_interface_is_the_only_one() -> None:
    assert list_candidates("lo") == ["127.0.0.1"]
    with pytest.raises(Refusal, match=r"'eth99' does not exist; known: .*lo 127\.0\.0\.1"):
        list_candidates("eth99")


@given(st.integers(1, 200))
def test_every_node_is_tried_and_never_by_itself(nodes: int) -> None:
    who = plan_tries(nodes)
    assert all(i not in tried for i, tried in who.items())
    assert {k for tried in who.values() for k in tried} == (set(range(nodes)) if nodes > 1 else set())
    if nodes > ALL_PAIRS:
        assert all(len(tried) <= nodes.bit_length() + 1 for tried in who.values())


def test_the_first_address_that_all_could_open_wins() -> None:
    known = [["a0", "b0"], ["a1", "b1"], ["a2", "b2"]]
    opened = {0: [(1, "b1"), (2, "a2"), (2, "b2")], 1: [(0, "b0"), (0, "a0"), (2, "b2")],
              2: [(0, "a0"), (1, "b1"), (1, "a1")]}  # fmt: skip
    assert sort_out(["n0", "n1", "n2"], known, opened) == ({0: "a0", 1: "b1", 2: "b2"}, {})


def test_a_node_that_some_can_not_reach_is_named_with_them() -> None:
    known = [["a0"], ["a1"], ["a2"]]
    opened = {0: [(1, "a1"), (2, "a2")], 1: [(0, "a0")], 2: [(0, "a0"), (1, "a1")]}
    chosen, wrong = sort_out(["n0", "n1", "n2"], known, opened)
    assert chosen == {0: "a0", 1: "a1"} and wrong == {2: "(a2) can't be reached from n1"}
    opened = {0: [(1, "a1"), (2, "a2")], 1: [(0, "x"), (2, "a2")], 2: [(0, "y"), (1, "a1")]}
    _, wrong = sort_out(["n0", "n1", "n2"], [["x", "y"], ["a1"], ["a2"]], opened)
    assert wrong == {0: "(x, y) can't be reached by one address from all the others"}
