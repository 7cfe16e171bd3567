"""The Slurm backend: one step of srun starts an agent on each node, which dials the launcher.

The process that srun starts is the node's keeper; the rest is that of all carriers (../carried.py). Without
an allocation, salloc gets one, and whatever is killed, a scancel of its unique name follows.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import posixpath
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from ...errors import NodeLostError, PreflightError, ServiceError
from ...node import codes
from ...node.job import Limits, Node
from ..carried import CarriedBackend, Command
from ..failures import CarrierFailure
from ..gate_of_agents import Arrival, Offer
from ..here import ask_command
from ..leash import Leashed
from ..lines import Line, News
from . import words
from .spec import SlurmReach

SILENCE_REMEDY: Final = (
    "scontrol ping must find it: use a login node, or set SLURM_CONF to the cluster's slurm.conf"
)
SINFO_S: Final = 10.0  # limit for squeue, and the time between two looks at the queue
QUEUE_LOOK_S: Final = 0.05  # between two looks at what salloc says
HOLD_S: Final = 1.0  # for agents to end after a launcher that is gone, beyond the grace


class SlurmBackend(CarriedBackend[SlurmReach]):
    name, carrier, unit, mode, printer = "slurm", "srun", "nodes", "task", "srun"
    failures = words.FAILURES

    def start(self, nodes: Sequence[Node], limits: Limits) -> list[tuple[Node, Line]]:
        if nodes:  # of the epoch before; the allocation may have more
            self._reach = self._reach._replace(only=",".join(node.name for node in nodes))
        return super().start(nodes, limits)

    @contextlib.contextmanager
    def _prepare(self, reach: SlurmReach, _offer: Offer, program: Sequence[str]) -> Iterator[Command]:
        if not reach.job:
            self._allocate()
        yield Command(words.make_step(reach, self._reach.job, program), os.environ)

    def _allocate(self) -> None:
        """Wait in the queue for an allocation. Raises PslaunchError."""
        if silence := find_silence():  # salloc would try for seconds
            raise ServiceError(f"{silence}; {SILENCE_REMEDY}")
        name = f"{posixpath.basename(self._reach.agents.node.workspace)}-{os.urandom(4).hex()}"
        after = ["scancel", "--quiet", f"--name={name}", f"--user={getpass.getuser()}"]
        argv = words.make_allocation(self._reach, name)
        held = Leashed(argv, os.environ, self._grace_s + HOLD_S, after=after)
        self._runs.append(held)
        reason, next_look_s = "", 0.0
        while not held.wait(QUEUE_LOOK_S):
            if self._cancelled.is_set():
                raise ServiceError("the job was ended while it waited for an allocation")
            said = held.read_said()
            if match := re.search(rf"^{words.READY}(\d+)$", said, re.M):
                self._reach = self._reach._replace(job=match[1])
                return
            pending = re.search(r"Pending job allocation (\d+)", said)
            if pending and time.monotonic() >= next_look_s:
                next_look_s = time.monotonic() + SINFO_S
                reason = self._tell_reason(pending[1], reason)
        cause = self.failures.find_cause(held.read_said())
        raise PreflightError(f"no allocation: {cause.text}", cause.code)

    def _tell_reason(self, job: str, before: str) -> str:
        """Tell why a job waits in the queue, unless it did before. Raises PreflightError for no use in it."""
        said = ask_slurm("squeue", "--noheader", f"--jobs={job}", "--format=%r")
        reason = said.stdout.strip() or before
        if reason in words.HOPELESS:
            raise PreflightError(
                f"Slurm would never start the job: {reason}; it asked for {' '.join(self._reach.args)}, "
                "and sinfo prints what there is",
                codes.USAGE,
            )
        if reason != before and self.tell:
            self.tell(News(f"job {job} of Slurm waits in the queue: {reason}", level="info"))
        return reason

    def _select(self, node: Node) -> SlurmReach:
        if not self._reach.job:
            raise NodeLostError(f"{node.name}: the job has no allocation any more")
        return self._reach._replace(agents=self._reach.agents._replace(ranks=1), only=node.name)

    def _make_order(self) -> dict[str, Any]:
        names = {"host": "SLURMD_NODENAME", "number": "SLURM_PROCID", "of": "SLURM_NTASKS"}
        return {**names, "own": words.OF_TASK, "asker": "Slurm"}

    def _make_node(self, number: int, one: Arrival) -> Node:
        return self._reach.agents.node._replace(id=number, name=one.host)

    def _find_cause(self, output: str) -> CarrierFailure:
        return words.find_end(output) or super()._find_cause(output)

    def explain_end(self, code: int) -> tuple[str, int]:
        cause = words.find_end(self._running.read_said()) if self._running else None
        return (cause.text, cause.code) if cause else ("", code)


def find_silence() -> str:
    """Return why the controller is not reached, "" if it answers. Raises ServiceError."""
    ping = ask_slurm("scontrol", "ping")
    said = (ping.stdout + ping.stderr).strip().partition("\n")[0]
    return "" if " is UP" in said else f"Slurm's controller does not answer: {said}"


def ask_slurm(*argv: str) -> subprocess.CompletedProcess[str]:
    """Return what a command of Slurm says. Raises ServiceError without an answer in time."""
    return ask_command(argv, SINFO_S, lambda why: ServiceError(f"{argv[0]} {why}; scontrol ping must work"))
