"""Choice of the view for an output."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TextIO

from .view import JsonView, PlainView, View

MIN_LIVE_COLUMNS: Final = 40


def make_view(
    *,
    json: bool,
    out: TextIO,
    clock: Callable[[], float],
    environ: Mapping[str, str] = os.environ,
    processes: Iterable[str] = (),
) -> View:
    """Return the view for `out`: JSON if requested, live on a terminal, else plain lines.

    processes: those expected, for the width of the first lines.
    """
    if json:
        return JsonView(out)
    if not out.isatty() or environ.get("TERM", "dumb") == "dumb":
        return PlainView(out, clock, processes=processes)
    colour = not environ.get("NO_COLOR")
    if os.get_terminal_size(out.fileno()).columns < MIN_LIVE_COLUMNS:
        return PlainView(out, clock, colour=colour, processes=processes)
    from .live import LiveView  # rich is slow to import

    return LiveView(out, clock, colour=colour, processes=processes)
