"""A real sshd on loopback, and an `ssh` whose configuration is the test's."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pslaunch.backends.fabric.spec import FabricReach
from pslaunch.backends.fabric.ssh.channel import Channel
from pslaunch.errors import HostError
from pslaunch.node import procs
from support.leaks import MARK

SSHD = "/usr/sbin/sshd"
KEEPER = ["keeper", "20", "1"]
needs_openssh = pytest.mark.skipif(
    shutil.which("ssh") is None, reason="no ssh here; apt-get install openssh-client"
)


def reaching(**how: Any) -> FabricReach:
    """Return a `FabricReach` without hosts: these are given to `Fleet.open`."""
    return FabricReach(hosts=(), **how)


def make_key(path: Path, *options: str, kind: str = "ed25519", passphrase: str = "") -> Path:
    """A key pair without a passphrase."""
    argv = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", str(path), *options]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    return path


def public(path: Path) -> str:
    """Type and key of a public key, as one word list."""
    return " ".join(Path(f"{path}.pub").read_text().split()[:2])


def greets(channel: Channel | HostError, kind: type[Channel] = Channel) -> None:
    """It leads to an agent, which ends when the line does."""
    if isinstance(channel, HostError):
        raise channel
    assert isinstance(channel, kind)
    assert b'"type":"hello"' in os.read(channel.read_fd, 4096)
    hang_up(channel)
    assert channel.wait(10) == 75
    assert "the head is gone" in channel.describe_end()


def refused(channel: Channel | HostError, step: str) -> str:
    """It failed in this step; its words."""
    assert isinstance(channel, HostError), channel
    assert channel.step == step, channel
    return str(channel)


def hang_up(channel: Channel) -> None:
    os.close(channel.read_fd)
    os.close(channel.write_fd)


@dataclass
class Sshd:
    """One sshd in the foreground; `log` has what it said."""

    folder: Path
    port: int
    host_key: Path
    log: list[str] = field(default_factory=list)
    said: threading.Condition = field(default_factory=threading.Condition)
    process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        return f"[127.0.0.1]:{self.port}"

    @property
    def authorized(self) -> Path:
        return self.folder / "authorized_keys"

    def start(self, *settings: str) -> None:
        """With further lines of sshd_config; returns when it listens."""
        Path("/run/sshd").mkdir(exist_ok=True)  # as the distribution's service would
        lines = [
            *(f"Port {self.port}", "ListenAddress 127.0.0.1", f"HostKey {self.host_key}", "PidFile none"),
            *(f"AuthorizedKeysFile {self.authorized}", "UsePAM no", "StrictModes no", "LogLevel VERBOSE"),
            # Debian's bash then leaves out the ~/.bashrc of whoever runs the tests, which may take seconds.
            *(f"SetEnv {MARK}={os.environ[MARK]} SHLVL=2", *settings),
        ]
        config = self.folder / "sshd_config"
        config.write_text("\n".join(lines) + "\n")
        argv = [SSHD, "-D", "-e", "-f", str(config)]
        earlier = self.count("Server listening")
        null = subprocess.DEVNULL
        self.process = subprocess.Popen(argv, stdin=null, stdout=null, stderr=subprocess.PIPE, text=True)
        threading.Thread(target=self._listen, args=(self.process,), daemon=True).start()
        self.wait_for("Server listening", times=1 + earlier)

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        with process.stderr:
            for line in process.stderr:
                with self.said:
                    self.log.append(line.rstrip())
                    self.said.notify_all()

    def wait_for(self, words: str, times: int = 1) -> None:
        """Until it has said something, a regular expression, so often."""
        with self.said:
            assert self.said.wait_for(lambda: self.count(words) >= times, 45), (words, self.log)

    def count(self, words: str) -> int:
        return sum(bool(re.search(words, line)) for line in self.log)

    def connections(self) -> list[int]:
        """The sshd of each connection."""
        assert self.process is not None
        return [proc.pid for proc in procs.list_descendants(self.process.pid) if _is_sshd(proc.pid)]

    def grandchildren(self) -> list[int]:
        """Return the ids of the processes that its connections run."""
        assert self.process is not None
        return [proc.pid for proc in procs.list_descendants(self.process.pid) if _is_sshd(proc.pid) is False]

    def stop(self) -> None:
        if self.process:
            self.process.terminate()
            self.process.wait()


def _is_sshd(pid: int) -> bool | None:
    """Return None for a process that has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().startswith("sshd")
    except (FileNotFoundError, ProcessLookupError):
        return None


@dataclass
class Client:
    """A user with keys, known hosts and a configuration, all in one folder."""

    folder: Path
    sshd: Sshd
    key: Path
    known_hosts: Path

    def configure(self, *blocks: str, identity: bool = True) -> None:
        """The configuration: these lines, then what all hosts have; with or without the user's key."""
        general = (
            "Host *",
            f"  HostName 127.0.0.1\n  Port {self.sshd.port}",
            f"  IdentityFile {self.key if identity else 'none'}",
            f"  UserKnownHostsFile {self.known_hosts}\n  GlobalKnownHostsFile none",
        )
        (self.folder / "config").write_text("\n".join([*blocks, *general]) + "\n")

    def know(self, *lines: str) -> None:
        """Write known_hosts; without lines, with the host's true key."""
        self.known_hosts.write_text(
            "".join(f"{line}\n" for line in lines or [f"{self.sshd.address} {public(self.sshd.host_key)}"])
        )

    def ssh(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `ssh host` itself, for comparison."""
        argv = ["ssh", "-T", "-o", "BatchMode=yes", *words, name, "echo works"]
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def make_sshd(folder: Path, *settings: str) -> Iterator[Sshd]:
    """For a fixture: an sshd that is gone afterwards."""
    if not Path(SSHD).exists():
        pytest.skip("no sshd here; apt-get install openssh-server")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    folder.mkdir(parents=True)
    sshd = Sshd(folder, port, make_key(folder / "host_key"))
    sshd.start(*settings)
    try:
        yield sshd
    finally:
        sshd.stop()


def make_client(folder: Path, sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A user whom the sshd lets in, and whose `ssh` is first in PATH."""
    folder.mkdir(parents=True)
    client = Client(folder, sshd, make_key(folder / "id"), folder / "known_hosts")
    own_ssh(folder / "bin", folder / "config", monkeypatch)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    sshd.authorized.write_text(f"{public(client.key)}\n")
    client.configure()
    client.know()
    return client


def own_ssh(folder: Path, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an `ssh` first in PATH whose configuration is this one."""
    folder.mkdir(exist_ok=True)
    ssh = shutil.which("ssh", path=os.environ["PATH"].replace(f"{folder}:", ""))
    (folder / "ssh").write_text(f'#!/bin/sh\nexec {ssh} -F {config} "$@"\n')
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def without_openssh(client: Client, monkeypatch: pytest.MonkeyPatch, programs: Sequence[str] = ()) -> None:
    """A machine without ssh, whose user has this configuration at home."""
    (client.folder / "empty").mkdir()
    for program in programs:
        (client.folder / "empty" / program).symlink_to(str(shutil.which(program)))
    home = client.folder / "home"
    (home / ".ssh").mkdir(parents=True)
    shutil.copy(client.folder / "config", home / ".ssh/config")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", str(client.folder / "empty"))
