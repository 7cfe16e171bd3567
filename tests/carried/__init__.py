"""A backend from outside: a package with a face, its backend, and an entry point in pyproject.toml.

As with mpirun, one process carries all agents, and they say by themselves which nodes there are: they dial a
gate of the launcher and prove a secret. Each brings the ranks of its trainers. Here all are on this machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from pslaunch.backends.base import Backend
from pslaunch.backends.face import CHECK, CommandLine, Face
from pslaunch.backends.here import NODE, Here
from pslaunch.backends.lines import CLOSE_EXTRA_S, Dial, Ended, Line
from pslaunch.backends.local.options import OPTIONS
from pslaunch.backends.local.spec import make_local_spec
from pslaunch.errors import ServiceError
from pslaunch.node.job import Limits, Node, Plan
from pslaunch.node.line.gate import Gate
from pslaunch.node.loop import Loop
from pslaunch.options.kinds import Text
from pslaunch.options.options import Option, join_rows
from pslaunch.options.spec import Elsewhere, JobSpec

NAME = "carried"
CARRIER = Option(name="carrier", metavar="NAME", kind=Text(), default="cart", help="Name of the carrier.")

# Starts keepers, each with its word where to dial, and stays as long as any of them.
_CARRY = """
import json, subprocess, sys
argv, words = json.loads(sys.stdin.readline())
keepers = [subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True) for _ in words]
for keeper, word in zip(keepers, words):
    keeper.stdin.write(word.encode("latin-1"))
    keeper.stdin.close()
for keeper in keepers:
    keeper.wait()
"""


class Reach(NamedTuple):
    """Nodes for the backend to find, as they will report themselves."""

    nodes: tuple[Node, ...]
    carrier: str


class CarriedBackend(Here):
    """Agents that one process carries, and that dial the launcher."""

    def __init__(self, reach: Reach) -> None:
        super().__init__(NAME)
        self._nodes, self._name = {node.id: node for node in reach.nodes}, reach.carrier
        self._carrier: subprocess.Popen[bytes] | None = None

    def start(self, nodes: Sequence[Node], limits: Limits) -> list[tuple[Node, Line]]:
        assert not nodes, "the nodes of this backend are found, not declared"
        came: dict[int, Line] = {}

        def check(text: bytes) -> str:
            node = json.loads(text)["node"]
            return "" if node in self._nodes.keys() - came.keys() else f"node {node} is none that is awaited"

        def admit(text: bytes, line: Line) -> None:
            came[json.loads(text)["node"]] = line._replace(diagnosis=self._words)

        loop, secret = Loop(), os.urandom(32)
        gate = Gate(loop, "127.0.0.1", secret, check=check, admit=admit, note_refusal=lambda _why: None)
        try:
            carrier = self._carry(limits, gate.port, secret)
            loop.watch(carrier, read=lambda: loop.watch(carrier))
            loop.run(lambda: len(came) == len(self._nodes) or self._is_gone())
        finally:
            gate.close()
            loop.close()
        if self._is_gone():
            for line in came.values():
                line.close()
            raise ServiceError(f"not all agents came: {self._words()}")
        return [(self._nodes[i], came[i]) for i in sorted(came)]

    def _carry(self, limits: Limits, port: int, secret: bytes) -> int:
        self._grace_s = limits.grace_s
        keeper = [*NODE, "keeper", str(limits.lost_after_s), str(limits.grace_s), "dial"]
        dial = Dial(("127.0.0.1",), port, secret.hex())
        self._carrier = subprocess.Popen(
            [sys.executable, "-c", _CARRY], stdin=subprocess.PIPE, start_new_session=True
        )
        assert self._carrier.stdin
        with self._carrier.stdin as f:
            words = [dial.encode(node).decode("latin-1") for node in self._nodes.values()]
            f.write(json.dumps([keeper, words]).encode() + b"\n")
        self.ended = Ended(
            os.pidfd_open(self._carrier.pid), f"the carrier {self._name}", lambda: (self._words(), True)
        )
        return self.ended.fd

    def _is_gone(self) -> bool:
        return self._carrier is not None and self._carrier.poll() is not None

    def _words(self) -> str:
        code = self._carrier.wait() if self._is_gone() and self._carrier else 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        return f"it {how}" if self._is_gone() else ""

    def cancel(self) -> None:
        if self._carrier:
            self._carrier.terminate()

    def close(self) -> None:
        if self._carrier:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._carrier.wait(self._grace_s + CLOSE_EXTRA_S)
            self._carrier.kill()
            self._carrier.wait()
        if self.ended:
            os.close(self.ended.fd)
        self.ended = self._carrier = None


class CarriedFace(Face):
    """Face of `pslaunch carried`."""

    name = NAME
    helps: ClassVar = {
        "": "Run one job on agents that are carried.\n\nIts options are those of `pslaunch local`.",
        CHECK: "Check the nodes that agents bring.",
    }
    place: ClassVar = {"carrier": ("NAME", "Ask this carrier. [default: the jobs known on this machine]")}

    def list_options(self) -> Sequence[Option]:
        return join_rows([CARRIER], OPTIONS)

    def list_refused(self) -> Mapping[str, str]:
        return {"wheels": "a carrier has legs; leave {} out"}

    def make_spec(self, line: CommandLine) -> JobSpec:
        """Return the job of a simulated cluster, whose nodes are not declared; trainer 0 is on node 0."""
        spec = make_local_spec(line)
        ranks, nodes = range(spec.worker_num or 1), spec.site.nodes
        own = [tuple(rank for rank in ranks if -rank % len(nodes) == node.id) for node in nodes]
        found = tuple(node._replace(trainers=t) for node, t in zip(nodes, own, strict=True))
        reach = Reach(found, line.given.read("carrier"))
        site = spec.site._replace(nodes=(), expected=found, reach=reach)
        return spec._replace(draft=spec.draft._replace(backend=NAME), site=site)

    def make_backend(self, reach: Reach | None) -> Backend:
        return CarriedBackend(reach or Reach((), "cart"))

    def describe_start(self, reach: Reach, plan: Plan) -> Mapping[str, Any]:
        return {"argv": [reach.carrier, "{keepers}"]}

    def find_place(self, values: Mapping[str, str], cwd: Path) -> Elsewhere:
        return Elsewhere(NAME, Reach((), values["carrier"]), f"carrier {values['carrier']}")


FACE = CarriedFace()
