"""Jobs in tests: run through the real command line, seen through its JSON events."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pslaunch.runtime.files.manifest import MANIFEST
from support import leaks
from support.models import hash_set
from support.process import Started, started, until_empty
from testbed import Host, Hosts

Event = dict[str, Any]
PSLAUNCH = (sys.executable, "-X", "faulthandler", "-P", "-m", "pslaunch")
# Each backend, and each placement of its head, adds its own; tests/conftest.py makes them.
PLACES = ("local", "local_cluster", "local_led_cluster", "fabric", "fabric_led", "mpi", "slurm", "k8s")
# Jobs that nobody holds: they go on without a launcher, so tests marked `held` have no sense there.
FREE_PLACES = ("k8s_detached", "k8s_rendered")
POD_SEAM_PLACES = ("k8s_separate", *FREE_PLACES)
# Pods are there for one job alone, and end with it: tests marked `standing` have no sense there.
POD_PLACES = ("k8s", *POD_SEAM_PLACES)
# Further placements of a backend, which run the tests marked `seam` alone.
SEAM_PLACES = ("mpi4", "mpi_led", "slurm_led", *POD_SEAM_PLACES)
# Those with what the bundled runtime imports on every node: hosts by SSH have Python alone.
TRAINING_SEAM_PLACES = ("mpi_furnished", "mpi4_led_furnished", *POD_SEAM_PLACES)
TRAINING_PLACES = ("local", "local_led_cluster", "fabric_furnished", "k8s", *TRAINING_SEAM_PLACES)
QUICK = ("--grace=1",)  # a test of an ending is short
SILENT_S = 3.0  # for tests of silence alone: a busy machine may be as silent
SOON_LOST = (*QUICK, f"--lost_after={SILENT_S:g}")


HOLD = """
import os, signal, socket
with socket.create_server(("", 0)) as holder:
    print(holder.getsockname()[1], os.getpid(), flush=True)
    signal.pause()
"""


class Place(Protocol):
    """Place where the contract suite runs a job: one for each backend and each of its placements."""

    name: str
    led: bool  # whether the head is on node 0, the launcher an observer
    nodes: int
    lease_s: float  # for which a job goes on without its launcher
    silent_s: float  # limit of silence, for tests of it

    def command(self, workspace: Path, options: Sequence[str], program: Sequence[str]) -> list[str]:
        """The command line that runs `program` of `workspace` there."""
        ...

    def workspaces(self, workspace: Path) -> list[Path]:
        """The workspace as each node has it, in order of node ids; as this machine sees it."""
        ...

    def seen_here(self, node: int, path: str) -> Path:
        """Return the path by which this machine sees `path` of a node."""
        ...

    def pid_here(self, node: int, pid: int) -> int:
        """Return this machine's id of the process that is `pid` on a node."""
        ...


class StandingPlace(Place, Protocol):
    """A place that other jobs share, and that stands when a job has ended."""

    def holding_port(self) -> contextlib.AbstractContextManager[tuple[int, int]]:
        """A port on node 0 that is busy, and by whom: the process id as it is called there."""
        ...


class LocalPlace:
    """This machine: one node, or a simulated cluster."""

    lease_s, silent_s = 0.0, SILENT_S

    def __init__(self, nodes: int, *options: str) -> None:
        self.name, self.led = "local", "--head=node" in options
        self.nodes, self._options = nodes, (f"--nodes={nodes}", *options)

    def command(self, workspace: Path, options: Sequence[str], program: Sequence[str]) -> list[str]:
        numbers = [f"{name}=1" for name in ("--server_num", "--worker_num") if not has(options, name)]
        own = ("--json", f"--job_workspace={workspace}", *numbers, *self._options)
        return [*PSLAUNCH, "local", *own, *options, *program]

    def workspaces(self, workspace: Path) -> list[Path]:
        copies = [workspace / f".pslaunch/nodes/{i}" / workspace.name for i in range(1, self.nodes)]
        return [workspace, *copies]

    def seen_here(self, node: int, path: str) -> Path:
        return Path(path)

    def pid_here(self, node: int, pid: int) -> int:
        return pid

    @contextlib.contextmanager
    def holding_port(self) -> Iterator[tuple[int, int]]:
        with socket.create_server(("127.0.0.1", 0)) as holder:
            yield holder.getsockname()[1], os.getpid()


def on_hosts(hosts: Hosts, package: Path, on: Iterable[Host] = ()) -> list[str]:
    """Options of a job for hosts, these or all, with this package."""
    names = ",".join(host.name for host in on or hosts)
    return [f"--hosts={names}", f"--root_dir={hosts.root_dir}", f"--job_dispatch_package={package}"]


class FabricPlace:
    """Hosts by SSH. Numbers of processes are those of a job on one machine unless a test says otherwise."""

    lease_s, silent_s = 0.0, SILENT_S

    def __init__(self, hosts: Hosts, *options: str, on: Sequence[Host] = (), user: str = "") -> None:
        """`on`: these of the hosts, not all; `user`: not the one who is set up for ssh."""
        self.name, self.led = "fabric", "--head=node" in options
        self._hosts, self._on, self._options = hosts, list(on or hosts), options
        self._login = f"{user}@" if user else ""
        self.nodes = len(self._on)

    def command(self, workspace: Path, options: Sequence[str], program: Sequence[str]) -> list[str]:
        where = (
            f"--hosts={','.join(self._login + host.name for host in self._on)}",
            f"--root_dir={self._hosts.root_dir}",
        )
        numbers = [f"{name}=1" for name in ("--server_num", "--worker_num") if not has(options, name)]
        own = ("--json", f"--job_dispatch_package={workspace}", *where, *numbers, *self._options)
        return self._hosts.as_user([*PSLAUNCH, "fabric", *own, *options, *program])

    def workspaces(self, workspace: Path) -> list[Path]:
        return [host.root / workspace.name for host in self._on]

    def seen_here(self, node: int, path: str) -> Path:
        return self._on[node].root / Path(path).relative_to(self._hosts.root_dir)

    def pid_here(self, node: int, pid: int) -> int:
        return self._on[node].pid(pid)

    @contextlib.contextmanager
    def holding_port(self) -> Iterator[tuple[int, int]]:
        with self._on[0].running("python3", "-c", HOLD) as holder:
            said = holder.expect(r"^(\d+) (\d+)$")
            yield int(said[1]), int(said[2])


def has(options: Sequence[str], name: str) -> bool:
    return any(option.partition("=")[0] == name for option in options)


def parse_events(text: str) -> list[Event]:
    """The events among the lines of a launcher's output; an unfinished last line is left for later."""
    lines = text.split("\n")[:-1]
    return [json.loads(line) for line in lines if line.startswith("{")]


@dataclass(frozen=True)
class Job:
    """A job that was started; its launcher may have ended."""

    launcher: Started
    place: Place

    def events(self) -> list[Event]:
        return parse_events(self.launcher.output())

    def get_job(self) -> Event:
        """Return the event that describes the job; the launcher's notes may come before it."""
        return next(e for e in self.events() if e["event"] == "job")

    def lines(self, process: str) -> list[str]:
        """Return the lines that a process has printed, as the launcher streamed them."""
        return [e["text"] for e in self.events() if e["event"] == "line" and e["process"] == process]

    def until(self, probe: Callable[[list[Event]], Any], describe: str, *, timeout_s: float = 150.0) -> Any:
        """Wait until `probe` of the events is truthy, and return that.

        Raises AssertionError with what the launcher wrote when it is not in time, or never will be.
        """

        def probed(text: str) -> Any:
            events = parse_events(text)
            found = probe(events)
            assert found or not events or events[-1]["event"] != "end", f"the job is over: {text}"
            return found

        return self.launcher.until(probed, describe, timeout_s=timeout_s)

    def until_printed(self, text: str, processes: Sequence[str]) -> None:
        """Wait until each of the processes has printed this line."""

        def printed(events: list[Event]) -> bool:
            said = {e["process"] for e in events if e["event"] == "line" and e["text"] == text}
            return said >= set(processes)

        self.until(printed, f"{text!r} from {', '.join(processes)}")

    def restarts(self, state: str = "running") -> list[Event]:
        """Return the events of restarts that have come so far."""
        return [e for e in self.events() if e["event"] == "restart" and e["state"] == state]

    def node_of(self, process: str) -> int:
        """The node of a process."""
        return int(next(p["node"] for p in self.get_job()["processes"] if p["process"] == process))

    def log_of(self, process: str) -> Path:
        """The file of a process's output, as this machine sees it."""
        log = next(p["log"] for p in self.get_job()["processes"] if p["process"] == process)
        return self.place.seen_here(self.node_of(process), log)

    def pid(self, process: str) -> int:
        """Process id of a process of the job, as this machine calls it."""
        found = [
            e["pid"]
            for e in self.events()
            if e["event"] == "process" and e["process"] == process and "pid" in e
        ]
        return self.place.pid_here(self.node_of(process), int(found[-1]))

    def guards(self, of: str) -> tuple[int, int]:
        """Process ids of keeper and agent of the node on which the process `of` runs: its parents."""
        agent = parent_of(self.pid(of))
        return parent_of(agent), agent

    def end(self) -> Event:
        """The last event of the job; notes about its results may follow."""
        last = [e for e in self.events() if e["event"] != "note"][-1]
        assert last["event"] == "end", last
        return last


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@contextlib.contextmanager
def running(
    place: Place,
    workspace: Path,
    *options: str,
    program: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    text: str | None = None,
) -> Iterator[Job]:
    """Start a job; at the end its launcher is killed if it still runs. text: that train.py gets."""
    if text is not None:
        (workspace / "train.py").write_text(text)
    argv = place.command(workspace, options, program)
    with started(argv, env={**os.environ, **env} if env else None) as launcher:
        yield Job(launcher, place)


def finished(
    place: Place,
    workspace: Path,
    *options: str,
    timeout_s: float = 150.0,
    **more: Any,
) -> tuple[int, Job]:
    """Run a job to its end, started as by `running`: exit code, and what it said."""
    with running(place, workspace, *options, **more) as job:
        return job.launcher.wait(timeout_s=timeout_s), job


def succeeded(place: Place, workspace: Path, *options: str, **more: Any) -> Job:
    """Run a job that has to end with 0: as `finished`."""
    code, job = finished(place, workspace, *options, **more)
    assert code == 0, job.launcher.output()
    return job


def hash_model(workspace: Path) -> str:
    """The digest of the parameters of a job's last pass, or of those that a Fleet program has saved."""
    folder = workspace / "output"
    if (folder / MANIFEST).exists():
        return hash_set(folder)
    return hashlib.sha256((folder / "parameters.tar").read_bytes()).hexdigest()


def run_pslaunch(
    *words: str,
    hosts: Hosts | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; `hosts`: as the user who reaches them. env: beside the variables here."""
    return subprocess.run(
        hosts.as_user([*PSLAUNCH, *words]) if hosts else [*PSLAUNCH, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=check,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        timeout=timeout_s,
    )


def until_nothing_runs(within_s: float) -> None:
    """Wait until no process of this test is left; fails after `within_s`."""
    until_empty(leaks.processes_of_the_test, within_s)
