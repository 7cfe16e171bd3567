"""Ports of a node: bind a whole proposal or refuse it, and say who holds a busy one."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Mapping, Sequence

BACKLOG = 1024


class BusyPort(Exception):
    """A port of a proposal can't be had."""

    def __init__(self, key: str, addr: str, port: int, error: OSError) -> None:
        super().__init__(f"{addr}:{port}: {error.strerror}")
        self.key, self.addr, self.port, self.busy = key, addr, port, error.errno == errno.EADDRINUSE


def bind_all(addr: str, wanted: Mapping[str, Sequence[int]]) -> dict[str, list[socket.socket]]:
    """Listening sockets for every port, by the key that it is for; raises BusyPort and keeps none.

    They listen at once: two sockets that only bind one port with SO_REUSEADDR would both succeed.
    """
    family = socket.AF_INET6 if ":" in addr else socket.AF_INET
    held: dict[str, list[socket.socket]] = {}
    try:
        for key, ports in wanted.items():
            held[key] = []
            for port in ports:
                listener = socket.socket(family, socket.SOCK_STREAM)
                held[key].append(listener)
                try:
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    listener.bind((addr, port))
                    listener.listen(BACKLOG)
                except OSError as e:
                    raise BusyPort(key, addr, port, e) from None
    except BusyPort:
        close_all(held)
        raise
    return held


def close_all(held: Mapping[str, Sequence[socket.socket]]) -> None:
    for sockets in held.values():
        for listener in sockets:
            listener.close()


def holder(port: int) -> str:
    """Who listens on a port of this machine, as far as we may see: `pid 12 (redis-server *:7164)`, or ""."""
    inodes = _listening_inodes(port)
    if not inodes:
        return ""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{name}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{name}/fd/{fd}") in inodes:
                        with open(f"/proc/{name}/cmdline", "rb") as f:
                            words = f.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()
                        return f"pid {name} ({words[:100]})"
    return ""


def _listening_inodes(port: int) -> set[str]:
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table, encoding="ascii") as f:
            for line in f:
                words = line.split()
                if len(words) > 9 and words[3] == "0A" and int(words[1].rpartition(":")[2], 16) == port:
                    found.add(f"socket:[{words[9]}]")
    return found
