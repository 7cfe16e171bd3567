"""Progress of filling a workspace, reported at intervals."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..messages import FillingMsg

TELL_EVERY_S = 0.5


class Progress:
    """Progress of one workspace; `tell` gets it, if anything is lacking."""

    def __init__(self, clock: Callable[[], float], tell: Callable[[FillingMsg], None]) -> None:
        self._clock, self._tell = clock, tell
        self._state, self._due_s = "", 0.0  # of the last report; when the next one is due
        self.files = self.bytes = self.received = 0

    def report(self, state: str) -> None:
        """Report a new state at once, else now and then."""
        if not self.files or (state == self._state and self._clock() < self._due_s):
            return
        self._state, self._due_s = state, self._clock() + TELL_EVERY_S
        self._tell({
            "type": "filling", "state": state,
            "files": self.files, "bytes": self.bytes, "received": self.received,
        })  # fmt: skip
