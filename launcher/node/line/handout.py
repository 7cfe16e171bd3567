"""Content for everybody who asks for it at a gate: no secret, limited in number and time."""

from __future__ import annotations

import socket
from contextlib import suppress

from ..loop import Loop, Timer

MAX_AT_ONCE = 64  # more are refused, and ask again
HANDOUT_LIMIT_S = 60.0


class Handout:
    """Sender of `content` to each connection whose first bytes are `request`."""

    def __init__(self, loop: Loop, request: bytes, content: bytes) -> None:
        self.request = request
        self._loop, self._content = loop, content
        self._open: dict[socket.socket, Timer] = {}

    def give(self, sock: socket.socket) -> None:
        """Take over a connection that has asked."""
        if len(self._open) >= MAX_AT_ONCE:
            sock.close()
            return
        left = memoryview(self._content)

        def go_on() -> None:
            nonlocal left
            try:
                left = left[sock.send(left) :]
            except BlockingIOError:
                return
            except OSError:
                left = left[:0]
            if not left:
                self._end(sock)

        self._open[sock] = self._loop.call_after(HANDOUT_LIMIT_S, lambda: self._end(sock))
        self._loop.watch(sock.fileno(), write=go_on)

    def _end(self, sock: socket.socket) -> None:
        self._open.pop(sock).cancel()
        self._loop.watch(sock.fileno())
        with suppress(OSError):
            sock.shutdown(socket.SHUT_WR)
        sock.close()

    def close(self) -> None:
        """Cut all connections."""
        for sock in list(self._open):
            self._end(sock)
