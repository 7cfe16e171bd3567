"""Ports: all of a proposal or none, and who holds a busy one."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

import pytest

from pslaunch.node.agent.inspect import port_state
from pslaunch.node.ports import BusyPort, bind_all, close_all, mark_all
from pslaunch.runtime.pserver import ports
from pslaunch.runtime.shared.busyport import holder


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_all_listen_and_are_given_back() -> None:
    wanted = {"pserver/0": [free_port()], "gloo": [free_port()]}
    held = bind_all("127.0.0.1", wanted)
    for key, numbers in wanted.items():
        assert [s.getsockname()[1] for s in held[key]] == numbers
        socket.create_connection(("127.0.0.1", numbers[0])).close()
    close_all(held)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", wanted["gloo"][0]))


def test_one_busy_port_refuses_the_whole_proposal_and_its_holder_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        busy, free = other.getsockname()[1], free_port()
        with pytest.raises(BusyPort) as e:
            bind_all("127.0.0.1", {"pserver/0": [free], "pserver/1": [busy]})
        assert (e.value.key, e.value.port, e.value.busy) == ("pserver/1", busy, True)
        assert "Address already in use" in str(e.value)
        assert f"pid {os.getpid()} " in holder(busy)
        close_all(bind_all("127.0.0.1", {"again": [free]}))  # nothing was kept


def test_a_marked_port_is_refused_to_others_until_the_mark_is_gone() -> None:
    first, second = free_port(), free_port()
    marks = mark_all("127.0.0.1", {"pserver/0": [first]})
    with pytest.raises(BusyPort) as e:
        mark_all("127.0.0.1", {"trainer/0": [second], "trainer/1": [first]})
    assert (e.value.key, e.value.port, e.value.busy) == ("trainer/1", first, True)
    assert "another job on this machine" in str(e.value)
    assert f"pid {os.getpid()} " in holder(first, e.value.mark)  # nobody listens there yet
    assert f"held by pid {os.getpid()} " in port_state("127.0.0.1", first)
    close_all({"": mark_all("127.0.0.2", {"pserver/0": [first]})})  # each address has its own
    close_all({"": marks})
    close_all({"": mark_all("127.0.0.1", {"pserver/0": [first], "pserver/1": [second]})})  # nothing was kept


def test_an_address_that_is_not_ours_is_no_busy_port() -> None:
    with pytest.raises(BusyPort) as e:
        bind_all("192.0.2.1", {"pserver/0": [free_port()]})
    assert not e.value.busy


def test_ipv6() -> None:
    held = bind_all("::1", {"pserver/0": [free_port()]})
    assert held["pserver/0"][0].family == socket.AF_INET6
    close_all(held)


def backlog(sock: socket.socket) -> int:
    """Of a listening socket: linux/tcp.h, tcpi_sacked."""
    return int(struct.unpack_from("8B6I", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104))[13])


def test_a_port_keeps_its_backlog_when_it_changes_hands() -> None:
    most = int(Path("/proc/sys/net/core/somaxconn").read_text())
    for given in (1024, 0):  # 0: bound alone
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            if given:
                sock.listen(given)
            (adopted,) = ports.adopt([os.dup(sock.fileno())])
            with adopted:
                assert backlog(adopted) == min(1024, most)


def test_nobody_holds_a_free_port() -> None:
    assert holder(free_port()) == ""
