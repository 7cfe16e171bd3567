"""The last events of a job, bounded in number and in bytes: what observers who come late are told."""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import Iterable
from typing import Any

from ..logs import clean_all

Event = dict[str, Any]
MAX_EVENTS = 20_000  # older ones are forgotten; an observer sees the gap in the numbers
MAX_EVENT_BYTES = 16 * 1024 * 1024  # as many lines of 400 characters; of longer ones it is fewer
_FIXED_BYTES = 280  # of an event without its texts


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
        """Remember it, fit to be shown, and forget what is too much; the last one always stays."""
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
