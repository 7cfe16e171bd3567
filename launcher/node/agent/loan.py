"""Environment and processors that a trainer has from the process which its scheduler started for its rank."""

from __future__ import annotations

import os
import signal
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Callable

from pslaunch.runtime.shared import env

from .. import procs
from ..loop import Loop

# For the lender: its exit code; True if it has to end its own parent, too; length of a text for its standard
# error, which follows.
WORD = struct.Struct("<i?H")


class Loan:
    """Environment and processors lent by one process, which waits for the exit code of its trainer."""

    def __init__(
        self,
        sock: socket.socket,
        lender: procs.Proc,
        environ: Mapping[str, str],
        cpus: Sequence[int],
        describe: Callable[[], str] = str,
    ):
        """`describe` returns version and place of the program that started the lender."""
        self._sock, self._lender, self._environ, self._cpus = sock, lender, environ, cpus
        self.describe = describe
        self._loop: Loop | None = None

    def make_environ(self, argv: Sequence[str]) -> dict[str, str]:
        """Return the environment that the trainer inherits; it names the trainer's command."""
        said = env.describe_command(argv)
        return {**{k: v for k, v in self._environ.items() if k not in env.COMMAND_NAMES}, **said}

    @contextmanager
    def bind(self) -> Iterator[None]:
        """Bind everything started meanwhile to the lent processors."""
        before = os.sched_getaffinity(0)
        try:
            os.sched_setaffinity(0, self._cpus)
            yield
        finally:
            os.sched_setaffinity(0, before)

    def watch(self, loop: Loop, vanished: Callable[[], None]) -> None:
        """Call `vanished` if the lender ends before it is dismissed."""

        def report() -> None:
            loop.watch(self._sock.fileno())
            vanished()

        self._loop = loop
        loop.watch(self._sock.fileno(), read=report)

    def dismiss(self, code: int, *, alone: bool = False, text: bytes = b"") -> None:
        """Let the lender end with this exit code, also if it was stopped.

        alone: no head is reached, so nobody else can end the program that started it.
        """
        if self._loop and self._sock.fileno() >= 0:
            self._loop.watch(self._sock.fileno())
        with suppress(OSError):
            self._sock.sendall(WORD.pack(code, alone, len(text)) + text)
        self._sock.close()
        procs.send(self._lender, signal.SIGCONT)
