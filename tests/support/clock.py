"""The clock of bounds: it stands still while the machine's processors are given to other machines.

A bound of an ending is for a machine that gets to run. On a virtual one whose processors are taken away
(`steal` in /proc/stat) for two thirds of a minute, one second of work takes three.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_STAT = Path("/proc/stat")
_STEAL = 8  # field of the line of all processors, in ticks


def own_s() -> float:
    """Seconds that this machine has had, on the average of its processors."""
    fields = _STAT.read_text().partition("\n")[0].split()
    return time.monotonic() - int(fields[_STEAL]) / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1)
