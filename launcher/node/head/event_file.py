"""The file `events.jsonl` beside a job's logs: its events but for output, for `pslaunch report`."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any, TextIO

KEPT_EVERY_S = 1.0  # at most so often the progress of one process, and of a dispatch to one node
KEPT_SHARE = 1e-3  # and after this share of the time so far: a job of days has some thousands of each


class EventFile:
    """Open file with one JSON object a line, in order of the events; an error of writing ends it."""

    def __init__(self, path: str) -> None:
        """Replace the file. Raises OSError."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
        self._file: TextIO = os.fdopen(fd, "w", buffering=1, encoding="utf-8")
        self._first_s: float | None = None  # of the first event
        self._last: dict[Any, tuple[float, Any]] = {}  # time and state of the last one written
        self._skipped: dict[Any, dict[str, Any]] = {}  # fields of those after it

    def write(self, event: dict[str, Any]) -> None:
        """Write an event unless it is output or comes too soon; close after the last. Raises OSError."""
        kind, key = event["event"], (event["event"], event.get("process"), event.get("node"))
        if kind in ("line", "gap") or (kind in ("progress", "dispatch") and self._skips(key, event)):
            return
        try:
            self._file.write(f"{json.dumps({**self._skipped.pop(key, {}), **event})}\n")
            if kind == "end":
                self._file.close()
        except OSError:
            with contextlib.suppress(OSError):  # what it holds back can't be written either
                self._file.close()
            raise

    def _skips(self, key: Any, event: dict[str, Any]) -> bool:
        state, (last_s, last) = event.get("state"), self._last.get(key, (float("-inf"), None))
        self._first_s = event["time"] if self._first_s is None else self._first_s
        rest_s = max(KEPT_EVERY_S, KEPT_SHARE * (event["time"] - self._first_s))
        if event["time"] - last_s < rest_s and state in (None, last) and "why" not in event:
            self._skipped.setdefault(key, {}).update(event)
            return True
        self._last[key] = event["time"], state
        return False
