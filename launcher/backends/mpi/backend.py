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
from pathlib import Path
from typing import Any, Final

from ...errors import HostError, NodeLostError, ServiceError
from ...node import codes
from ...node.agent.rank import MPIRUN_FOLDER
from ...node.job import Limits, Node
from ..carried import CarriedBackend, CarrierError, Command
from ..failures import CarrierFailure
from ..gate_of_agents import Arrival, Offer
from ..lines import Line
from . import mpirun
from .spec import MpiHost, MpiReach

BRING_S: Final = 300.0  # for pip on hosts that get Open MPI


class MpiBackend(CarriedBackend[MpiReach]):
    name, carrier, unit, mode, printer = "mpi", "mpirun", "ranks", "rank", "spawn"
    failures = mpirun.FAILURES

    @contextlib.contextmanager
    def _prepare(self, reach: MpiReach, offer: Offer, program: Sequence[str]) -> Iterator[Command]:
        self.bring_s = BRING_S if reach.brought else 0.0
        # mpirun splits the words of its agent's command at blanks and colons.
        plain = re.fullmatch(r"[\w/.+-]+", tempfile.gettempdir())
        with contextlib.ExitStack() as at_end:
            try:
                place = tempfile.TemporaryDirectory(
                    prefix=MPIRUN_FOLDER, dir=None if plain else "/tmp", ignore_cleanup_errors=True
                )
                folder = at_end.enter_context(place)
                wheels = {Path(path).name: Path(path).read_bytes() for path in reach.wheels}
                for name, text in mpirun.make_files(reach, offer, wheels).items():
                    Path(folder, name).write_text(text)
            except OSError as e:
                raise ServiceError(f"mpirun can't be started: {e.strerror}") from e
            argv = mpirun.make_argv(reach, program, folder)
            env, after = mpirun.make_environ(reach, os.environ, folder), ["/bin/rm", "-rf", folder]
            yield Command(argv, env, [*after, mpirun.find_sessions(folder)])

    def _attribute(self, line: str, who: str) -> tuple[str, str]:
        if not (tag := mpirun.TAG.match(line)):
            return self.carrier, line
        text = line[tag.end() :].removeprefix(" " if self._reach.version[0] >= 5 else "")
        return self.carrier if tag[1] == "1" else f"{self.printer}/{tag[2]}", text

    def _make_order(self) -> dict[str, Any]:
        return {"tmpdir": os.environ.get("TMPDIR", "")}

    def _select(self, node: Node) -> MpiReach:
        host = next((h for h in self._reach.hosts if h.name == node.name), None)
        if self._reach.hosts and not host:
            raise NodeLostError(f"{node.name} is the name of no given host; give it as `hostname` prints it")
        host = host or MpiHost(node.name, None, 1)
        return mpirun.reduce_hosts(self._reach, [host])._replace(is_tagged=False)

    def try_start(self, nodes: Sequence[Node], limits: Limits) -> list[tuple[Node, Line | HostError]]:
        """Start as `start` does; then again and again without the hosts that let mpirun fail."""
        whole = self._reach = self._reach._replace(brought="", wheels=())  # a check makes nothing
        failed, started = dict[str, HostError](), list[tuple[Node, Line]]()
        try:
            while len(failed) < len(whole.hosts) or not whole.hosts:
                try:
                    started = self.start(nodes, limits)
                    break
                except CarrierError as e:
                    known = {host.name for host in self._reach.hosts}
                    if not (bad := known & {*e.cause.hosts}):
                        raise
                    step = {codes.RIGHTS: "authenticate", codes.HOST: "connect"}.get(e.exit_code, "mpirun")
                    failed |= {name: HostError(name, step, str(e)) for name in bad}
                    others = [host for host in whole.hosts if host.name not in failed]
                    self._reach = mpirun.reduce_hosts(whole, others)
        finally:
            self._reach = whole
        if not failed:
            return [*started]
        lines, found = iter(started), list[tuple[Node, Line | HostError]]()
        for i, host in enumerate(whole.hosts):
            node = whole.agents.node._replace(id=i, name=host.name, ranks=host.slots)
            found.append((node, failed.get(host.name) or next(lines)[1]))
        return found

    def _list_missing(self, came: Sequence[Arrival]) -> list[str]:
        there = {host.name for one in came if (host := self._find_host(one))}
        missing = [host.name for host in self._reach.hosts if host.name not in there]
        said = self._running.read_said() if self._running else ""
        return [name for name in missing if mpirun.REACHED.format(name) not in said] or missing

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
