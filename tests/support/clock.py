"""The clock of bounds: stands still while the machine's processors are given to other machines.

A bound of an ending is for a machine that gets to run: where two thirds of a virtual one's time are taken
away (`steal` in /proc/stat), one second of work takes three.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_STAT = Path("/proc/stat")
_STEAL = 8  # field of the line of all processors, in ticks


def own_s() -> float:
    """Return the seconds that this machine has had; differences count."""
    steal = int(_STAT.read_text().partition("\n")[0].split()[_STEAL])
    return time.monotonic() - steal / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1)


class Patience:
    """Own time that is left of a limit."""

    def __init__(self, limit_s: float) -> None:
        self._end_s = own_s() + limit_s

    def left_s(self) -> float:
        """Return the seconds for one wait, after which to ask anew; 0 when the limit is over."""
        return max(0.0, min(self._end_s - own_s(), 1.0))
