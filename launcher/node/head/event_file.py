"""The file `events.jsonl` beside a job's logs: its events but for output, for `pslaunch report`."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any, TextIO

KEPT_EVERY_S = 1.0  # at most so often the progress of one process, and of a dispatch to one node


class EventFile:
    """Open file with one JSON object a line, in order of the events; an error of writing ends it."""

    def __init__(self, path: str) -> None:
        """Replace the file. Raises OSError."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
        self._file: TextIO = os.fdopen(fd, "w", buffering=1, encoding="utf-8")
        self._last: dict[Any, tuple[float, Any]] = {}  # time and state of the last one written

    def write(self, event: dict[str, Any]) -> None:
        """Write an event unless it is output or comes too soon; close after the last. Raises OSError."""
        kind = event["event"]
        if kind in ("line", "gap") or (kind in ("progress", "dispatch") and self._skips(event)):
            return
        try:
            self._file.write(f"{json.dumps(event)}\n")
            if kind == "end":
                self._file.close()
        except OSError:
            with contextlib.suppress(OSError):  # what it holds back can't be written either
                self._file.close()
            raise

    def _skips(self, event: dict[str, Any]) -> bool:
        key, state = (event["event"], event.get("process"), event.get("node")), event.get("state")
        last_s, last = self._last.get(key, (float("-inf"), None))
        if event["time"] - last_s < KEPT_EVERY_S and state in (None, last) and "why" not in event:
            return True
        self._last[key] = event["time"], state
        return False
