"""Connections from a listener, one at a time, with pauses when none can be taken."""

from __future__ import annotations

import socket
from typing import Any, Callable

from ..loop import Loop

REST_S = 0.5  # without free descriptors; the backlog is served afterwards


class Listener:
    """Acceptor: `take(sock, address)` gets each connection, after any pause that `rest_s()` returns."""

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        take: Callable[[socket.socket, Any], None],
        rest_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Take over `listener`, which must not block."""
        self._loop, self._listener, self._take, self._rest_s = loop, listener, take, rest_s
        self._open = True
        self.go_on()

    def go_on(self) -> None:
        if self._open:
            self._loop.watch(self._listener.fileno(), read=self._accept)

    def _accept(self) -> None:
        for_s = self._rest_s()
        if for_s <= 0:
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # gone again, or no free descriptors, which would repeat at once
                for_s = REST_S
            else:
                self._take(sock, address)
                return
        self._loop.watch(self._listener.fileno())
        self._loop.call_after(for_s, self.go_on)

    def close(self) -> None:
        """Accept no more. May be called twice."""
        if self._open:
            self._open = False
            self._loop.watch(self._listener.fileno())
            self._listener.close()
