"""The clock of bounds: it stands still while the machine's processors are given to other machines.

A bound of an ending is for a machine that gets to run. On a virtual one whose processors are taken away
(`steal` in /proc/stat) for two thirds of a minute, one second of work takes three; one that is paused as a
whole is not even told.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from pathlib import Path

_STAT = Path("/proc/stat")
_STEAL = 8  # field of the line of all processors, in ticks
_TICK_S = 0.1
_PAUSE_S = 0.5  # a thread that sleeps for a tick and wakes so much later did not get to run


class _Taken:
    """Counts the seconds in which others had the machine, from its start on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken_s, self._looked_s, self._stolen_s = 0.0, time.monotonic(), _stolen_s()
        threading.Thread(target=self._tick, daemon=True).start()

    def _tick(self) -> None:
        while True:
            time.sleep(_TICK_S)
            self.read()

    def read(self) -> tuple[float, float]:
        """Now, and the seconds that were taken by now."""
        with self._lock:
            now_s, stolen_s = time.monotonic(), _stolen_s()
            late_s = now_s - self._looked_s - _TICK_S
            self._taken_s += max(stolen_s - self._stolen_s, late_s if late_s > _PAUSE_S else 0.0)
            self._looked_s, self._stolen_s = now_s, stolen_s
            return now_s, self._taken_s


def _stolen_s() -> float:
    """Seconds of steal since the machine's start, on the average of its processors."""
    fields = _STAT.read_text().partition("\n")[0].split()
    return int(fields[_STEAL]) / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1)


@functools.cache
def _taken() -> _Taken:
    return _Taken()


def own_s() -> float:
    """Seconds that this machine has had."""
    now_s, taken_s = _taken().read()
    return now_s - taken_s


def taken_s() -> float:
    """Seconds that others have had; differences count."""
    return _taken().read()[1]


class Patience:
    """Own time that is left of a limit."""

    def __init__(self, limit_s: float) -> None:
        self._end_s = own_s() + limit_s

    def left_s(self) -> float:
        """For one wait, after which it is asked anew: a pause may have made it longer. 0 when it is over."""
        return max(0.0, min(self._end_s - own_s(), 1.0))
