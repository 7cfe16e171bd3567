"""The sending end of `from_launcher.py`: fills node 0, whose head passes the package on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import codes
from ..line.wire import MessageLine
from ..loop import Aside, Loop
from .dispatch import Supply
from .sender import Sender, Source


class ToHead:
    """Sender of a package over the line to a head. `give_up` gets the reason after an invalid request."""

    def __init__(
        self, loop: Loop, line: MessageLine[Any], supply: Supply | None, give_up: Callable[[str], None]
    ) -> None:
        self._loop, self._line, self._supply, self._give_up = loop, line, supply, give_up
        self._sender: Sender | None = None
        self._aside: Aside | None = None  # thread of `_sender`

    def hear(self, m: Any) -> None:
        """Carry out a request of the head for the package; ignore any other message."""
        if m["type"] == "wants" and self._supply:
            self._supply.get(self._send, self._refuse, None, lambda _far: None)
        elif m["type"] in ("lacks", "received") and self._sender:
            self._sender.obey(m, lambda e: self._give_up(f"asks for {e}"))

    def _refuse(self, e: Exception) -> None:
        code, text = codes.explain_failure(e)
        self._line.send({"type": "no_package", "code": code, "text": text})

    def _send(self, source: Source) -> None:
        if self._line.open and self._sender is None:
            self._aside = Aside(self._loop)
            self._sender = Sender(self._aside, source, self._line, fail=self._refuse)

    def close(self) -> None:
        """Send nothing more. May be called twice."""
        if self._aside and self._sender:
            self._aside.do(self._sender.close)
            self._aside.close()
        self._sender = self._aside = None
