"""The agent's link to its keeper: heartbeats both ways, and what the keeper holds for it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable

from .. import procs
from ..loop import Loop
from ..silence import Silence


class KeeperLink:
    """Link to the keeper; `lose` gets the reason once the keeper is killed or silent."""

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        lost_after_s: float,
        *,
        lose: Callable[[str], None],
        is_ending: Callable[[], bool],
    ) -> None:
        """`is_ending` returns True once everything here is being ended anyway."""
        self._loop, self._sock, self._pid, self.lost_after_s = loop, sock, os.getppid(), lost_after_s
        self._lose, self._is_ending = lose, is_ending
        self._silence = Silence(loop.now())
        sock.setblocking(False)
        loop.watch(sock.fileno(), read=self._hear)
        loop.call_every(procs.BEAT_S, self._beat)

    def note_trainer(self, pid: int) -> None:
        """Name a trainer, which the kernel tells of our end."""
        with contextlib.suppress(OSError):
            self._sock.send(b"%d " % pid)

    def hand_over(self, lock_fd: int, log: str) -> None:
        """Give the keeper the lock, and the path of the log that it has from now on; from any thread."""
        with contextlib.suppress(OSError):  # it was killed, which `_hear` reports
            socket.send_fds(self._sock, [os.fsencode(log)], [lock_fd])

    def _hear(self) -> None:
        try:
            data = self._sock.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._silence.hear(self._loop.now())
            return
        self._loop.watch(self._sock.fileno())
        self._lose("its keeper was killed")

    def _beat(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.send(b".")
        silent_s = self._silence.measure(self._loop.now())
        if silent_s >= self.lost_after_s and not self._is_ending():
            keeper = procs.read_proc(self._pid)
            if keeper and os.getppid() == self._pid:  # still our parent: the pid was not reused
                procs.send(keeper, signal.SIGKILL)
            self._lose(f"its keeper was silent for {silent_s:.0f} s")
