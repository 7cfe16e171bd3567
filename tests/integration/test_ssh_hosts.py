"""Channels to hosts with login shells, Pythons and networks as they are found in the world."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko
import pytest

from pslaunch.backends.fabric.spec import Reach
from pslaunch.backends.fabric.ssh.channel import Channel
from pslaunch.backends.fabric.ssh.fleet import Fleet
from pslaunch.errors import HostError
from pslaunch.options.hosts import Host
from support.clock import own_s
from support.others import NO_BULLSEYE, bullseye_root
from support.process import poll_until
from support.sshd import greets, own_ssh, reaching
from testbed.hosts import Hosts

KEEPER = ["keeper", "20", "1"]
NOISE = "Welcome! This host has rules, and a prompt: 100% `quoted` $HOME"


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Fleet]]:
    """Makes fleets whose ssh knows these hosts."""
    with contextlib.ExitStack() as stack:

        def make(hosts: Hosts, how: Reach | None = None) -> Fleet:
            own_ssh(tmp_path / "bin", hosts.config, monkeypatch)
            return stack.enter_context(contextlib.closing(Fleet(how or reaching(), ask=None)))

        yield make


def refused(channel: Channel | HostError, step: str) -> str:
    """It failed in this step; its words."""
    assert isinstance(channel, HostError), channel
    assert channel.step == step, channel
    return str(channel)


@pytest.mark.parametrize("shell", ["sh", "bash", "tcsh", "fish"])
def test_a_login_shell_that_talks(hosts: Hosts, fleet: Callable[..., Fleet], shell: str) -> None:
    path = shutil.which(shell)
    if not path:
        pytest.skip(f"no {shell} here; apt-get install {shell}")
    hosts[0].set_login_shell(path)
    hosts[0].print_at_login(NOISE)
    if shell != "sh":  # which has no login file for commands
        assert "has rules" in hosts.ssh("node1", "echo hello").stdout
    (channel,) = fleet(hosts).open([Host("node1")], [KEEPER])
    greets(channel)


def test_a_login_shell_that_lets_nobody_in(hosts: Hosts, fleet: Callable[..., Fleet]) -> None:
    hosts[0].set_login_shell("/usr/sbin/nologin")
    one, two = fleet(hosts).open([Host("node1"), Host("node2")], [KEEPER] * 2)
    assert "This account is currently not available" in refused(one, "start")
    greets(two)


def test_a_login_shell_that_has_ended_before_we_could_speak(
    hosts: Hosts, fleet: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    sendall = paramiko.Channel.sendall

    def late(session: paramiko.Channel, data: bytes) -> None:
        poll_until(lambda: session.closed, describe="the session is still open")
        sendall(session, data)

    monkeypatch.setattr(paramiko.Channel, "sendall", late)
    hosts[0].set_login_shell("/usr/sbin/nologin")
    (one,) = fleet(hosts).open([Host("node1")], [KEEPER])
    assert "This account is currently not available" in refused(one, "start")


def test_host_without_python_is_reported(hosts: Hosts, fleet: Callable[..., Fleet]) -> None:
    hosts[0].remove_python()
    (channel,) = fleet(hosts).open([Host("node1")], [KEEPER])
    words = refused(channel, "python")
    assert "no Python 3.9 or later" in words
    assert "--agent_python" in words


@pytest.mark.may_skip(NO_BULLSEYE)
def test_python_39_is_enough(hosts: Hosts, fleet: Callable[..., Fleet]) -> None:
    hosts[0].install_old_python(bullseye_root())
    assert hosts.ssh("node1", "python3", "-V").stdout.startswith("Python 3.9.")
    (channel,) = fleet(hosts).open([Host("node1")], [KEEPER])
    greets(channel)


def test_a_python_that_is_given(hosts: Hosts, fleet: Callable[..., Fleet]) -> None:
    one = fleet(hosts, reaching(agent_python="/usr/bin/python3"))
    (channel,) = one.open([Host("node1")], [KEEPER])
    greets(channel)
    other = fleet(hosts, reaching(agent_python="/opt/none/python3"))
    (channel,) = other.open([Host("node1")], [KEEPER])
    assert "/opt/none/python3" in refused(channel, "python")


def test_changed_host_key_is_refused(hosts: Hosts, fleet: Callable[..., Fleet]) -> None:
    hosts[0].change_key()
    (channel,) = fleet(hosts).open([Host("node1")], [KEEPER])
    assert f"{hosts.known_hosts}:1 has another" in refused(channel, "host key")


def test_a_silent_network_has_a_limit_and_holds_up_nobody(hosts: Hosts, fleet: Callable[..., Fleet]) -> None:
    hosts[1].cut_link()
    start_s = own_s()
    one, two, three = fleet(hosts, reaching(connect_timeout_s=2.0)).open(
        [Host("node1"), Host("node2"), Host("node3")], [KEEPER] * 3
    )
    assert own_s() - start_s < 8
    greets(one)
    greets(three)
    assert "port 22: no answer within 2 s" in refused(two, "connect")


def test_a_host_by_its_ipv6_address(hosts: Hosts, fleet: Callable[..., Fleet]) -> None:
    (channel,) = fleet(hosts).open([Host(hosts[0].address6)], [KEEPER])
    greets(channel)


def test_hosts_behind_a_bastion(make_hosts: Callable[..., Hosts], fleet: Callable[..., Fleet]) -> None:
    """It is the only way in, and is knocked at once."""
    hosts = make_hosts(4, bastion=True)
    channels = fleet(hosts).open([Host(host.name) for host in hosts], [KEEPER] * 4)
    for channel in channels:
        greets(channel)
    assert hosts.bastion.log().count("Accepted publickey") == 1


def test_a_bastion_that_loses_its_power(
    make_hosts: Callable[..., Hosts], fleet: Callable[..., Fleet]
) -> None:
    """Nobody hears of it: the wire's heartbeat is what notices."""
    hosts = make_hosts(2, bastion=True)
    one = fleet(hosts, reaching(connect_timeout_s=2.0))
    (first,) = one.open([Host("node1")], [KEEPER])
    assert isinstance(first, Channel)
    hosts.bastion.crash()
    (second,) = one.open([Host("node2")], [KEEPER])
    assert refused(second, "connect")
    os.close(first.read_fd)
    os.close(first.write_fd)
