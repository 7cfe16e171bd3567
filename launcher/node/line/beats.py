"""Heartbeats on lines that no loop serves yet, while other nodes are still being reached."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Callable

from .wire import HEARTBEAT_S


@contextlib.contextmanager
def keep_beating(beat: bytes) -> Iterator[Callable[[int], None]]:
    """Send `beat` once a second on added descriptors, however long other threads take."""
    fds: list[int] = []
    over = threading.Event()

    def say(fd: int) -> None:
        with contextlib.suppress(OSError):
            os.write(fd, beat)

    def add(fd: int) -> None:
        say(fd)
        fds.append(fd)

    def run() -> None:
        while not over.wait(HEARTBEAT_S):
            for fd in list(fds):
                say(fd)

    thread = threading.Thread(target=run, name="beat", daemon=True)
    thread.start()
    try:
        yield add
    finally:
        over.set()
        thread.join()
