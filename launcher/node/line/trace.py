"""Trace of control messages, to diagnose hangs: a JSON object a line, with time, both sides, direction.

It leaves out secrets, values of variables, the user's commands, and output of programs.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from collections.abc import Mapping
from typing import IO, Any, Callable, final

Note = Callable[[str, Mapping[str, Any]], None]  # `sent` or `got`, and the message

MAX_ITEMS = 20  # of a list
MAX_CHARS = 500  # of a text
MAX_WAITING = 1000  # lines before `begin`
NAMES_ALONE = ("added_env", "env")
COUNTED = ("events", "tail", "setup")


def conceal(value: Any, key: str = "") -> Any:
    """Return a value without secrets and long lists or texts."""
    if key == "secret":
        return value and "left out"
    if key in NAMES_ALONE:
        return list(value) if isinstance(value, Mapping) else "left out"
    if key in COUNTED:
        return len(value) if isinstance(value, (list, tuple)) else "left out"
    if isinstance(value, Mapping):
        return {str(name): conceal(item, str(name)) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        more = [f"and {len(value) - MAX_ITEMS} more"] if len(value) > MAX_ITEMS else []
        return [*map(conceal, value[:MAX_ITEMS]), *more]
    return f"{value[:MAX_CHARS]}..." if isinstance(value, str) and len(value) > MAX_CHARS else value


@final  # so that `trace and trace.of(peer)` is a note or None
class Trace:
    """Messages that one side of a job sends and gets, kept in memory until `begin`."""

    def __init__(self, side: str) -> None:
        self._side = side
        self._waiting: list[str] = []
        self._file: IO[str] | None = None

    def begin(self, path: str) -> None:
        """Replace this file and write to it from now on. Raises OSError; may be called again."""
        if self._file is None:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            self._file = open(fd, "w", buffering=1, encoding="utf-8")  # noqa: SIM115 - closed in `close`
            waiting, self._waiting = self._waiting, []
            self._write("".join(waiting))

    def make_note(self, peer: str) -> Note:
        """Return a function that notes the messages of the line to this peer."""
        return functools.partial(self._note, peer)

    def _note(self, peer: str, direction: str, message: Mapping[str, Any]) -> None:
        line = {"time": round(time.time(), 6), "side": self._side, direction: message["type"], "peer": peer,
                "message": conceal(message)}  # fmt: skip
        self._write(json.dumps(line) + "\n")

    def _write(self, text: str) -> None:
        if self._file is None:
            self._waiting = [*self._waiting[-MAX_WAITING:], text]
            return
        with contextlib.suppress(OSError, ValueError):  # a full disk ends no job; ValueError: it is closed
            self._file.write(text)

    def close(self) -> None:
        """Note nothing more. May be called twice."""
        if self._file:
            with contextlib.suppress(OSError):
                self._file.close()
