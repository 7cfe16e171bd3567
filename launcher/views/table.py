"""A table of findings with marked cells, and the lines below it: for a terminal, as plain text or JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TextIO

from ..node.logs import clean

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as Drawn
    from rich.text import Text

Level = Literal["ok", "warning", "problem"]
Cell = tuple[str, Level]
WIDE: Final = 1000  # columns; wider than any table
STYLES: Final[Mapping[Level, str]] = {"ok": "", "warning": "yellow", "problem": "bold red"}
MARKS: Final[Mapping[Level, str]] = {"ok": "", "warning": "~", "problem": "!"}
LEVEL_WORDS: Final[Mapping[Level, str]] = {"ok": "", "warning": "warning", "problem": "PROBLEM"}


class Table(NamedTuple):
    """Rows of cells. `dropped`: columns for wide terminals only, the first ones first."""

    columns: Sequence[str]
    dropped: Sequence[str]
    rows: Sequence[Sequence[Cell]]


def show(
    table: Table, lines: Iterable[str], data: Iterable[Mapping[str, Any]], out: TextIO, *, as_json: bool
) -> None:
    """Write a report: its data as JSON if requested, a coloured table on a terminal, else plain lines."""
    encoding = out.encoding or "utf-8"
    if as_json:
        written = [json.dumps(one) for one in data]
    elif out.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        _draw(table, lines, out, colour=not os.environ.get("NO_COLOR"))
        return
    else:
        written = [*align(table), *lines]
    out.writelines(f"{clean(line, encoding)}\n" for line in written)
    out.flush()


def align(table: Table) -> list[str]:
    """Return the table as plain text, with ! before a problem and ~ before a warning."""
    rows = [list(table.columns), *([MARKS[level] + text for text, level in row] for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def fit_table(
    console: Console,
    rows: Sequence[Mapping[str, Text]],
    columns: Iterable[str],
    dropped: Iterable[str],
    numbers: Collection[str] = (),
    **settings: Any,
) -> Drawn:
    """Return the table of all columns that fit a terminal; of `dropped` the first ones are left out first.

    numbers: columns that are adjusted to the right; settings: of rich's table.
    """
    from rich.box import SIMPLE_HEAD  # rich is slow to import
    from rich.table import Table as Drawn

    def build() -> Drawn:
        drawn = Drawn(box=SIMPLE_HEAD, **settings)
        for name in shown:
            drawn.add_column(name, justify="right" if name in numbers else "left", no_wrap=True)
        for row in rows:
            drawn.add_row(*(row[name] for name in shown))
        return drawn

    shown, unlimited = [*columns], console.options.update_width(WIDE)
    for name in dropped:
        if console.measure(build(), options=unlimited).maximum <= console.width:
            break
        shown.remove(name)
    return build()


def _draw(table: Table, lines: Iterable[str], out: TextIO, *, colour: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    encoding = out.encoding or "utf-8"
    console = Console(file=out, no_color=not colour, highlight=False, markup=False, emoji=False)

    def make_text(text: str, level: Level) -> Text:
        return Text(MARKS[level] + clean(text, encoding), style=STYLES[level])

    rows = [
        {name: make_text(*cell) for name, cell in zip(table.columns, row, strict=True)} for row in table.rows
    ]
    marked = {name for name in table.columns if any(row[name].style for row in rows)}
    dropped = sorted(table.dropped, key=marked.__contains__)
    drawn = fit_table(console, rows, table.columns, dropped, pad_edge=False)
    console.print(drawn)
    shown = [column.header for column in drawn.columns]
    hidden = [name for name in table.columns if name not in shown]
    left_out = f"too narrow for {', '.join(hidden)}: --json or | cat shows all"
    for line in [*([left_out] if hidden else []), *lines]:
        style = next(
            (STYLES[level] for level, word in LEVEL_WORDS.items() if word and line.startswith(word)), ""
        )
        console.print(Text(clean(line, encoding), style=style), soft_wrap=True)
