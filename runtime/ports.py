"""Listening ports of a pserver: binding them, the addresses of network interfaces, who holds a busy one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

_SIOCGIFADDR = 0x8915
BACKLOG = 128


class PortError(OSError):
    """A port or interface that can't be had; the text says which and who has it."""


def interface_address(name: str) -> str:
    """The IPv4 address of a network interface. Raises PortError."""
    request = struct.pack("256s", name.encode()[:15])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            return socket.inet_ntoa(fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, request)[20:24])
    except OSError as e:
        names = ", ".join(n for _, n in socket.if_nameindex())
        raise PortError(f"--nics: no address of interface {name!r} ({e.strerror}); there are: {names}") from e


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises PortError, naming the holder of a busy port."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as e:
        text = f"port {port} at {host} can't be listened on: {e.strerror or e}"
        if e.errno == errno.EADDRINUSE:
            text = f"port {port} at {host} is busy{_held_by(port)}; choose another one with --port"
        raise PortError(text) from e


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


def adopt(descriptors: Sequence[int]) -> list[socket.socket]:
    """Sockets that were bound for this process and handed to it. Raises PortError."""
    adopted = []
    for fd in descriptors:
        try:
            sock = socket.socket(fileno=fd)
            sock.listen(BACKLOG)  # again is allowed
            os.set_inheritable(fd, False)
        except OSError as e:
            raise PortError(f"descriptor {fd} is no listening socket: {e.strerror}") from e
        adopted.append(sock)
    return adopted


def _held_by(port: int) -> str:
    """ " by process 17 (name)", or "" where /proc doesn't tell."""
    inodes = set(_listening_inodes(port))
    for pid, fd in _descriptors():
        with contextlib.suppress(OSError):
            target = str(fd.readlink())
            if target.startswith("socket:[") and target[8:-1] in inodes:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                command = b" ".join(words).decode("utf-8", "replace").strip()
                return f": process {pid} ({command[:80]}) listens there"
    return ""


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == "0A" and int(words[1].rpartition(":")[2], 16) == port:
                    yield words[9]


def _descriptors() -> Iterator[tuple[str, Path]]:
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                for fd in (process / "fd").iterdir():
                    yield process.name, fd
