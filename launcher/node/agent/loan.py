"""Environment and processors that a trainer has from the process which its scheduler started for its rank.

What trainers spawn as ranks of MPI (MPI_Comm_spawn) are children of Open MPI's daemons, not ours: it is found
by its mark.
"""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Callable

from pslaunch.runtime.shared import env

from .. import procs
from ..ending import NEVER
from ..loop import Loop
from ..marked import SPAWNER, Marked

VERSION = "OMPI_VERSION"  # of Open MPI 5
SPAWNED_SETTLE_S = 1.0  # for what was spawned to end by itself, after the trainers
LOOK_EVERY_S = 0.02  # no event when a process ends that is not our child


class Loan:
    """Environment and processors lent by one process, which waits for the exit code of its trainer."""

    def __init__(
        self,
        sock: socket.socket,
        lender: procs.Proc,
        environ: Mapping[str, str],
        cpus: Sequence[int],
    ):
        self._sock, self.lender, self.environ, self.cpus = sock, lender, environ, cpus

    @property
    def spawner(self) -> str:
        """Name of the daemon that starts what the trainer spawns; "": none."""
        return self.environ.get(SPAWNER, "")

    def make_environ(self, argv: Sequence[str]) -> dict[str, str]:
        """Return the environment that the trainer inherits; it names the trainer's command."""
        said = env.describe_command(argv)
        return {**{k: v for k, v in self.environ.items() if k not in env.COMMAND_NAMES}, **said}

    def fileno(self) -> int:
        """Return the descriptor that is ready once the lender has ended."""
        return self._sock.fileno()

    def dismiss(self, code: int, *, alone: bool = False, text: str = "") -> None:
        """Let the lender end with this exit code, also if it was stopped.

        alone: no head is reached, so nobody else can end the program that started it. text: for the lender's
        standard error.
        """
        with suppress(OSError):
            self._sock.sendall(f"{json.dumps([code, alone, text])}\n".encode())
        self._sock.close()
        procs.send(self.lender, signal.SIGCONT)


class Loans(dict[str, Loan]):
    """The loans of a node, by program, and the end of what their trainers have spawned."""

    def __init__(self, loop: Loop, loans: Mapping[str, Loan]) -> None:
        super().__init__(loans)
        self._loop, self._kill_s = loop, NEVER
        self._spawned = Marked(loan.spawner for loan in loans.values())
        self.left: list[int] = []  # of the spawned: can't be ended

    def signal(self, keys: Iterable[str], number: int, grace_s: float) -> None:
        """Signal what was spawned if it is so for the trainers among `keys`."""
        if not self.keys().isdisjoint(keys):
            self._kill_s = min(self._kill_s, self._loop.now() + (number != signal.SIGKILL) * grace_s)
            self._spawned.send(number)

    def renew(self) -> None:
        """Forget the end of what was spawned: other trainers have the same loans."""
        self._kill_s = NEVER

    def end_spawned(self, grace_s: float, then: Callable[[], None]) -> None:
        """Call `then` when nothing spawned lives: it has TERM soon, if not before, KILL after the grace."""
        term_s = self._loop.now() + min(SPAWNED_SETTLE_S, grace_s / 2)
        self._kill_s = min(self._kill_s, self._loop.now() + grace_s)

        def look() -> None:
            now = self._loop.now()
            number = signal.SIGKILL if now >= self._kill_s else signal.SIGTERM if now >= term_s else 0
            self.left = self._spawned.send(number)
            if self.left and now < self._kill_s + procs.KILL_LIMIT_S:
                self._loop.call_after(LOOK_EVERY_S, look)
            else:
                then()

        look()
