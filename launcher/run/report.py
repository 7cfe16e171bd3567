"""`pslaunch report`: the events of a job, from its log folder or from where it ran, as one HTML page."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from ..errors import FileError, PslaunchError
from ..node.head.events import Event, clean_event
from ..node.logs import EVENTS_LOG
from ..options.spec import Elsewhere
from ..views.report_page import make_page
from .jobs import list_nodes
from .known_jobs import find_job, open_backend, print_line

MAX_EVENTS_BYTES = 256 * 1024 * 1024
PLACES = (EVENTS_LOG, f"log/{EVENTS_LOG}", f"0*/{EVENTS_LOG}", f"log/0*/{EVENTS_LOG}")  # also fetched ones


def write_report(
    word: str, out: TextIO, *, output: str, as_json: bool = False, elsewhere: Elsewhere | None = None
) -> None:
    """Write the page of a job, or of a log folder, to a file. Raises PslaunchError."""
    page = make_page(parse_events(_read_events(word, elsewhere)))
    try:
        Path(output).write_text(page, encoding="utf-8")
    except OSError as e:
        raise FileError.from_os(e, "write the report") from None
    print_line(json.dumps({"page": output}) if as_json else output, out)


def _read_events(word: str, elsewhere: Elsewhere | None) -> bytes:
    folder = Path(word)
    found = [path for place in PLACES for path in folder.glob(place)] if folder.is_dir() else []
    if found and elsewhere is None:
        return _read_file(found[0])
    if "/" in word:
        raise FileError(f"there is no {EVENTS_LOG} in {word}: name a log folder, or a job of pslaunch jobs")
    r = find_job(word, elsewhere)
    if "events" in r:
        return _read_file(Path(r["events"]))
    nodes, data = list_nodes(r), bytearray()
    if not nodes:
        raise PslaunchError(f"job {r['job']} has no events: {r.get('reason', r['state'])}")
    first = nodes[0]
    with open_backend(r) as there:
        words = ["read", f"{first.log_dir}/{EVENTS_LOG}", first.state_dir, r["job"]]
        for piece in there.ask(first, words):
            data += piece
            if len(data) > MAX_EVENTS_BYTES:
                raise PslaunchError(f"{EVENTS_LOG} of {r['job']} has more than {MAX_EVENTS_BYTES:,} bytes")
    return bytes(data)


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise FileError.from_os(e, "read the events") from None


def parse_events(data: bytes) -> Iterable[Event]:
    """Yield the valid events of a file; its last line may be cut."""
    for line in data.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            yield clean_event(json.loads(line))
