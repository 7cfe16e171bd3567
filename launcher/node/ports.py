"""Ports of a node: bind a whole proposal or refuse it; keep other jobs off while a program starts.

A program in script mode binds its port itself, seconds after the agent has closed it. Until then a mark
claims the port: a name in the kernel that one process of a machine can have at a time.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping, Sequence

from pslaunch.runtime.shared import busyport

BACKLOG = 1024


class BusyPort(Exception):
    """A port of a proposal that can't be bound."""

    def __init__(self, key: str, addr: str, port: int, error: OSError, mark: str = "") -> None:
        super().__init__(f"{addr}:{port}: {busyport.explain(error, port)}")
        self.mark = mark  # of another job, perhaps not listening yet
        self.key, self.addr, self.port, self.busy = key, addr, port, error.errno == errno.EADDRINUSE


def bind_all(addr: str, wanted: Mapping[str, Sequence[int]]) -> dict[str, list[socket.socket]]:
    """Return listening sockets for all ports by key, or raise BusyPort and keep none.

    They listen at once: two sockets that only bind the same port with SO_REUSEADDR would both succeed.
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


def mark_all(addr: str, wanted: Mapping[str, Sequence[int]]) -> list[socket.socket]:
    """Claim all ports against agents of other jobs, until the marks are closed or their process ends.

    Raises BusyPort and claims none. A mark is an abstract Unix socket, which leaves no file behind.
    """
    marks: list[socket.socket] = []
    for key, ports in wanted.items():
        for port in ports:
            name = f"pslaunch-port-{addr}-{port}"
            mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            marks.append(mark)
            try:
                mark.bind(f"\0{name}")
            except OSError as e:
                close_all({key: marks})
                text = "claimed by another job on this machine"
                raise BusyPort(key, addr, port, OSError(e.errno, text), name) from None
    return marks


def close_all(held: Mapping[str, Sequence[socket.socket]]) -> None:
    for sockets in held.values():
        for listener in sockets:
            listener.close()
