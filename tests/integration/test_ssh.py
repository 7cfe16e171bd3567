"""Channels to a real sshd: what `ssh host` can do, a Fleet can, and where ssh refuses, so does it."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pslaunch.backends.fabric.spec import FabricReach
from pslaunch.backends.fabric.ssh.channel import BinaryChannel, Channel, ParamikoChannel
from pslaunch.backends.fabric.ssh.connect import Connector
from pslaunch.backends.fabric.ssh.fleet import Fleet
from pslaunch.errors import HostError
from pslaunch.options.hosts import Host
from support.process import poll_until
from support.sshd import (
    KEEPER,
    Client,
    Sshd,
    greets,
    hang_up,
    make_client,
    make_key,
    make_sshd,
    public,
    reaching,
    refused,
)  # fmt: skip


@pytest.fixture
def sshd(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Sshd]:
    """An sshd, with the settings that a test gives as its parameter."""
    yield from make_sshd(tmp_path / "sshd", *getattr(request, "param", ()))


@pytest.fixture
def client(tmp_path: Path, sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> Client:
    return make_client(tmp_path / "user", sshd, monkeypatch)


@pytest.fixture
def fleet() -> Iterator[Callable[..., Fleet]]:
    """Makes fleets and closes them."""
    made: list[Fleet] = []

    def make(reach: FabricReach | None = None, ask: Callable[[str], str] | None = None) -> Fleet:
        made.append(Fleet(reach or reaching(), ask=ask))
        return made[-1]

    yield make
    for one in made:
        one.close()


def hosts(*names: str) -> list[Host]:
    return [Host(name) for name in names]


def test_a_connection_that_was_made_while_all_are_closed_is_closed(
    client: Client, fleet: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, made = fleet(), []
    connect = Connector.connect

    def late(*how: Any) -> Any:
        made.append(connect(*how))
        one.close()
        return made[0]

    monkeypatch.setattr(Connector, "connect", late)
    (failed,) = one.open(hosts("node"), KEEPER)
    assert "being ended" in refused(failed, "connect")
    assert not made[0].client.get_transport()


def test_further_channels_share_the_connection(client: Client, fleet: Callable[..., Fleet]) -> None:
    one = fleet()
    for _ in range(2):
        (channel,) = one.open(hosts("node"), KEEPER)
        greets(channel)
    assert client.sshd.count("Accepted publickey") == 1


def test_hosts_that_fail_do_not_hold_up_the_others(client: Client, fleet: Callable[..., Fleet]) -> None:
    client.configure("Host gone\n  HostName gone.invalid", "Host shut\n  HostName 127.0.0.1\n  Port 1")
    first, gone, shut, last = fleet().open(hosts("a", "gone", "shut", "b"), KEEPER)
    greets(first)
    greets(last)
    assert "gone.invalid" in refused(gone, "resolve")
    assert "127.0.0.1 port 1: Connection refused" in refused(shut, "connect")


def test_user_and_port_of_the_command_line_win(client: Client, fleet: Callable[..., Fleet]) -> None:
    client.configure("Host node\n  Port 1\n  User nobody-here")
    (channel,) = fleet().open([Host("node", os.environ.get("USER", "root"), client.sshd.port)], KEEPER)
    greets(channel)


def test_a_changed_key_refuses_with_file_and_line(client: Client, fleet: Callable[..., Fleet]) -> None:
    other = make_key(client.folder / "other")
    client.know("# a comment", f"{client.sshd.address} {public(other)}")
    (channel,) = fleet().open(hosts("node"), KEEPER)
    words = refused(channel, "host key")
    assert f"{client.known_hosts}:2 has another" in words
    assert client.ssh("node").returncode == 255
    client.known_hosts.rename(known := client.folder / "my known hosts")
    client.known_hosts = known
    client.configure(f'Host node\n  UserKnownHostsFile "{known}"')
    words = refused(fleet().open(hosts("node"), KEEPER)[0], "host key")
    subprocess.run(shlex.split(words[words.index("ssh-keygen -R") :]), check=True, capture_output=True)
    accepts = fleet(reaching(host_key_policy="accept_new"))
    greets(accepts.open(hosts("node"), KEEPER)[0], ParamikoChannel)
    assert client.known_hosts.read_text().endswith(f" {public(client.sshd.host_key)}\n")


def test_settings_unknown_to_paramiko_use_the_ssh_binary(client: Client, fleet: Callable[..., Fleet]) -> None:
    client.configure("Host node\n  ForwardAgent yes")
    (channel,) = fleet().open(hosts("node"), KEEPER)
    greets(channel, BinaryChannel)


def test_a_killed_launcher_ends_the_line(client: Client, tmp_path: Path) -> None:
    """For both kinds of channel; the sshd says when the connection is gone."""
    for name in ("node", "forwarding"):
        client.configure("Host forwarding\n  ForwardAgent yes")
        code = (
            "import os, signal, sys; sys.path[:0] = sys.argv[1].split(':')\n"
            "from pslaunch.options.hosts import Host; from pslaunch.backends.fabric.ssh.fleet import Fleet\n"
            "from support.sshd import reaching\n"
            f"(c,) = Fleet(reaching(), ask=None).open([Host({name!r})], {KEEPER!r})\n"
            "os.read(c.read_fd, 1)\n"
            "os.kill(os.getpid(), signal.SIGKILL)"
        )
        gone = "^Closing connection|^Disconnected from user"
        before = client.sshd.count(gone)
        argv = [sys.executable, "-c", code, str(Path(__file__).parents[1])]
        assert subprocess.run(argv, check=False).returncode == -9
        client.sshd.wait_for(gone, before + 1)


def timed(work: Callable[[], Sequence[Channel | HostError]]) -> tuple[float, Sequence[Channel | HostError]]:
    start_s = time.monotonic()
    found = work()
    return time.monotonic() - start_s, found


def test_a_host_that_says_nothing_has_a_limit(client: Client, fleet: Callable[..., Fleet]) -> None:
    """It takes the connection and is silent: a socket that listens, and nobody behind it."""

    with socket.create_server(("127.0.0.1", 0)) as silent:
        client.configure(f"Host silent\n  Port {silent.getsockname()[1]}")
        one = fleet(reaching(connect_timeout_s=1.0))
        took_s, (channel,) = timed(lambda: one.open(hosts("silent"), KEEPER))
    assert "no answer" in refused(channel, "connect")
    assert took_s < 5


def test_the_end_of_a_job_does_not_wait_for_hosts_that_say_nothing(
    client: Client, fleet: Callable[..., Fleet]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client.configure(f"Host silent\n  Port {silent.getsockname()[1]}")
        one = fleet(reaching(connect_timeout_s=60.0))

        opened = threading.Event()

        def end() -> None:
            with silent.accept()[0]:
                one.close()
                opened.wait(20)

        ending = threading.Thread(target=end)
        ending.start()
        took_s, (channel,) = timed(lambda: one.open(hosts("silent"), KEEPER))
        opened.set()
        ending.join()
    assert isinstance(channel, HostError)
    assert took_s < 5


def test_the_end_of_a_job_does_not_wait_for_a_connection(client: Client, fleet: Callable[..., Fleet]) -> None:
    """The host takes no more connections: its queue of them is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as at_end:
        for _ in range(3):
            other = at_end.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(full.getsockname())
        client.configure(f"Host full\n  Port {full.getsockname()[1]}")
        one = fleet(reaching(connect_timeout_s=60.0))

        def end() -> None:
            poll_until(lambda: one._shared and [*one._shared._opening], describe="it does not connect")
            one.close()

        ending = threading.Thread(target=end)
        ending.start()
        took_s, (channel,) = timed(lambda: one.open(hosts("full"), KEEPER))
        ending.join()
    assert isinstance(channel, HostError)
    assert took_s < 5


def test_a_connection_that_was_cut_is_made_anew(client: Client, fleet: Callable[..., Fleet]) -> None:
    one = fleet()
    (channel,) = one.open(hosts("node"), KEEPER)
    assert isinstance(channel, Channel)
    for pid in client.sshd.connections():
        os.kill(pid, signal.SIGKILL)
    assert channel.wait(10) is None
    assert channel.describe_end() == "the SSH connection was cut"
    hang_up(channel)
    (again,) = one.open(hosts("node"), KEEPER)
    greets(again)


def test_bulk_goes_both_ways_unchanged(client: Client, fleet: Callable[..., Fleet], tmp_path: Path) -> None:
    """Through a Python that echoes; more than any buffer on the way holds."""
    echo = tmp_path / "python"
    # Speaks as the boot expects, then gives back what it gets.
    echo.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path}/echo.py "$@"\n')
    echo.chmod(0o755)
    (tmp_path / "echo.py").write_text(ECHO)
    client.configure("Host binary\n  ForwardAgent yes")
    data = os.urandom(5_000_000)
    for channel in fleet(reaching(agent_python=str(echo))).open(hosts("node", "binary"), ["x"]):
        assert isinstance(channel, Channel), channel
        got = bytearray()

        def read(fd: int = channel.read_fd, into: bytearray = got) -> None:
            while piece := os.read(fd, 65536):
                into += piece

        reader = threading.Thread(target=read)
        reader.start()
        with os.fdopen(channel.write_fd, "wb") as f:
            f.write(data)
        reader.join()
        os.close(channel.read_fd)
        assert got == data
        assert channel.wait(10) == 0


ECHO = """
import ast, os, re, sys
if "version_info" in sys.argv[4]:
    print("3.9.0")
    sys.exit(0)
def take(n):
    data = b""
    while len(data) < n:
        data += os.read(0, n - len(data))
    return data
program = ast.literal_eval(sys.argv[4].removeprefix("exec"))
size, marker = re.search(r"boot\\(.*, (\\d+), '\\w+', b'(\\w+)'\\)", program).groups()
take(int(size))
os.write(1, (marker[16:] + marker[:16]).encode())
while data := os.read(0, 65536):
    while data:
        data = data[os.write(1, data):]
"""


@pytest.mark.parametrize("sshd", [("MaxStartups 4:60:10",)], indirect=True)
@pytest.mark.usefixtures("client")
def test_a_busy_sshd_lets_all_in_at_last(fleet: Callable[..., Fleet]) -> None:
    """Forty hosts behind one door that turns most away when more than four knock at once."""
    names = [f"h{n}" for n in range(40)]
    for channel in fleet(reaching(connect_timeout_s=30.0)).open(hosts(*names), KEEPER):
        greets(channel)


@pytest.mark.parametrize("sshd", [("ForceCommand yes login files say this >&2",)], indirect=True)
@pytest.mark.usefixtures("client")
def test_a_host_that_never_stops_talking_on_stderr_has_a_limit(fleet: Callable[..., Fleet]) -> None:
    one = fleet(reaching(connect_timeout_s=1.0))
    took_s, (channel,) = timed(lambda: one.open(hosts("node"), KEEPER))
    assert "login files say this" in refused(channel, "start")
    assert took_s < 6
