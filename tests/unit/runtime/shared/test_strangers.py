"""Connections that have not proved themselves: who has to go when more come, and what is said of them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from pslaunch.runtime.shared import prove
from pslaunch.runtime.shared.strangers import CROWD, PATIENCE_S, READ_S, Strangers, find_source

PLANE = prove.Plane(b"of a test", "server", "client")


class Crowd:
    """Strangers over socket pairs, at a time that is set."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.acts: dict[socket.socket, Any] = {}
        self.said: list[tuple[str, str]] = []
        self.ends: list[socket.socket] = []
        self.strangers = Strangers(
            self.acts.__setitem__,
            lambda one, why: self.said.append((one.addr if one else "", why)),
            clock=lambda: self.now_s,
        )

    def come(self, host: str, port: int, first: bytes = b"") -> socket.socket:
        """Let one come with these first bytes; return its end."""
        ours, theirs = socket.socketpair()
        self.ends += ours, theirs
        theirs.sendall(first)
        self.strangers.take(ours, (host, port), prove.Server(PLANE, b"s", lambda _: ""), lambda: None)
        return theirs


KNOCK = PLANE.knock(b"s", b"n" * 32)


@pytest.fixture
def crowd() -> Iterator[Crowd]:
    found = Crowd()
    yield found
    found.strangers.close()
    for end in found.ends:
        end.close()


def test_a_silent_one_goes_at_once_and_one_of_the_job_is_waited_for(crowd: Crowd) -> None:
    crowd.come("10.0.0.1", 1, KNOCK)
    crowd.come("10.0.0.1", 2)
    assert crowd.strangers.drop_one()
    crowd.now_s = PATIENCE_S / 2
    assert not crowd.strangers.drop_one()
    crowd.now_s = PATIENCE_S
    assert crowd.strangers.drop_one()
    assert not crowd.strangers.drop_one()
    assert crowd.said == [("10.0.0.1:2", CROWD), ("10.0.0.1:1", CROWD)]


def test_a_source_with_many_places_leaves_the_only_one_of_another(crowd: Crowd) -> None:
    crowd.come("10.0.0.1", 0)
    for i in range(1, 4):
        crowd.come(f"127.0.0.{i}", i)
    assert crowd.strangers.drop_one() and crowd.strangers.drop_one()
    assert [addr for addr, _ in crowd.said] == ["127.0.0.1:1", "127.0.0.2:2"]


def test_a_refused_one_can_read_why_before_its_connection_is_closed(crowd: Crowd) -> None:
    theirs = crowd.come("10.0.0.1", 1, b"noise of anybody")
    ((addr, why),) = crowd.said
    assert addr == "10.0.0.1:1" and "not pslaunch's protocol" in why
    assert why.encode() in theirs.recv(4096) and theirs.recv(1) == b""
    theirs.sendall(b"more")
    ((ours, act),) = crowd.acts.items()
    act()
    crowd.now_s = READ_S
    crowd.strangers.tick()
    assert crowd.acts == {ours: None} and len(crowd.said) == 1


def test_a_silent_one_goes_at_its_time(crowd: Crowd) -> None:
    crowd.come("10.0.0.1", 1)
    crowd.now_s = prove.TIMEOUT_S
    crowd.strangers.tick()
    assert crowd.said == [("10.0.0.1:1", f"it did not prove the secret within {prove.TIMEOUT_S:g} s")]


@pytest.mark.parametrize(
    "hosts",
    [
        ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"),
        ("10.0.0.1", "::ffff:10.0.0.1"),
        ("fd00::1", "fd00::2:0:0:1%eth0"),
    ],
)
def test_addresses_that_one_stranger_has_are_one_source(hosts: tuple[str, ...]) -> None:
    assert len(set(map(find_source, hosts))) == 1
    assert find_source("10.0.0.2") not in map(find_source, hosts)
