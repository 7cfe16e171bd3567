"""Bytes on their way to a receiver: bounded, granted anew as they are written. Pure."""

from __future__ import annotations

from .sender import FIRST_BYTES, WINDOW_BYTES

GRANT_BYTES = 512 * 1024  # per grant: a message for fewer costs as much


class Window:
    """Bytes that the current sender may have on their way."""

    def __init__(self) -> None:
        self._waiting = 0  # in our memory
        self.open_anew()

    def open_anew(self) -> None:
        """Begin with another sender."""
        self._size, self._free = FIRST_BYTES, 0

    def take(self, count: int) -> bool:
        """Note bytes that have come; return False if they are more than were granted."""
        self._waiting += count
        return self._waiting <= WINDOW_BYTES

    def drop(self, count: int) -> None:
        """Note bytes that were written, or are not needed, of an earlier sender."""
        self._waiting -= count

    def free(self, count: int) -> int:
        """Note written bytes; return how many to grant now."""
        self.drop(count)
        self._free += count
        granted = self._free if self._free >= GRANT_BYTES else 0
        self._free -= granted
        return granted

    def widen(self) -> int:
        """Allow more on their way, at most twice as many; return how many to grant."""
        more = min(self._size, WINDOW_BYTES - self._size)
        self._size += more
        return more
