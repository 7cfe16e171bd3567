"""Takes connections from a listener, one at a time, and rests where none can be taken for now."""

from __future__ import annotations

import socket
from typing import Any, Callable

from ..loop import Loop

REST_S = 0.5  # where no descriptors are left; whoever waits in the backlog is served then


class Listening:
    """`take(sock, address)` gets each; `rest_s()`, asked before, says for how long nobody shall be taken."""

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        take: Callable[[socket.socket, Any], None],
        rest_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`listener` does not block, and is closed with us."""
        self._loop, self._listener, self._take, self._rest_s = loop, listener, take, rest_s
        self._open = True
        self.go_on()

    def go_on(self) -> None:
        """There is room again."""
        if self._open:
            self._loop.watch(self._listener.fileno(), read=self._accept)

    def _accept(self) -> None:
        for_s = self._rest_s()
        if for_s <= 0:
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # gone again, or no descriptors are left: it would say so again at once
                for_s = REST_S
            else:
                self._take(sock, address)
                return
        self._loop.watch(self._listener.fileno())
        self._loop.call_after(for_s, self.go_on)

    def close(self) -> None:
        """Take nobody any more. May be called twice."""
        if self._open:
            self._open = False
            self._loop.watch(self._listener.fileno())
            self._listener.close()
