"""The live view of a job on a terminal: scrolling output above a table of all processes.

No thread: lines wait for the next tick, at most an eighth of a second, and are written together with the
table, which is not redrawn for every line.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from signal import SIGINT
from typing import Any, Final, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pslaunch.runtime.shared.env import TRAINER

from ..errors import STOP_SIGNALS
from ..node.head.events import Event, note_state
from . import view
from .table import fit_table

MAX_PENDING: Final = 500  # lines that wait for a tick
PROCESS_COLUMNS: Final = (
    "process", "node", "state", "pass", "batch", "cost", view.RATE, "cpu", "memory", "gpu", "elapsed",
)  # fmt: skip
NUMBERS: Final = PROCESS_COLUMNS[3:]  # the others are words
# In this order, on a narrow terminal.
DROPPED_ON_NARROW: Final = ("node", "elapsed", "memory", "cpu", "gpu", view.RATE, "pass", "batch")
LINES_AROUND: Final = 6  # title, empty lines, header, rule and "more"


@dataclass(slots=True)
class _Row:
    """Table row of one process."""

    node: Any = ""
    status: dict[str, Any] = field(default_factory=lambda: {"state": "waiting"})
    began_s: float | None = None
    ended_s: float | None = None
    first: dict[str, Any] = field(default_factory=dict)  # of its reports on a batch
    last_s: float = 0.0  # time of its last report

    @property
    def style(self) -> str:
        return "" if self.ended_s is None else "green" if self.status.get("code") == 0 else "red"

    @property
    def left_s(self) -> float:
        """Seconds until it has done its passes, if it goes on as fast as so far; 0 if that is unknown."""
        now, begin = self.status, self.first
        if not begin or "passes" not in now or "batches" not in now:
            return 0.0
        done, before = (one["pass"] * now["batches"] + one["batch"] + 1 for one in (now, begin))
        left = now["passes"] * now["batches"] - done
        return left * (self.last_s - begin["time"]) / (done - before) if left > 0 and done > before else 0.0


class LiveView(view.View):
    """View on a terminal by rich; `clock` is in seconds."""

    def __init__(
        self, out: TextIO, clock: Callable[[], float], *, colour: bool = True, is_own: bool = True
    ) -> None:
        """is_own: Ctrl+C ends the job, not only the view."""
        self._clock, self._is_own = clock, is_own
        self._transcript = view.Transcript(out.encoding)
        self._rows: dict[str, _Row] = {}
        self._pending: list[Text] = []
        self._title = self._ending = ""
        self._console = Console(
            file=out, force_terminal=True, no_color=not colour, highlight=False, markup=False, emoji=False
        )
        self._sending = view.DispatchProgress()
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

    def take_lines(self) -> Text:
        """Return the lines of output that wait for the next tick."""
        lines, self._pending = Text("\n").join(self._pending), []
        return lines

    def compose(self, *, whole: bool = False) -> RenderableType:
        """Return the part below the output: a bar during a dispatch, else the table of processes."""
        if self._sending.over or whole:
            return self.make_table(whole=whole)
        title = Text(f"{self._title}: sending {self._sending.show()}", style="bold")
        return Group("", title, "", ProgressBar(self._sending.total_bytes, self._sending.come_bytes))

    def make_table(self, *, whole: bool = False) -> Table:
        """Return the current table with fitting columns, `whole`: with all rows, else on half of the screen.

        If not all rows fit, those of failed processes come first, then the slowest trainers.
        """
        rows, room = [*self._rows.items()], max(1, self._console.height // 2 - LINES_AROUND)
        left = 0 if whole else max(0, len(rows) - room)
        if left:
            rows = sorted(rows, key=_rank)[:room]
        cells = [self._make_cells(*row) for row in rows]
        filled = [name for name in PROCESS_COLUMNS if any(row[name] for row in cells)]
        dropped = [name for name in DROPPED_ON_NARROW if name in filled]
        return fit_table(
            self._console, cells, filled, dropped, NUMBERS,
            title=Text(self._make_title(), "bold", no_wrap=True, overflow="ellipsis"), title_justify="left",
            caption=f"and {left} more" if left else None, caption_justify="left",
        )  # fmt: skip

    def _make_title(self) -> str:
        """Return the job's name and, while it runs, what holds for all of it."""
        running = [row for row in self._rows.values() if row.began_s is not None and row.ended_s is None]
        training = [row for row in running if row.first and row.status.get("said") != "finished"]
        words = [self._ending] if self._ending and running else []
        if training and not words:
            slowest = min((row.status for row in training), key=lambda one: int(one["pass"]))
            rate = sum(row.status.get("samples_per_s", 0.0) for row in training)
            left_s = max(row.left_s for row in training)
            words += [f"pass {view.show_figures(slowest)['pass']}"] if "passes" in slowest else []
            words += [f"{rate:,.0f} {view.RATE}"] if rate else []
            words += [f"{f'{left_s:.0f} s' if left_s < 59.5 else view.show_s(left_s)} left"] if left_s else []
        return f"{self._title}: {', '.join(words)}" if words else self._title

    def _make_cells(self, process: str, row: _Row) -> dict[str, Text]:
        words = {"process": process, "node": str(row.node)}
        if row.began_s is not None:
            words["elapsed"] = view.show_s(
                (self._clock() if row.ended_s is None else row.ended_s) - row.began_s
            )
        words |= view.show_figures(row.status)
        texts = {name: Text(words.get(name, "")) for name in PROCESS_COLUMNS}
        return texts | {"state": Text(view.show_state(row.status), style=row.style)}

    def _draw(self, *, whole: bool = False) -> None:
        block = self.take_lines()
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

    def _render(self, said: view.Said) -> Text:
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
            case "process" | "progress" if e["process"] in self._rows:
                row = self._rows[e["process"]]
                note_state({e["process"]: row.status}, e)
                if e["event"] == "progress":
                    row.last_s = e.get("time", 0.0)
                    if not row.first and "pass" in e and "batch" in e:
                        row.first = e
                elif e["state"] == "running":
                    row.began_s, row.ended_s, row.first = self._clock(), None, {}
                elif e["state"] == "exited":
                    row.ended_s = self._clock()
            case "restart":
                self._title = f"{self._title.partition(',')[0]}, restart {e['restart']} of {e['of']}"
            case "ending":
                asked = self._is_own and e["why"] == STOP_SIGNALS[SIGINT]
                self._ending = "ending, Ctrl+C again kills at once" if asked else "ending"
            case _:
                pass


def _rank(named: tuple[str, _Row]) -> tuple[float, ...]:
    """Return the place of a row: failed, trainers from the slowest on, others, ended well."""
    process, row = named
    if row.ended_s is not None:
        return (3,) if row.style == "green" else (0,)
    if not process.startswith(TRAINER):
        return (2,)
    rate = float(f"{row.status.get('samples_per_s', 0.0):.1g}")  # rows of equals stay where they are
    return (1, row.status.get("pass", -1), rate)


def _choose_colour(who: str) -> int:
    """Return the number of the terminal's colour for a prefix, readable on light and dark."""
    if who == view.SELF:
        return 8
    role, _, rank = who.partition("/")
    palette = (6, 2, 4, 14, 10, 12) if role == "trainer" else (5, 3, 13, 11)
    return palette[int(rank) % len(palette) if rank.isdecimal() else 0]
