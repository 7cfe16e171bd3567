"""The live view of a job on a terminal: output scrolls, and below it stands a table of all processes.

No thread: lines wait for the next tick, at most an eighth of a second, and are written together with the
table, so that a program that prints much does not redraw the table for every line.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pslaunch.view import Event, Said, Transcript, colour_of, how_it_ended, show_s

REDRAW_S: Final = 0.125
MAX_PENDING: Final = 500  # lines that wait for a tick


@dataclass(slots=True)
class _Row:
    """What the table shows of one process."""

    node: Any = ""
    state: str = "waiting"
    style: str = ""
    began_s: float | None = None
    ended_s: float | None = None
    progress: dict[str, Any] = field(default_factory=dict)


class LiveView:
    """Rendering on a terminal by rich. `clock` gives seconds, as the argument of `tick`."""

    def __init__(self, out: TextIO, clock: Callable[[], float], *, colour: bool = True) -> None:
        self._clock = clock
        self._transcript = Transcript(out.encoding)
        self._rows: dict[str, _Row] = {}
        self._pending: list[Text] = []
        self._drawn_s = self._start_s = clock()
        self._title = ""
        self._console = Console(
            file=out, force_terminal=True, no_color=not colour, highlight=False, markup=False, emoji=False
        )
        self._live = Live(
            console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )

    def event(self, e: Event) -> None:
        self._note(e)
        if e.get("event") == "end":
            self._finish()
        self._pending += [self._render(said) for said in self._transcript.lines(e)]
        if len(self._pending) >= MAX_PENDING or e.get("event") == "end":
            self._draw()

    def tick(self, now_s: float) -> None:
        if now_s - self._drawn_s >= REDRAW_S and (self._pending or self._rows):
            self._drawn_s = now_s
            self._draw()

    def close(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._finish()
        with contextlib.suppress(OSError, ValueError):
            self._draw()

    def table(self) -> Table:
        """The table as it is now."""
        table = Table(title=self._title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
        for name in ("process", "node", "state"):
            table.add_column(name, no_wrap=True)
        for name in ("pass", "batch", "cost", "samples/s", "elapsed"):
            table.add_column(name, justify="right", no_wrap=True)
        for process, row in self._rows.items():
            table.add_row(
                Text(process), Text(str(row.node)), Text(row.state, style=row.style),
                *map(Text, _figures(row.progress)), Text(self._elapsed(row)),
            )  # fmt: skip
        return table

    def _draw(self) -> None:
        block, self._pending = Text("\n").join(self._pending), []
        with self._console:  # one write for both
            if self._live.is_started:
                self._live.update(self.table(), refresh=True)
            if block:
                self._console.print(block, overflow="fold")

    def _finish(self) -> None:
        if self._live.is_started:
            self._draw()
            self._live.stop()

    def _render(self, said: Said) -> Text:
        prefix, text = self._transcript.columns(said)
        style = {"error": "bold red", "warning": "yellow"}.get(said.level, "")
        return Text.assemble((prefix, _style(said.who)), (text, style))

    def _note(self, e: Event) -> None:
        match e.get("event"):
            case "job":
                self._title = str(e["job"])
                self._rows = {p["process"]: _Row(node=p["node"]) for p in e["processes"]}
                self._live.start()
            case "process" if e["process"] in self._rows:
                self._note_state(self._rows[e["process"]], e)
            case "progress" if e["process"] in self._rows:
                row = self._rows[e["process"]]
                row.progress |= e
                if "state" in e and row.state != "ended":
                    row.state = str(e["state"]).replace("_", " ")
            case _:
                pass

    def _note_state(self, row: _Row, e: Event) -> None:
        row.state = str(e["state"])
        if e["state"] == "running":
            row.began_s, row.ended_s = self._clock(), None
        elif e["state"] == "exited":
            row.ended_s = self._clock()
            row.state = how_it_ended(e.get("code"), e.get("signal"))
            row.style = "green" if e.get("code") == 0 else "red"

    def _elapsed(self, row: _Row) -> str:
        if row.began_s is None:
            return ""
        return show_s((self._clock() if row.ended_s is None else row.ended_s) - row.began_s)


def _figures(progress: Event) -> tuple[str, str, str, str]:
    cost, rate = progress.get("cost"), progress.get("samples_per_s")
    return (
        str(progress.get("pass", "")),
        str(progress.get("batch", "")),
        "" if cost is None else f"{cost:.4f}",
        "" if rate is None else f"{rate:,.0f}",
    )


_STYLES: Final = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


def _style(who: str) -> str:
    bright, colour = divmod(colour_of(who) - 30, 60)
    return f"bright_{_STYLES[colour]}" if bright else _STYLES[colour]
