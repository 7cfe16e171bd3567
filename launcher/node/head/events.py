"""The last events of a job, bounded in number and bytes, for late observers; and their file."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pslaunch.runtime.shared.remedies import find_remedy

from ..later.record import RESTART
from ..logs import MAX_LINE_CHARS, clean, clean_all
from ..shapes import check_shape, is_code, is_count, is_failure_code, is_name, is_number, is_time

if TYPE_CHECKING:
    from ..messages import JobRecord

Event = dict[str, Any]
MAX_EVENTS = 20_000  # older ones are dropped; an observer sees a gap in the numbers
MAX_EVENT_BYTES = 16 * 1024 * 1024  # as many lines of 400 characters, fewer longer ones
KEPT_EVERY_S = 1.0  # at most so often the progress of one process, and of a dispatch to one node
KEPT_SHARE = 1e-3  # and after this share of the time so far: a job of days has some thousands of each
_FIXED_BYTES = 280  # of an event without its texts

_FAILURE = {
    "what": str, "node": int, "code": is_failure_code, "text": str, "signal": (str, None), "log": str,
    "tail": [str], "advice": str,
}  # fmt: skip
PROGRESS = {
    "pass": is_count, "passes": is_count, "batch": is_count, "batches": is_count, "cost": is_number,
    "samples_per_s": is_number, "dropped": int, "state": is_name, "why": str, "blames": is_name,
    "cpu_percent": is_number, "memory_bytes": is_count, "metric": is_number, "waited_s": is_time,
    "in_bytes": is_count, "out_bytes": is_count, "gpu_percent": is_number, "gpu_bytes": is_count,
    "cut": is_count,
}  # fmt: skip
PROCESSES = [{"process": is_name, "node": int, "log": str}]
# Fields used by views, by event, and by event and state; explained in docs/events.md.
_SHAPES: dict[str, dict[str, Any]] = {
    "job": {
        "job": is_name, "name": str, "epoch": int, "backend": is_name, "server": is_name, "why": str,
        "workspace": str, "nodes": [{"id": int, "name": str}], "processes": PROCESSES,
        "version?": str, "plan?": dict,
    },
    "node": {"node": int, "state": is_name, "text": str},
    "dispatch": {"node": (int, None), "state": is_name, "files": int, "bytes": int},
    "process": {"process": is_name, "node": int, "state": is_name},
    "process running": {"pid": int},
    "process exited": {"code": is_code, "signal": (is_name, None)},
    "progress": {"process": is_name, **{f"{name}?": shape for name, shape in PROGRESS.items()}},
    "line": {"process": is_name, "text": str, "more?": bool},
    "gap": {"process": is_name, "bytes": int},
    "note": {"level?": is_name, "text": str, "missing?": int},
    "restart": {"state": is_name, **RESTART},
    "restart ending": {"failure": _FAILURE},
    "ending": {"why": str, "grace_s": is_time},
    "end": {"code": is_code, "reason": str, "elapsed_s": is_time, "failure": (_FAILURE, None)},
}  # fmt: skip
OF_END = ("code", "reason", "elapsed_s", "failure")  # fields of `end`, also in the record of a job
_OF_NODE = {"source": (int, None), "received": int}
_OF_ALL = {"nodes": int, "elapsed_s": is_time}


def check_event(event: Event) -> None:
    """Raise ValueError for an event that no view could show; unknown kinds are accepted."""
    check_shape(event, {"n": int, "time": is_time, "event": is_name}, "an event")
    kind = event["event"]
    check_shape(event, _SHAPES.get(kind, {}), kind)
    check_shape(event, _SHAPES.get(f"{kind} {event.get('state')}", {}), kind)
    if kind == "dispatch":
        check_shape(event, _OF_ALL if event["node"] is None else _OF_NODE, kind)
    elif kind == "end" and event["failure"] and not event["code"]:
        raise ValueError("a job that has failed can't end with 0")


def make_end(record: JobRecord) -> Event | None:
    """Return the event `end` from the record of a job; None if the record has no end."""
    with contextlib.suppress(KeyError, TypeError, ValueError, RecursionError):
        time_s = round(record["started"] + record["elapsed_s"], 3)
        end: Event = {"n": 0, "time": time_s, "event": "end", **{key: record.get(key) for key in OF_END}}
        check_event(end)
        return end
    return None


def clean_event(event: Event) -> Event:
    """Return an event that any view can show, its texts cleaned. Raises ValueError as `check_event` does."""
    n, time, process, text, more = map(event.get, ("n", "time", "process", "text", "more"))
    # Nearly all events are lines of programs: the same in a tenth of the time.
    if (
        event.get("event") == "line"
        and len(event) == (6 if "more" in event else 5)
        and (type(more) is bool or "more" not in event)
        and type(n) is int
        and is_number(n)
        and is_time(time)
        and is_name(process)
        and type(text) is str
    ):
        return {**event, "process": clean(event["process"]), "text": clean(text)[:MAX_LINE_CHARS]}
    check_event(event)
    cleaned: Event = clean_all(event)
    return cleaned


def estimate_size(event: Event) -> int:
    if event["event"] == "line":
        return _FIXED_BYTES + sys.getsizeof(event["process"]) + sys.getsizeof(event["text"])
    texts = [v if isinstance(v, str) else repr(v) for v in event.values() if isinstance(v, (str, list, dict))]
    return _FIXED_BYTES + sum(map(sys.getsizeof, texts))


class RecentEvents:
    """Events in order of their numbers `n`, some perhaps missing."""

    def __init__(self) -> None:
        self._events: deque[tuple[Event, int]] = deque()
        self._bytes = 0
        self._job: list[Event] = []  # the one that describes the job, once it is among the dropped ones

    def add(self, event: Event) -> Event:
        """Clean, keep and return an event. Raises ValueError."""
        return self.keep(clean_event(event))

    def keep(self, event: Event) -> Event:
        """Keep and return a cleaned event; drop the oldest beyond the limits, never it."""
        size = estimate_size(event)
        self._events.append((event, size))
        self._bytes += size
        while len(self._events) > MAX_EVENTS or (self._bytes > MAX_EVENT_BYTES and len(self._events) > 1):
            dropped, size = self._events.popleft()
            self._bytes -= size
            self._job += [dropped] if dropped["event"] == "job" else []
        return event

    def list_since(self, cursor: int, limit: int | None = None, limit_bytes: float = math.inf) -> list[Event]:
        """Return the events from number `cursor` on: at most `limit`, none after `limit_bytes` of memory.

        What describes the job is kept for all who come late.
        """
        found = [event for event in self._job if cursor <= event["n"]]
        # From the newest on: most observers have nearly all. At most so many: some may be missing.
        most = self._events[-1][0]["n"] + 1 - cursor if self._events else 0
        newest = [*itertools.islice(reversed(self._events), min(max(0, most), len(self._events)))]
        wanted = itertools.dropwhile(lambda kept: kept[0]["n"] < cursor, reversed(newest))
        for event, size in itertools.islice(wanted, None if limit is None else limit - len(found)):
            if limit_bytes <= 0:
                break
            limit_bytes -= size
            found.append(event)
        return found

    def list_with_gaps(self, cursor: int) -> list[Event]:
        """Return the events from number `cursor` on, with a note in the place of those that are missing."""
        told: list[Event] = []
        for event in self.list_since(cursor):
            if (count := event["n"] - cursor) > 0:
                text = f"{count} lines are left out here because there were too many; see the logs"
                note = {"event": "note", "level": "warning", "text": text, "missing": count}
                told.append({"n": event["n"] - 1, "time": event["time"], **note})
            told.append(event)
            cursor = event["n"] + 1
        return told


def note_state(states: dict[str, dict[str, Any]], event: Event) -> None:
    """Update the last state of each process by an event."""
    if event["event"] not in ("process", "progress"):
        return
    fixed = ("n", "time", "event", "process", "node")
    news = {key: value for key, value in event.items() if key not in fixed and value is not None}
    if event["event"] == "progress" and "state" in news:
        news["said"] = news.pop("state")
    elif news.get("state") == "running":  # anew, after a restart
        states[event["process"]].clear()
    states[event["process"]].update(news)


class EventFile:
    """The file `events.jsonl` beside the logs, without output: a JSON object a line."""

    def __init__(self, path: str) -> None:
        """Replace the file. Raises OSError."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
        self._file = os.fdopen(fd, "w", buffering=1, encoding="utf-8")
        self._first_s: float | None = None  # of the first event
        self._last: dict[Any, tuple[float, Any]] = {}  # time and state of the last one written
        self._skipped: dict[Any, Event] = {}  # fields of those after it

    def write(self, event: Event) -> None:
        """Write an event unless it is output or comes too soon; close after the last. Raises OSError."""
        kind, key = event["event"], (event["event"], event.get("process"), event.get("node"))
        if kind in ("line", "gap") or (kind in ("progress", "dispatch") and self._skips(key, event)):
            return
        due = [k for k in self._skipped if kind == "end" or (kind == "process" and k[1] == event["process"])]
        try:
            for told in (*map(self._skipped.pop, due), {**self._skipped.pop(key, {}), **event}):
                self._file.write(f"{json.dumps(told)}\n")
            if kind == "end":
                self._file.close()
        except OSError:
            with contextlib.suppress(OSError):  # what it holds back can't be written either
                self._file.close()
            raise

    def _skips(self, key: Any, event: Event) -> bool:
        state, (last_s, last) = event.get("state"), self._last.get(key, (float("-inf"), None))
        self._first_s = event["time"] if self._first_s is None else self._first_s
        rest_s = max(KEPT_EVERY_S, KEPT_SHARE * (event["time"] - self._first_s))
        if event["time"] - last_s < rest_s and state in (None, last) and "why" not in event:
            self._skipped.setdefault(key, {}).update(event)
            return True
        self._last[key] = event["time"], state
        return False


class EventLog:
    """Events of a job as its head tells them, with numbers and times, and the last state of each process."""

    def __init__(self, wall_clock: Callable[[], float], processes: Iterable[str]) -> None:
        self._wall, self._recent = wall_clock, RecentEvents()
        self._file: EventFile | None = None
        self._path = ""  # of the file, once it is there
        self.next = 0  # number of the next event
        self.begin: Event = {}  # the event `job`, which is not dropped with the oldest
        self.states: dict[str, dict[str, Any]] = {process: {"state": "waiting"} for process in processes}

    def tell(self, event: str, **fields: Any) -> None:
        told = {"n": self.next, "time": round(self._wall(), 3), "event": event, **fields}
        # Nearly all events are lines, which were cleaned when they were split.
        kept = self._recent.keep(told) if event == "line" else self._recent.add(told)
        self.next += 1
        self.begin = self.begin or kept
        if self._file:
            self._write([kept])
        note_state(self.states, kept)

    def keep_in(self, path: str) -> None:
        """Write the events, past ones too, to a file without output. A second call does nothing."""
        if not self._path:
            self._path = path
            self._write(self._recent.list_since(0))

    def _write(self, events: Sequence[Event]) -> None:
        try:
            self._file = self._file or EventFile(self._path)
            for event in events:
                self._file.write(event)
        except OSError as e:
            self._file = None
            if not any(event["event"] == "end" for event in events):  # which is the last one
                why = f"can't be written, and is left out: {e.strerror}{find_remedy(e)}"
                self.tell("note", level="warning", text=f"{self._path} {why}")

    def list_events(
        self, cursor: int, limit: int | None = None, limit_bytes: float = math.inf
    ) -> tuple[list[Event], int]:
        """Return the events still kept from number `cursor` on, at most as many, and the next cursor."""
        found = self._recent.list_since(cursor, limit, limit_bytes)
        return found, found[-1]["n"] + 1 if found else self.next
