"""Slow work of a session, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from ..backends.lines import CLOSE_EXTRA_S
from ..node.loop import Loop
from .watch import TICK_S

AT_ONCE_S = 0.02  # for a start without a network
T = TypeVar("T")


class SlowWork(Generic[T]):
    """Slow work with nodes in a thread of its own, started at once."""

    def __init__(self, loop: Loop, work: Callable[[], T]) -> None:
        self._loop = loop
        self._found: list[T] = []
        self._over: list[Exception | None] = []
        self._done = done = threading.Event()

        def run() -> None:
            try:
                self._found.append(work())
            finally:
                done.set()

        loop.do_aside(run, self._over.append, self._over.append)

    def give_time(self) -> None:
        """Let fast work finish: imports here would slow the thread down, by 10 ms and more."""
        self._done.wait(AT_ONCE_S)

    def leave(self, cut: Callable[[], None]) -> T | None:
        """Return the result, or None without one; unfinished work is ended by `cut`."""
        if not self._done.is_set():
            cut()
            self._done.wait(CLOSE_EXTRA_S)
        return self._found[0] if self._found else None

    def wait(self, asked: Callable[[], bool], cut: Callable[[], None]) -> T | None:
        """Run the loop until the work ends and return its result. Once `asked` is true, `cut` ends it soon.

        Then returns None if there is no result; otherwise raises the work's exception.
        """
        self._loop.run(lambda: bool(self._over) or asked())
        while not self._over:
            cut()
            self._loop.run_once(TICK_S)
        if self._over[0] and not asked():
            raise self._over[0]
        return self._found[0] if self._found else None
