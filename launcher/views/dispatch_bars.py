"""Progress bars of a dispatch on a terminal: all nodes together, then each with its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from .dispatch_progress import Sending, show_state

NARROW, NARROWER = 90, 60  # terminal columns below which some, then most, columns are dropped


class Bars:
    """One bar for all nodes and one for each."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self._console = console
        self._sending = Sending()
        self.names: Mapping[int, str] = {}  # of the nodes
        self._progress = Progress(console=console, auto_refresh=False, get_time=clock)
        self._all = self._progress.add_task("all nodes", total=None, state="")
        self._tasks: dict[int, TaskID] = {}

    @property
    def is_over(self) -> bool:
        """Check for the end of the dispatch."""
        return self._sending.over

    def note(self, e: Mapping[str, Any]) -> None:
        """Take a dispatch event."""
        self._sending.note(e)
        node = e["node"]
        if node is None:
            return
        if node not in self._tasks:
            name = self.names.get(node) or f"node {node}"
            self._tasks[node] = self._progress.add_task(name, total=e["bytes"], state="")
        self._update(self._tasks[node], e["received"], e["bytes"], show_state(e))
        done = sum(far["state"] == "done" for far in self._sending.nodes.values())
        come, total = self._sending.come_bytes, self._sending.total_bytes
        self._update(self._all, come, total, f"{done} of {len(self._tasks)} done")

    def _update(self, task: TaskID, come: int, total: int, state: str) -> None:
        self._progress.update(task, completed=come, total=total, state=state)

    def make_table(self, rows: int) -> Table:
        """Return the current bars in at most `rows` rows, unfinished nodes first."""
        by_id = {task.id: task for task in self._progress.tasks}
        each = sorted((by_id[task] for task in self._tasks.values()), key=lambda task: task.finished)
        shown = each if len(each) == 1 else [by_id[self._all], *each[: max(1, rows - 1)]]
        self._progress.columns = self._choose_columns(shown)
        return self._progress.make_tasks_table(shown)

    def _choose_columns(self, shown: list[Task]) -> tuple[ProgressColumn, ...]:
        name = TextColumn("{task.description}", markup=False)
        state = TextColumn("{task.fields[state]}", markup=False)
        if self._console.width < NARROWER:
            return name, state
        bar, speed, left = BarColumn(bar_width=None), TransferSpeedColumn(), TimeRemainingColumn()
        if self._console.width < NARROW:
            return name, bar, speed, left, state
        return name, bar, DownloadColumn(), speed, left, state
