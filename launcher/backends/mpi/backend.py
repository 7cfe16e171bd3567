"""The Open MPI backend: mpirun starts rank processes, which lend themselves to agents.

The first rank process of a host forks an agent out of mpirun's processes (node/agent/rank.py); the rest is
that of all carriers (../carried.py).
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ...errors import NodeLostError, ServiceError
from ...node.agent.brought import SECRET_VARIABLE
from ...node.job import Node
from ..carried import CarriedBackend
from ..failures import CarrierFailure
from ..gate_of_agents import Arrival
from . import mpirun
from .spec import MpiHost, MpiReach


class MpiBackend(CarriedBackend[MpiReach]):
    name, carrier, unit, mode = "mpi", "mpirun", "ranks", "rank"
    failures = mpirun.FAILURES

    @contextlib.contextmanager
    def _prepare(self, reach: MpiReach) -> Iterator[str]:
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
                raise ServiceError(f"mpirun can't be started: {e.strerror}") from e
            yield folder

    def _make_command(
        self, reach: MpiReach, program: Sequence[str], place: str
    ) -> tuple[Sequence[str], Mapping[str, str], Sequence[str]]:
        argv = mpirun.make_argv(reach, program, place, [SECRET_VARIABLE])
        return argv, mpirun.make_environ(reach, os.environ, place), [
            "rm", "-rf", place, mpirun.find_sessions(place),
        ]  # fmt: skip

    def _select(self, node: Node) -> MpiReach:
        host = next((h for h in self._reach.hosts if h.name == node.name), None)
        if self._reach.hosts and not host:
            raise NodeLostError(f"{node.name} is the name of no given host; give it as `hostname` prints it")
        host = host or MpiHost(node.name, None, 1)
        return self._reach._replace(
            hosts=(host._replace(slots=1),), agents=self._reach.agents._replace(ranks=1)
        )

    def _list_missing(self, came: Sequence[Arrival]) -> list[str]:
        there = {host.name for one in came if (host := self._find_host(one))}
        return [host.name for host in self._reach.hosts if host.name not in there]

    def _find_host(self, one: Arrival) -> MpiHost | None:
        """Return the host of an agent, as the user named it."""
        for host in self._reach.hosts:
            if one.has_name(host.name):
                return host
        # A name that only ssh's configuration knows: its ranks are those planned for it.
        for node, host in zip(self._reach.list_expected(), self._reach.hosts, strict=False):
            if (node.name, node.trainers) == (host.name, one.trainers):
                return host
        return None

    def _make_node(self, number: int, one: Arrival) -> Node:
        host = self._find_host(one)
        return self._reach.agents.node._replace(
            id=number, name=host.name if host else one.host, ranks=len(one.trainers), trainers=one.trainers
        )

    def _find_cause(self, output: str) -> CarrierFailure:
        return mpirun.find_cause(output, self._reach)
