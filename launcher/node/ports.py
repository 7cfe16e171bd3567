"""Ports of a node: bind a whole proposal or refuse it; keep other jobs off while a program starts.

A program in script mode binds its port itself, seconds after the agent has closed it. Until then a mark
claims the port: a name in the kernel that one process of a machine can have at a time.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import socket
from collections.abc import Iterable, Mapping, Sequence

from pslaunch.runtime.shared import busyport

BACKLOG = 1024
PORT_MARKS = ""  # key of all marks, beside those of the ports


class BusyPort(Exception):
    """A port of a proposal that can't be bound."""

    def __init__(self, key: str, addr: str, port: int, error: OSError, mark: str = "") -> None:
        super().__init__(f"{addr}:{port}: {busyport.explain(error, port)}")
        self.mark = mark  # of another job, perhaps not listening yet
        self.key, self.addr, self.port, self.busy = key, addr, port, error.errno == errno.EADDRINUSE


def hold_all(addr: str, wanted: Mapping[str, Sequence[int]]) -> dict[str, list[socket.socket]]:
    """Return listening sockets for all ports by key, and their PORT_MARKS, or raise BusyPort and keep none.

    They listen at once: two sockets that only bind the same port with SO_REUSEADDR would both succeed. A mark
    is an abstract Unix socket, which leaves no file behind; it claims its port against agents of other jobs
    until it is closed or its process ends.
    """
    family = socket.AF_INET6 if ":" in addr else socket.AF_INET
    held: dict[str, list[socket.socket]] = {key: [] for key in (*wanted, PORT_MARKS)}
    with contextlib.ExitStack() as stack:
        for key, port in ((key, port) for key, ports in wanted.items() for port in ports):
            held[PORT_MARKS].append(stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)))
            held[key].append(stack.enter_context(socket.socket(family, socket.SOCK_STREAM)))
            name = f"pslaunch-port-{addr}-{port}"
            try:
                held[PORT_MARKS][-1].bind(f"\0{name}")
            except OSError as e:
                taken = OSError(e.errno, "claimed by another job on this machine")
                raise BusyPort(key, addr, port, taken, name) from None
            try:
                held[key][-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                held[key][-1].bind((addr, port))
                held[key][-1].listen(BACKLOG)
            except OSError as e:
                raise BusyPort(key, addr, port, e) from None
        stack.pop_all()
    return held


def close_all(*held: Iterable[socket.socket]) -> None:
    for sock in itertools.chain(*held):
        sock.close()
