"""The proxy that cuts connections, while connections come and go."""

from __future__ import annotations

import contextlib
import select
import socket

from support.proxy import cutting
from support.pservers import HOST

LIMIT_S = 60.0
FULL_S = 0.5  # without room: then nobody reads
FLOOD = b"x" * (1 << 20)


def test_connection_takes_the_place_of_one_that_was_closed_just_now() -> None:
    with contextlib.ExitStack() as stack:
        target = stack.enter_context(socket.create_server((HOST, 0)))
        (proxy,) = stack.enter_context(cutting([target.getsockname()], []))

        def limit(sock: socket.socket) -> socket.socket:
            sock.settimeout(LIMIT_S)
            return stack.enter_context(sock)

        def connect() -> socket.socket:
            return limit(socket.create_connection(proxy.endpoint))

        def accept() -> socket.socket:
            return limit(target.accept()[0])

        closed, reset = connect(), accept()
        busy, slow = connect(), accept()
        fill(busy)  # the proxy waits for `slow`, and finds all of the following at once
        closed.close()
        new = connect()
        reset.sendall(b"too late")
        slow.settimeout(FULL_S)
        with contextlib.suppress(TimeoutError):
            while slow.recv(1 << 20):
                pass
        new_there = accept()
        new.sendall(b"passes")
        assert new_there.recv(100) == b"passes"


def fill(sock: socket.socket) -> None:
    """Send until nothing more is taken."""
    while select.select((), [sock], (), FULL_S)[1]:
        sock.send(FLOOD, socket.MSG_DONTWAIT)
