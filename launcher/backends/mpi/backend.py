"""The Open MPI backend: mpirun starts rank processes, which lend themselves to agents.

The first rank process of a host forks an agent out of mpirun's processes (node/agent/rank.py); the rest is
that of all carriers (../carried.py).
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from ...errors import NodeLostError, ServiceError
from ...node.agent.brought import SECRET_VARIABLE
from ...node.job import Node
from ..carried import CarriedBackend, Cause
from ..gate_of_agents import Arrival
from ..leash import Leashed
from . import mpirun
from .spec import MpiHost, MpiReach, list_expected

NOT_STARTED: Final = "mpirun can't be started"


class MpiBackend(CarriedBackend[MpiReach]):
    """Agents of mpirun's ranks."""

    name, carrier, unit, mode = "mpi", "mpirun", "ranks", "rank"

    def _prepare(self, reach: MpiReach) -> AbstractContextManager[str]:
        return hold_folder(reach)

    def _run(
        self,
        reach: MpiReach,
        program: Sequence[str],
        secret: bytes,
        place: str,
        stdout: int | None = None,
    ) -> Leashed:
        argv = mpirun.make_argv(reach, program, place, [SECRET_VARIABLE])
        env = mpirun.make_environ(reach, os.environ, place)
        env[SECRET_VARIABLE] = secret.hex()
        try:
            return Leashed(argv, env, self._grace_s, removed=[place], stdout=stdout)
        except OSError as e:
            raise ServiceError(f"{NOT_STARTED}: {e.strerror}") from e

    def _select(self, node: Node) -> MpiReach:
        host = next((h for h in self._reach.hosts if h.name == node.name), None)
        if self._reach.hosts and not host:
            raise NodeLostError(f"{node.name} is the name of no given host; give it as `hostname` prints it")
        host = host or MpiHost(node.name, None, 1)
        return self._reach._replace(ranks=1, hosts=(host._replace(slots=1),))

    def _list_missing(self, came: Sequence[Arrival]) -> list[str]:
        """Return the names of hosts without an agent."""
        there = {host.name for one in came if (host := self._find_host(one))}
        return [host.name for host in self._reach.hosts if host.name not in there]

    def _find_host(self, one: Arrival) -> MpiHost | None:
        """Return the host of an agent, as the user named it."""
        for host in self._reach.hosts:
            if one.has_name(host.name):
                return host
        # A name that only ssh's configuration knows: its ranks are those planned for it.
        for node, host in zip(list_expected(self._reach), self._reach.hosts, strict=False):
            if (node.name, node.trainers) == (host.name, one.trainers):
                return host
        return None

    def _make_node(self, number: int, one: Arrival) -> Node:
        host = self._find_host(one)
        return self._reach.node._replace(
            id=number, name=host.name if host else one.host, ranks=len(one.trainers), trainers=one.trainers
        )

    def _find_cause(self, output: str) -> Cause:
        return mpirun.find_cause(output, self._reach)

    def _read_last_lines(self, output: str) -> str:
        return mpirun.read_last_lines(output)


@contextlib.contextmanager
def hold_folder(reach: MpiReach) -> Iterator[str]:
    """Yield a new folder with mpirun's files, which is removed afterwards. Raises ServiceError."""
    # mpirun splits the words of its agent's command at blanks and colons.
    plain = re.fullmatch(r"[\w/.+-]+", tempfile.gettempdir())
    with contextlib.ExitStack() as at_end:
        try:
            place = tempfile.TemporaryDirectory(
                prefix="pslaunch-mpirun-", dir=None if plain else "/tmp", ignore_cleanup_errors=True
            )
            folder = at_end.enter_context(place)
            for name, text in mpirun.make_files(reach).items():
                Path(folder, name).write_text(text)
        except OSError as e:
            raise ServiceError(f"{NOT_STARTED}: {e.strerror}") from e
        yield folder
