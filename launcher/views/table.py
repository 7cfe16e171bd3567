"""A table of findings with marked cells, and the lines below it: for a terminal, as plain text or JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TextIO

from ..node.logs import clean

Level = Literal["ok", "warning", "problem"]
Cell = tuple[str, Level]
GAP: Final = 3  # between columns on a terminal
STYLES: Final[Mapping[Level, str]] = {"ok": "", "warning": "yellow", "problem": "bold red"}
MARKS: Final[Mapping[Level, str]] = {"ok": "", "warning": "~", "problem": "!"}
LEVEL_WORDS: Final[Mapping[Level, str]] = {"ok": "", "warning": "warning", "problem": "PROBLEM"}


class Table(NamedTuple):
    """Rows of cells. `dropped`: columns for wide terminals only, the first ones first."""

    columns: Sequence[str]
    dropped: Sequence[str]
    rows: Sequence[Sequence[Cell]]


def show(
    table: Table,
    lines: Iterable[str],
    data: Iterable[Mapping[str, Any]],
    out: TextIO,
    *,
    as_json: bool,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Write a report: its data as JSON if requested, a coloured table on a terminal, else plain lines."""
    encoding = out.encoding or "utf-8"
    if as_json:
        written = [json.dumps(one) for one in data]
    elif out.isatty() and environ.get("TERM", "dumb") != "dumb":
        _draw(table, lines, out, colour=not environ.get("NO_COLOR"))
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


def choose_columns(table: Table, width: int) -> list[int]:
    """Return the columns that fit a terminal; columns without findings are dropped first."""
    texts = ([MARKS[level] + text for text, level in row] for row in table.rows)
    widths = [max(map(len, column)) + GAP for column in zip(table.columns, *texts, strict=True)]
    shown = list(range(len(table.columns)))
    dropped = map(table.columns.index, table.dropped)
    for i in sorted(dropped, key=lambda i: any(row[i][1] != "ok" for row in table.rows)):
        if sum(widths[k] for k in shown) - GAP > width:
            shown.remove(i)
    return shown


def _draw(table: Table, lines: Iterable[str], out: TextIO, *, colour: bool) -> None:
    from rich.box import SIMPLE_HEAD  # rich is slow to import
    from rich.console import Console
    from rich.table import Table as Drawn
    from rich.text import Text

    encoding = out.encoding or "utf-8"
    console = Console(file=out, no_color=not colour, highlight=False, markup=False, emoji=False)
    shown = choose_columns(table, console.width)
    drawn = Drawn(box=SIMPLE_HEAD, pad_edge=False)
    for i in shown:
        drawn.add_column(table.columns[i], no_wrap=True)
    for row in table.rows:
        cells = ((clean(row[i][0], encoding), row[i][1]) for i in shown)
        drawn.add_row(*(Text(MARKS[level] + text, style=STYLES[level]) for text, level in cells))
    console.print(drawn)
    hidden = [name for i, name in enumerate(table.columns) if i not in shown]
    left_out = f"too narrow for {', '.join(hidden)}: --json or | cat shows all"
    for line in [*([left_out] if hidden else []), *lines]:
        style = next(
            (STYLES[level] for level, word in LEVEL_WORDS.items() if word and line.startswith(word)), ""
        )
        console.print(Text(clean(line, encoding), style=style), soft_wrap=True)
