"""Ports: all of a proposal or none, and who holds a busy one."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from pslaunch.node.agent.inspect import try_port
from pslaunch.node.ports import PORT_MARKS, BusyPort, close_all, hold_all
from pslaunch.runtime.pserver import ports
from pslaunch.runtime.shared.busyport import find_holder
from support.process import started


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def hold_for_now(addr: str, *ports: int) -> None:
    close_all(*hold_all(addr, {"pserver/0": ports}).values())


@pytest.mark.parametrize("addr", ["127.0.0.1", "::1"])
def test_all_listen_and_are_given_back(addr: str) -> None:
    wanted = {"pserver/0": [free_port()], "gloo": [free_port()]}
    held = hold_all(addr, wanted)
    for key, numbers in wanted.items():
        assert [s.getsockname()[1] for s in held[key]] == numbers
        socket.create_connection((addr, numbers[0])).close()
    close_all(*held.values())
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((addr, wanted["gloo"][0]))
    assert find_holder(addr, wanted["gloo"][0]) == ""


def test_one_busy_port_refuses_the_whole_proposal_and_its_holder_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        busy, free = other.getsockname()[1], free_port()
        with pytest.raises(BusyPort) as e:
            hold_all("127.0.0.1", {"pserver/0": [free], "pserver/1": [busy]})
        assert (e.value.key, e.value.port, e.value.busy) == ("pserver/1", busy, True)
        assert "Address already in use" in str(e.value)
        assert f"pid {os.getpid()} " in find_holder("127.0.0.1", busy)
        hold_for_now("127.0.0.1", free)  # nothing was kept


def test_a_marked_port_is_refused_to_others_until_the_mark_is_gone() -> None:
    first, second = free_port(), free_port()
    held = hold_all("127.0.0.1", {"pserver/0": [first]})
    close_all(held["pserver/0"])
    with pytest.raises(BusyPort) as e:
        hold_all("127.0.0.1", {"trainer/0": [second], "trainer/1": [first]})
    assert (e.value.key, e.value.port, e.value.busy) == ("trainer/1", first, True)
    assert "another job on this machine" in str(e.value)
    assert f"pid {os.getpid()} " in find_holder("127.0.0.1", first, e.value.mark)  # nobody listens there yet
    assert f"held by pid {os.getpid()} " in try_port("127.0.0.1", first)
    hold_for_now("127.0.0.2", first)  # each address has its own
    close_all(held[PORT_MARKS])
    hold_for_now("127.0.0.1", first, second)  # nothing was kept


def test_an_address_that_is_not_ours_is_no_busy_port() -> None:
    with pytest.raises(BusyPort) as e:
        hold_all("192.0.2.1", {"pserver/0": [free_port()]})
    assert not e.value.busy


def backlog(sock: socket.socket) -> int:
    """Return the backlog of a listening socket: linux/tcp.h, tcpi_sacked."""
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


LISTEN = """
import signal, socket, sys
sock = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
if sys.argv[1] == "::":
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
sock.bind((sys.argv[1], int(sys.argv[2])))
sock.listen()
print("listens", flush=True)
signal.pause()
"""


@pytest.mark.parametrize(
    ("wanted", "held", "elsewhere"),
    [
        ("127.0.0.2", "127.0.0.2", "127.0.0.1"),
        ("127.0.0.2", "127.0.0.2", "::1"),
        ("::1", "::1", "127.0.0.1"),
        ("127.0.0.1", "0.0.0.0", "::1"),
        ("127.0.0.1", "::", ""),
        ("", "127.0.0.3", ""),
    ],
)
def test_holder_listens_at_the_wanted_address(wanted: str, held: str, elsewhere: str) -> None:
    port = free_port()
    listen = [sys.executable, "-c", LISTEN]
    with contextlib.ExitStack() as stack:
        guilty = stack.enter_context(started([*listen, held, str(port)]))
        guilty.expect("listens")
        if elsewhere:
            assert find_holder(elsewhere, port) == ""
            other = stack.enter_context(started([*listen, elsewhere, str(port)]))
            other.expect("listens")
            assert find_holder(elsewhere, port).startswith(f"pid {other.pid} ")
        assert find_holder(wanted, port).startswith(f"pid {guilty.pid} ")


BIND_WITHOUT_RIGHTS = """
import os, sys
from pslaunch.node.ports import BusyPort, hold_all
if os.geteuid() == 0:
    os.setuid(65534)
try:
    hold_all("127.0.0.1", {"pserver/0": [int(sys.argv[1])]})
except BusyPort as e:
    print(e.busy, e)
"""


def test_a_port_that_needs_rights_says_so() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text())
    if not first:
        pytest.skip("here anybody may listen at any port")
    argv = [sys.executable, "-P", "-c", BIND_WITHOUT_RIGHTS, str(first - 1)]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    words = f"127.0.0.1:{first - 1}: Permission denied: only root may listen below port {first} "
    assert said == f"False {words}(net.ipv4.ip_unprivileged_port_start)\n"
