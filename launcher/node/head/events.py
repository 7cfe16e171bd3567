"""The last events of a job, bounded in number and in bytes: what observers who come late are told."""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import Iterable
from typing import Any

from ..logs import clean_all
from ..shapes import check, is_code, is_failure_code, is_name, is_number

Event = dict[str, Any]
MAX_EVENTS = 20_000  # older ones are forgotten; an observer sees the gap in the numbers
MAX_EVENT_BYTES = 16 * 1024 * 1024  # as many lines of 400 characters; of longer ones it is fewer
_FIXED_BYTES = 280  # of an event without its texts

_FAILURE = {
    "what": str, "node": int, "code": is_failure_code, "text": str, "signal": (str, None), "log": str,
    "tail": [str], "advice": str,
}  # fmt: skip
PROGRESS = {
    "pass": int, "batch": int, "cost": is_number, "samples_per_s": is_number, "state": is_name, "why": str,
    "blames": is_name,
}  # fmt: skip
PROCESSES = [{"process": is_name, "node": int, "log": str}]
# What views rely on, by event, and by event and state; docs/events.md says what it means.
_SHAPES: dict[str, dict[str, Any]] = {
    "job": {
        "job": is_name, "name": str, "epoch": int, "backend": is_name, "server": is_name, "why": str,
        "workspace": str, "nodes": [{"id": int, "name": str}], "processes": PROCESSES,
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
    "ending": {"why": str, "grace_s": is_number},
    "end": {"code": is_code, "reason": str, "elapsed_s": is_number, "failure": (_FAILURE, None)},
}  # fmt: skip
_OF_NODE = {"source": (int, None), "received": int}
_OF_ALL = {"nodes": int, "elapsed_s": is_number}


def check_event(event: Event) -> None:
    """Raise ValueError where an event is none that a view could show; one of an unknown kind is fine."""
    check(event, {"n": int, "time": is_number, "event": is_name}, "an event")
    kind = event["event"]
    check(event, _SHAPES.get(kind, {}), kind)
    check(event, _SHAPES.get(f"{kind} {event.get('state')}", {}), kind)
    if kind == "dispatch":
        check(event, _OF_ALL if event["node"] is None else _OF_NODE, kind)
    elif kind == "end" and event["failure"] and not event["code"]:
        raise ValueError("a job that has failed can't end with 0")


def size_of(event: Event) -> int:
    """About how many bytes of memory it takes."""
    texts = [v if isinstance(v, str) else repr(v) for v in event.values() if isinstance(v, (str, list, dict))]
    return _FIXED_BYTES + sum(map(sys.getsizeof, texts))


class Recent:
    """Events in order of their numbers `n`, of which some may be missing."""

    def __init__(self, most: int = MAX_EVENTS, most_bytes: int = MAX_EVENT_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._events: deque[tuple[Event, int]] = deque()
        self._bytes = 0

    def add(self, event: Event) -> None:
        """Remember it, fit to be shown, and forget what is too much; the last one always stays.

        Raises ValueError where it is no event.
        """
        check_event(event)
        event = clean_all(event)
        size = size_of(event)
        self._events.append((event, size))
        self._bytes += size
        while len(self._events) > self._most or (self._bytes > self._most_bytes and len(self._events) > 1):
            self._bytes -= self._events.popleft()[1]

    def since(self, cursor: int, limit: int | None = None) -> list[Event]:
        """Those from number `cursor` on, at most `limit`."""
        new: Iterable[tuple[Event, int]] = itertools.takewhile(
            lambda kept: kept[0]["n"] >= cursor, reversed(self._events)
        )
        found = [event for event, _ in new]
        found.reverse()
        return found[:limit]
