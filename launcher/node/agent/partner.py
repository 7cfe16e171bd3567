"""The other one of keeper and agent: heartbeats both ways over a socket pair, and what is handed over."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from typing import Callable

from .. import procs
from ..loop import Loop, Silence


class Partner:
    """`lose` gets the seconds of its silence, every second, or 0.0 at its end; `take` what it hands over."""

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        lost_after_s: float,
        lose: Callable[[float], None],
        take: Callable[[bytes, list[int]], None] = lambda _data, _fds: None,
    ) -> None:
        self._loop, self._sock, self.lost_after_s = loop, sock, lost_after_s
        self._lose, self._take = lose, take
        self._silence = Silence(loop.now())
        sock.setblocking(False)
        loop.watch(sock.fileno(), read=self._hear)
        loop.call_every(procs.BEAT_S, self._beat)

    def hand_over(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Send data, which may come after heartbeats, and descriptors; from any thread."""
        with contextlib.suppress(OSError):  # it was killed, which `_hear` reports
            socket.send_fds(self._sock, [data], fds)

    def _hear(self) -> None:
        try:
            data, fds = socket.recv_fds(self._sock, 8192, 4)[:2]
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        if data:
            self._silence.hear(self._loop.now())
            self._take(data, fds)
        else:
            self._loop.watch(self._sock.fileno())
            self._lose(0.0)

    def _beat(self) -> None:
        self.hand_over(b".")
        if (silent_s := self._silence.measure(self._loop.now())) >= self.lost_after_s:
            self._lose(silent_s)
