"""The view for an output, and output that never blocks the launcher, even if the reader pauses (full pipe).

A launcher blocked in a write sends no heartbeat; its agents would consider it lost and end the job.
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, TextIO

from ..node.procs import write_all
from .view import View

FULL_CHARS: Final = 1 << 20
GATHERED_CHARS: Final = 1 << 16  # for which the thread is woken before a flush


class Outlet(io.TextIOBase):
    """Text stream that a thread writes to the descriptor of `out`. Raises OSError after a failed write.

    Unbounded: callers check `is_full` before.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._texts: deque[str] = deque()
        self._chars = 0
        self._changed = threading.Condition()
        self._failed: OSError | None = None
        self._over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        out.flush()
        self._thread.start()

    @property
    def encoding(self) -> str:  # type: ignore[override] # an attribute there
        return self._out.encoding or "utf-8"

    @property
    def is_full(self) -> bool:
        return self._chars > FULL_CHARS

    def isatty(self) -> bool:
        return self._out.isatty()

    def fileno(self) -> int:
        return self._out.fileno()

    def write(self, text: str) -> int:
        self.check()
        with self._changed:
            self._texts.append(text)
            self._chars += len(text)
            if self._chars > GATHERED_CHARS:
                self._changed.notify()
        return len(text)

    def flush(self) -> None:
        """Let the thread write what waits."""
        self.check()
        with self._changed:
            self._changed.notify()

    def close(self) -> None:
        """Close without raising: Python 3.13 prints errors of closing an unreferenced object."""
        with contextlib.suppress(OSError):
            super().close()

    def check(self) -> None:
        if self._failed:
            raise self._failed

    def drain(self) -> None:
        """Wait until all is written or has failed. May be called twice, never raises."""
        with self._changed:
            self._over = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            while text := self._take_waiting():
                write_all(self.fileno(), text.encode(self.encoding, self._out.errors or "strict"))
        except OSError as e:
            self._failed = e

    def _take_waiting(self) -> str:
        """Wait for text and return all of it; "" at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._texts or self._over)
            text = "".join(self._texts)
            self._texts.clear()
            self._chars = 0
        return text


def make_view(*, json: bool, out: TextIO, clock: Callable[[], float], is_own: bool = True) -> View:
    """Return the view for `out`: JSON if requested, live on a terminal, else plain lines.

    is_own: Ctrl+C ends the job.
    """
    from .view import JsonView, PlainView  # 5 ms, while nodes start

    if json:
        return JsonView(out)
    if not out.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return PlainView(out, clock)
    from .live import LiveView

    return LiveView(out, clock, colour=not os.environ.get("NO_COLOR"), is_own=is_own)
