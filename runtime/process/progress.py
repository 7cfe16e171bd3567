"""Progress reports to the process that started this one: datagrams to PSLAUNCH_PROGRESS.

They never block and never fail: training does not depend on observers.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable

from ..shared import reports

PERIOD_S = 0.2
STATE_WAIT_S = 1.0


class Progress:
    """Sender of states, and of at most one report per `PERIOD_S`; it sends nothing if `path` is empty."""

    def __init__(self, path: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._next_s = float("-inf")
        self._last: dict[str, int | float | str] = {}
        self.measure: Callable[[], dict[str, int | float | str]] = dict  # further fields of each report

    def is_due(self) -> bool:
        """Return True if a report would be sent now; cheap."""
        return bool(self._path) and self._clock() >= self._next_s

    def report(self, **fields: int | float | str) -> None:
        """Send a report; call it if `is_due()`, and at the end of a pass."""
        self._next_s = self._clock() + PERIOD_S
        self._last = fields | self.measure()
        self._send(reports.format_progress(**self._last))

    def report_again(self) -> None:
        """Send the last report with what is measured now."""
        self.report(**self._last)

    def report_state(self, state: str) -> None:
        """Send a state: `connected`, `finished`. If the queue is full, wait up to STATE_WAIT_S."""
        fields = self._last | self.measure() | {"state": state}
        self._send(reports.format_progress(**fields), wait_s=STATE_WAIT_S)

    def report_reason(self, text: str, blames: str = "") -> None:
        """Send the reason why this process is about to end without success, and the process to blame."""
        fields = {"blames": blames, "why": text} if blames else {"why": text}
        self._send(reports.format_progress(**fields), wait_s=STATE_WAIT_S)

    def _send(self, datagram: bytes, *, wait_s: float = 0.0) -> None:
        if not self._path:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(wait_s)
            sender.sendto(datagram, self._path)  # fails if nobody reads, or the queue is full
