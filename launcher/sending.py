"""How far a dispatch is, from its events: all nodes together and each by itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Sending:
    """Sums what the nodes get. `over` once all have it, and where nothing is sent."""

    def __init__(self) -> None:
        self._nodes: dict[int, tuple[int, int]] = {}  # bytes that have come, of how many
        self._began_s = 0.0
        self.over = True

    def note(self, e: Mapping[str, Any]) -> None:
        """Take a dispatch event."""
        if e["node"] is None:
            self.over = True
            return
        if not self._nodes:
            self._began_s = e["time"]
        self._nodes[e["node"]] = e["received"], e["bytes"]
        self._now_s = e["time"]
        self.over = False

    def text(self) -> str:
        """All of it: `45 % of 3.4 GB to 3 nodes, 110.0 MB/s`."""
        come = sum(have for have, _ in self._nodes.values())
        total = sum(of for _, of in self._nodes.values())
        nodes = f"{len(self._nodes)} node{'s' if len(self._nodes) != 1 else ''}"
        took_s = self._now_s - self._began_s
        rate = f", {show_bytes(int(come / took_s))}/s" if took_s > 0 and come else ""
        return f"{percent(come, total)} of {show_bytes(total)} to {nodes}{rate}"


def percent(part: int, whole: int) -> str:
    """`45 %`, never 100 before all of it."""
    return f"{100 * part // whole if whole else 100} %"


def show_bytes(n: int) -> str:
    """A size for people: `512 bytes`, `3.4 MB`."""
    size, units = float(n), ["kB", "MB", "GB", "TB"]
    if n < 1000:
        return f"{n} bytes"
    while size >= 999_950 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size / 1000:.1f} {units[0]}"
