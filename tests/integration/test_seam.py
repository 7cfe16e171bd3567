"""A backend from outside, all of it in this file: an entry point, its command, and the contract it keeps.

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
from typing import Any, NamedTuple

import pytest
import typer

from integration import test_contract, test_contract_training
from pslaunch import cli
from pslaunch.backends.base import CLOSE_EXTRA_S, Dial, Ended, Line
from pslaunch.backends.local import NODE, LocalBackend
from pslaunch.check.check import check
from pslaunch.errors import HostError, ServiceError
from pslaunch.node import codes
from pslaunch.node.job import Limits, Node, Plan
from pslaunch.node.line.gate import Gate, Seals
from pslaunch.node.loop import Loop
from pslaunch.options.args import Split
from pslaunch.options.local_spec import make_local_spec
from pslaunch.options.sources import Given
from pslaunch.options.spec import JobSpec
from support.jobs import PSLAUNCH, QUICK, LocalPlace, Place, finished, parent_of, running, until_nothing_runs

ALONE = test_contract.ALONE
NAME = "carried"
NODES = 3
ENTRY_POINT = f"[pslaunch.backends]\n{NAME} = integration.test_seam\n"

# Starts keepers, each with its word where to dial, and stays as long as any of them.
CARRIER = """
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


def make_backend(reach: Reach | None) -> CarriedBackend:
    return CarriedBackend(reach.nodes if reach else ())


def describe_start(_reach: Reach, _plan: Plan) -> dict[str, Any]:
    return {"argv": ["carrier", "{keepers}"]}


def to_data(_reach: Reach) -> None:
    """Its head is in the launcher: later shells have nothing to reach."""


from_data = to_data


class CarriedBackend(LocalBackend):
    """Agents that one process carries, and that dial the launcher."""

    name = NAME

    def __init__(self, nodes: Sequence[Node]) -> None:
        super().__init__()
        self._nodes = {node.id: node for node in nodes}
        self._carrier: subprocess.Popen[bytes] | None = None

    def start(self, nodes: Sequence[Node], limits: Limits) -> list[tuple[Node, Line]]:
        assert not nodes, "the nodes of this backend are found, not declared"
        came: dict[int, Line] = {}

        def check(text: bytes) -> str:
            node = json.loads(text)["node"]
            return "" if node in self._nodes.keys() - came.keys() else f"node {node} is none that is awaited"

        def admit(text: bytes, fd: int, seals: Seals) -> None:
            came[json.loads(text)["node"]] = Line(fd, fd, self._words, seals)

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

    def try_start(self, nodes: Sequence[Node], limits: Limits) -> list[tuple[Node, Line | HostError]]:
        return [*self.start(nodes, limits)]

    def _carry(self, limits: Limits, port: int, secret: bytes) -> int:
        self._grace_s = limits.grace_s
        keeper = [*NODE, "keeper", str(limits.lost_after_s), str(limits.grace_s), "dial"]
        dial = Dial(("127.0.0.1",), port, secret.hex())
        self._carrier = subprocess.Popen(
            [sys.executable, "-c", CARRIER], stdin=subprocess.PIPE, start_new_session=True
        )
        assert self._carrier.stdin
        with self._carrier.stdin as f:
            words = [dial.encode(node).decode("latin-1") for node in self._nodes.values()]
            f.write(json.dumps([keeper, words]).encode() + b"\n")
        self.ended = Ended(os.pidfd_open(self._carrier.pid), "the carrier", lambda: (self._words(), True))
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


def carried_spec(given: Given, split: Split, *, cwd: Path, environ: Mapping[str, str]) -> JobSpec:
    """The job of a simulated cluster, whose nodes are not declared. Trainer 0 is on node 0, as everywhere."""
    spec = make_local_spec(given, split, cwd=cwd, environ=environ)
    ranks = range(spec.worker_num or 1)
    nodes = spec.site.nodes
    own = [tuple(rank for rank in ranks if -rank % len(nodes) == node.id) for node in nodes]
    found = tuple(node._replace(trainers=t) for node, t in zip(nodes, own, strict=True))
    return spec._replace(backend=NAME, site=spec.site._replace(nodes=(), expected=found, reach=Reach(found)))


def carry(ctx: typer.Context, **_options: Any) -> None:
    """Run one job on agents that are carried."""
    cli._run_job(ctx, carried_spec)


def check_carried(ctx: typer.Context, **_options: Any) -> None:
    """Check the nodes that agents bring."""
    spec, given = cli._read_job(ctx, carried_spec)
    raise typer.Exit(check(spec, sys.stdout, as_json=given.is_set("json")))


# Is `pslaunch` with one command more, where the package of our entry point is installed.
LAUNCHER = """
import sys
sys.path[:0] = [sys.argv.pop(1), sys.argv.pop(1)]
from integration import test_seam
test_seam.main(sys.argv[1:])
"""


def main(words: Sequence[str]) -> None:
    """Run a command line; our command has the options of local and another backend."""
    cli._add_job_command(cli.app, "carry", backend="local")(carry)
    cli._add_job_command(cli.app, "check-carried", backend="local")(check_carried)
    cli.main(words)


class CarriedPlace(LocalPlace):
    """Place of the contract suite's jobs on this backend; its nodes look like a simulated cluster's."""

    def __init__(self, entry_points: Path, verb: str = "carry") -> None:
        super().__init__(NODES)
        self._entry_points, self._verb = entry_points, verb

    def command(self, workspace: Path, options: Sequence[str], program: Sequence[str]) -> list[str]:
        words = super().command(workspace, options, program)[len(PSLAUNCH) + 1 :]
        folders = str(self._entry_points), str(Path(__file__).parents[1])
        return [sys.executable, "-P", "-c", LAUNCHER, *folders, self._verb, *words]


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a package with our entry point is installed."""
    folder = tmp_path_factory.mktemp("site")
    info = folder / f"{NAME}-1.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text(ENTRY_POINT)
    return folder


@pytest.fixture
def place(installed: Path) -> Place:
    return CarriedPlace(installed)


# The contract suite's tests for every backend, on `place` of this file.
for _suite in (test_contract, test_contract_training):
    for _name, _test in vars(_suite).items():
        if any(mark.name == "seam" for mark in getattr(_test, "pytestmark", ()) if _name.startswith("test_")):
            globals()[_name] = _test


def test_ranks_are_on_the_nodes_that_brought_them(place: Place, workspace: Path) -> None:
    (workspace / "train.py").write_text("")
    code, job = finished(place, workspace, *ALONE, "--worker_num=5")
    assert code == 0, job.launcher.output()
    assert [job.node_of(f"trainer/{rank}") for rank in range(5)] == [0, 2, 1, 0, 2]


def test_job_ends_and_reports_the_loss_of_its_carrier(place: Place, workspace: Path) -> None:
    (workspace / "train.py").write_text(test_contract.STUBBORN)
    with running(place, workspace, *ALONE, *QUICK, "--worker_num=3") as job:
        job.until_printed("ready", [f"trainer/{rank}" for rank in range(3)])
        os.kill(parent_of(job.guards("trainer/0")[0]), signal.SIGKILL)
        assert job.launcher.wait() == codes.NODE_LOST == job.end()["code"]
        assert job.end()["reason"] == "the carrier was lost: it was killed by SIGKILL"
    until_nothing_runs(1.0)


def test_dry_run_shows_expected_nodes_and_the_start_of_their_agents(place: Place, workspace: Path) -> None:
    (workspace / "train.py").write_text("")
    code, job = finished(place, workspace, *ALONE, "--worker_num=4", "--dry_run")
    assert code == 0, job.launcher.output()
    plan = json.loads(job.launcher.output())
    assert [(p["process"], p["node"]) for p in plan["processes"]] == [
        ("trainer/0", 0), ("trainer/1", 2), ("trainer/2", 1), ("trainer/3", 0)
    ]  # fmt: skip
    assert plan["start"] == {"argv": ["carrier", "{keepers}"]}


def test_check_inspects_the_nodes_that_agents_bring(installed: Path, workspace: Path) -> None:
    (workspace / "train.py").write_text("import absent_module")
    code, job = finished(CarriedPlace(installed, "check-carried"), workspace, *ALONE, "--worker_num=3")
    hosts = [json.loads(line) for line in job.launcher.output().splitlines()]
    assert code == codes.PREFLIGHT
    assert [host["host"] for host in hosts] == ["localhost", "localhost-1", "localhost-2"]
    assert all("absent_module" in json.dumps(host["findings"]) for host in hosts)
