"""Progress of a dispatch from its events, for all nodes together. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.filesize import decimal as show_bytes


class DispatchProgress:
    """Progress of all nodes; `over` when all are done or nothing is sent."""

    def __init__(self) -> None:
        self.nodes: dict[int, Mapping[str, Any]] = {}  # the last event of each
        self._began_s = self._now_s = 0.0
        self.over = True

    def note(self, e: Mapping[str, Any]) -> None:
        if e["node"] is None:
            self.over = True
            return
        if not self.nodes:
            self._began_s = e["time"]
        self.nodes[e["node"]] = e
        self._now_s = e["time"]
        self.over = False

    @property
    def done(self) -> int:
        """Number of nodes that have it all."""
        return sum(e["state"] == "done" for e in self.nodes.values())

    @property
    def come_bytes(self) -> int:
        return sum(int(e["received"]) for e in self.nodes.values())

    @property
    def total_bytes(self) -> int:
        return sum(int(e["bytes"]) for e in self.nodes.values())

    def show(self) -> str:
        """Show the total: `45 % of 3.4 GB to 3 hosts (1 has it), 110.0 MB/s, 17 s left`."""
        come, total = self.come_bytes, self.total_bytes
        hosts = f"{len(self.nodes)} host{'s' if len(self.nodes) != 1 else ''}"
        have = f" ({self.done} {'has' if self.done == 1 else 'have'} it)" if self.done else ""
        took_s = self._now_s - self._began_s
        rate = ""
        if took_s > 0.001 and come:
            rate = f", {show_bytes(int(come / took_s))}/s, {took_s * (total - come) / come:.0f} s left"
        percent = 100 * come // total if total else 100  # 100 only at the end
        return f"{percent} % of {show_bytes(total)} to {hosts}{have}{rate}"
