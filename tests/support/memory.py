"""Peak of this process's memory, for programs that tests run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path


def _read_status(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.M)
    assert found
    return int(found[1]) << 10


def measure_peak(act: Callable[[], object]) -> int:
    """Return the bytes by which the process's memory rises at most while `act` runs."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _read_status("VmRSS")
    act()
    return _read_status("VmHWM") - before
