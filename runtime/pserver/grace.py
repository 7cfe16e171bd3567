"""A warning that TERM would leave a pserver too little time to save."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from pathlib import Path

PROBE_BYTES = 32 << 20


def measure_speed(folder: Path) -> float:
    """Return the bytes per second that a file in the folder takes, up to the disk. Raises OSError."""
    piece = os.urandom(1 << 20)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as f:
        began_s = time.monotonic()
        for _ in range(PROBE_BYTES // len(piece)):
            f.write(piece)
        os.fsync(f.fileno())
        return PROBE_BYTES / (time.monotonic() - began_s)


class GraceWatch:
    """Finds out, once, that TERM would leave too little time to save, by the measured speed of the disk."""

    def __init__(self, folder: Path, grace_s: float) -> None:
        self._folder, self._grace_s = folder, grace_s
        self._bytes: dict[int, int] = {}  # by shard: what a save writes
        self._bytes_per_s = 0.0  # of the disk; 0: not known yet
        self._warned = False

    def note_size(self, shard: int, size: int) -> None:
        """Note the bytes that a save of a shard writes; the first time, begin to measure the disk."""
        if not self._bytes:
            threading.Thread(target=self._measure, name="disk", daemon=True).start()
        self._bytes[shard] = size

    def _measure(self) -> None:
        with contextlib.suppress(OSError):  # the save itself will name it
            self._bytes_per_s = measure_speed(self._folder)

    def find_warning(self) -> str:
        """Return the warning when it is due for the first time, else ""."""
        speed = self._bytes_per_s / 2**20
        mib = sum(self._bytes.values()) / 2**20
        if self._warned or not speed or mib <= self._grace_s * speed:
            return ""
        self._warned = True
        needs_s = mib / speed
        return (
            f"saving {mib:.0f} MiB in {self._folder} will take about {needs_s:.1f} s at {speed:.0f} MiB/s, "
            f"but --grace is {self._grace_s:g} s: give more, or a faster disk, or TERM will leave no new "
            "files"
        )
