"""Places for unproven connections: a limited number, which silent strangers can't keep.

Standard library only, Python 3.9 or later. Pure: pservers and gates carry out its decisions.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from typing import Generic, TypeVar

MAX_UNPROVEN = 64  # unproven connections at a time
PATIENCE_S = 0.5  # after this even a connection that knows the secret may have to make room

T = TypeVar("T")


class Places(Generic[T]):
    """Connections in their places, the oldest first. A silent one loses its place to any newcomer."""

    def __init__(self) -> None:
        self._places: dict[T, tuple[str, float]] = {}  # source, and since when
        self._silent: dict[T, None] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._places))

    def __contains__(self, who: T) -> bool:
        return who in self._places

    def add(self, who: T, host: str, now_s: float) -> None:
        """Give a place to a connection from this host."""
        self._places[who] = find_source(host), now_s
        self._silent[who] = None

    def keep(self, who: T) -> None:
        """Keep a connection's place for a while: it knows the job's secret."""
        self._silent.pop(who, None)

    def remove(self, who: T) -> None:
        self._silent.pop(who, None)
        del self._places[who]

    def find_next_to_go(self, now_s: float) -> T | None:
        """Return the connection to drop: the oldest of the source with the most places, silent if possible.

        Processes of the job send their first bytes at once: silence is a stranger's. None: let others wait.
        """
        candidates = self._silent or self._places
        counts = Counter(self._places[who][0] for who in candidates)
        most = max(counts.values(), default=0)
        for who in candidates:
            source, since_s = self._places[who]
            if counts[source] == most:
                return who if self._silent or now_s - since_s >= PATIENCE_S else None
        return None


def find_source(host: str) -> str:
    """Return a source that a stranger can't multiply: this machine, an IPv4 address, an IPv6 network."""
    host = host.partition("%")[0].rpartition("::ffff:")[2]
    if host == "::1" or host.startswith("127."):
        return "this machine"
    return socket.inet_pton(socket.AF_INET6, host)[:8].hex() if ":" in host else host
