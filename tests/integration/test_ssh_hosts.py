"""Channels to hosts with login shells, Pythons and networks as they are found in the world."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pslaunch.backends.fabric.spec import FabricReach
from pslaunch.backends.fabric.ssh.fleet import Fleet
from pslaunch.options.hosts import Host
from support.clock import own_s
from support.sshd import KEEPER, greets, own_ssh, reaching, refused
from testbed.hosts import Hosts


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Fleet]]:
    """Makes fleets whose ssh knows these hosts."""
    with contextlib.ExitStack() as stack:

        def make(hosts: Hosts, how: FabricReach | None = None) -> Fleet:
            own_ssh(tmp_path / "bin", hosts.config, monkeypatch)
            return stack.enter_context(contextlib.closing(Fleet(how or reaching(), ask=None)))

        yield make


def test_a_login_shell_that_lets_nobody_in(hosts: Hosts, fleet: Callable[..., Fleet]) -> None:
    hosts[0].set_login_shell("/usr/sbin/nologin")
    one, two = fleet(hosts).open([Host("node1"), Host("node2")], KEEPER)
    assert "This account is currently not available" in refused(one, "start")
    greets(two)


def test_a_python_that_is_given(hosts: Hosts, fleet: Callable[..., Fleet]) -> None:
    one = fleet(hosts, reaching(agent_python="/usr/bin/python3"))
    (channel,) = one.open([Host("node1")], KEEPER)
    greets(channel)
    other = fleet(hosts, reaching(agent_python="/opt/none/python3"))
    (channel,) = other.open([Host("node1")], KEEPER)
    assert "/opt/none/python3" in refused(channel, "python")


def test_a_silent_network_has_a_limit_and_holds_up_nobody(hosts: Hosts, fleet: Callable[..., Fleet]) -> None:
    hosts[1].cut_link()
    start_s = own_s()
    one, two, three = fleet(hosts, reaching(connect_timeout_s=2.0)).open(
        [Host("node1"), Host("node2"), Host("node3")], KEEPER
    )
    assert own_s() - start_s < 8
    greets(one)
    greets(three)
    assert "port 22: no answer within 2 s" in refused(two, "connect")


def test_a_host_by_its_ipv6_address(hosts: Hosts, fleet: Callable[..., Fleet]) -> None:
    (channel,) = fleet(hosts).open([Host(hosts[0].address6)], KEEPER)
    greets(channel)
