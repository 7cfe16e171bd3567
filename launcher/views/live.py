"""The live view of a job on a terminal: scrolling output above a table of all processes.

No thread: lines wait for the next tick, at most an eighth of a second, and are written together with the
table, which is not redrawn for every line.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pslaunch.runtime.shared.env import TRAINER

from ..node.head.events import Event
from .table import fit_table
from .view import (
    RATE,
    SELF,
    DispatchProgress,
    Said,
    Transcript,
    View,
    show_figures,
    show_reported_state,
    show_s,
    show_short_ending,
)

MAX_PENDING: Final = 500  # lines that wait for a tick
PROCESS_COLUMNS: Final = ("process", "node", "state", "pass", "batch", "cost", RATE, "elapsed")
LEFT: Final = ("process", "node", "state")  # words; the others are numbers
DROPPED_ON_NARROW: Final = ("node", "elapsed", RATE, "pass", "batch")  # in this order, on a narrow terminal
LINES_AROUND: Final = 7  # title, empty lines, header, rule, "more", and a line of output


@dataclass(slots=True)
class _Row:
    """Table row of one process."""

    node: Any = ""
    state: str = "waiting"
    style: str = ""
    began_s: float | None = None
    ended_s: float | None = None
    progress: dict[str, Any] = field(default_factory=dict)


class LiveView(View):
    """View on a terminal by rich; `clock` is in seconds."""

    def __init__(
        self, out: TextIO, clock: Callable[[], float], *, colour: bool = True, processes: Iterable[str] = ()
    ) -> None:
        self._clock = clock
        self._transcript = Transcript(out.encoding, processes)
        self._rows: dict[str, _Row] = {}
        self._pending: list[Text] = []
        self._title = ""
        self._console = Console(
            file=out, force_terminal=True, no_color=not colour, highlight=False, markup=False, emoji=False
        )
        self._sending = DispatchProgress()
        self._live = Live(
            console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )

    def show_event(self, e: Event) -> None:
        self._note(e)
        if e.get("event") == "end":
            self._finish()
        self._pending += [self._render(said) for said in self._transcript.make_lines(e)]
        if len(self._pending) >= MAX_PENDING or e.get("event") == "end":
            self._draw()

    def tick(self) -> None:
        if self._pending or self._rows:
            self._draw()

    def close(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._finish()
            self._draw()

    def compose(self, *, whole: bool = False) -> RenderableType:
        """Return the part below the output: a bar during a dispatch, else the table of processes."""
        if self._sending.over or whole:
            return self.make_table(whole=whole)
        title = Text(f"{self._title}: sending {self._sending.show()}", style="bold")
        return Group("", title, "", ProgressBar(self._sending.total_bytes, self._sending.come_bytes))

    def make_table(self, *, whole: bool = False) -> Table:
        """Return the current table with fitting columns and rows, trainers first; `whole`: all rows."""
        rows, room = [*self._rows.items()], max(1, self._console.height - LINES_AROUND)
        left = 0 if whole else max(0, len(rows) - room)
        if left:
            rows = sorted(rows, key=lambda row: not row[0].startswith(TRAINER))[:room]
        cells = [self._make_cells(*row) for row in rows]

        def build(columns: Sequence[str]) -> Table:
            table = Table(
                title=Text(self._title, no_wrap=True, overflow="ellipsis"), title_justify="left",
                title_style="bold", box=SIMPLE_HEAD,
                caption=f"and {left} more" if left else None, caption_justify="left",
            )  # fmt: skip
            for name in columns:
                table.add_column(name, justify="left" if name in LEFT else "right", no_wrap=True)
            for row in cells:
                table.add_row(*(row[name] for name in columns))
            return table

        return fit_table(self._console, build, PROCESS_COLUMNS, DROPPED_ON_NARROW)

    def _make_cells(self, process: str, row: _Row) -> dict[str, Text]:
        words = {"process": process, "node": str(row.node)}
        if row.began_s is not None:
            words["elapsed"] = show_s((self._clock() if row.ended_s is None else row.ended_s) - row.began_s)
        words |= show_figures(row.progress)
        texts = {name: Text(words.get(name, "")) for name in PROCESS_COLUMNS}
        return texts | {"state": Text(row.state, style=row.style)}

    def _draw(self, *, whole: bool = False) -> None:
        block, self._pending = Text("\n").join(self._pending), []
        with self._console:  # one write for both
            if self._live.is_started:
                self._live.update(self.compose(whole=whole), refresh=True)
            if block:
                self._console.print(block, soft_wrap=True)  # a terminal folds, and joins what is copied

    def _finish(self) -> None:
        if self._live.is_started:
            self._live.vertical_overflow = "visible"  # the last table stays, with all rows
            self._draw(whole=True)
            self._live.stop()

    def _render(self, said: Said) -> Text:
        prefix, text = self._transcript.make_columns(said)
        style = {"error": "bold red", "warning": "yellow"}.get(said.level, "")
        return Text.assemble((prefix, f"color({_choose_colour(said.who)})"), (text, style))

    def _note(self, e: Event) -> None:
        match e.get("event"):
            case "job":
                self._title = str(e["job"])
                self._rows = {p["process"]: _Row(node=p["node"]) for p in e["processes"]}
                self._live.start()
            case "dispatch":
                self._sending.note(e)
            case "process" if e["process"] in self._rows:
                row = self._rows[e["process"]]
                row.state = str(e["state"])
                if e["state"] == "running":
                    row.began_s, row.ended_s = self._clock(), None
                elif e["state"] == "exited":
                    row.ended_s = self._clock()
                    row.state = show_short_ending(e.get("code"), e.get("signal"))
                    row.style = "green" if e.get("code") == 0 else "red"
            case "progress" if e["process"] in self._rows:
                row = self._rows[e["process"]]
                row.progress |= e
                if "state" in e and row.ended_s is None:
                    row.state = show_reported_state(str(e["state"]))
            case _:
                pass


def _choose_colour(who: str) -> int:
    """Return the number of the terminal's colour for a prefix, readable on light and dark."""
    if who == SELF:
        return 8
    role, _, rank = who.partition("/")
    palette = (6, 2, 4, 14, 10, 12) if role == "trainer" else (5, 3, 13, 11)
    return palette[int(rank) % len(palette) if rank.isdecimal() else 0]
