"""Leftovers of a test: processes, ports, files, hosts. Read from /proc and /sys; nothing is installed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from support.process import poll_until
from testbed import sweep

# Every process that comes from this test run carries it, wherever it forked itself to.
MARK = "PSLAUNCH_TEST_RUN"
GRACE_S = 3.0  # for processes that have been killed, or are on their way out


def set_mark() -> None:
    """Mark the environment of what is started from here on."""
    os.environ[MARK] = uuid.uuid4().hex


def marked_processes(variable: str = "", environs: Mapping[int, bytes] | None = None) -> dict[int, str]:
    """Command line by pid of every process with this in its environment; by default of this test run's.

    This process itself is left out.
    """
    variable = variable or f"{MARK}={os.environ[MARK]}"
    environs = sweep.read_environs() if environs is None else environs
    found = {}
    for pid in [pid for pid, environ in environs.items() if f"\0{variable}\0".encode() in environ]:
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
            found[pid] = words.decode("utf-8", "replace").strip()
    # Python's own helper, one for the life of the process.
    return {pid: words for pid, words in found.items() if "multiprocessing.resource_tracker" not in words}


_here_before: set[int] = set()  # processes of this run that are older than the test: a bystander's job


def begin_test(before: Leftovers) -> None:
    """Note the processes that exist already: they are not the test's."""
    _here_before.clear()
    _here_before.update(before.processes)


def processes_of_the_test() -> dict[int, str]:
    """Command line by pid of every process that came with this test."""
    return {pid: words for pid, words in marked_processes().items() if pid not in _here_before}


def zombies() -> set[int]:
    """Children of this process that ended and that nobody waited for."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found.update(int(pid) for pid in (task / "children").read_text().split())
    return {pid for pid in found if _state(pid) == "Z"}


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def listening() -> set[str]:
    """TCP addresses on which this process listens, asked of each socket: the kernel's tables are slow."""
    found = set()
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(fd.readlink()).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(fd.name))) as ours:
                    if ours.family in (socket.AF_INET, socket.AF_INET6) and ours.getsockopt(
                        socket.SOL_SOCKET, socket.SO_ACCEPTCONN
                    ):
                        found.add(str(ours.getsockname()))
    return found


def our_files() -> set[str]:
    """Our files and folders in the temporary folder."""
    return {path.name for path in Path(tempfile.gettempdir()).glob("pslaunch-*")}


def _describe_file(name: str) -> str:
    """Return its path, when it was changed, and what it holds, which tells whose it is."""
    path = Path(tempfile.gettempdir(), name)
    try:
        held = [str(one.relative_to(path)) for one in path.rglob("*")][:5]
        return f"{path} {held or ''} of {time.ctime(path.stat().st_mtime)}, now {time.ctime()}"
    except OSError as e:
        return f"{path}: {e.strerror}"


kept_hosts: set[str] = set()  # ids of sets of hosts that are there for many tests


def hosts(environs: Mapping[int, bytes]) -> set[str]:
    """Return what exists of this run's hosts: bridges, links into them, processes that hold namespaces."""
    run = os.environ[MARK][: sweep.RUN_DIGITS]
    found = set()
    for name in sweep.links(run):
        if name.removeprefix(sweep.LINK)[: sweep.ID_DIGITS] not in kept_hosts:
            found.add(f"network link {name}")
    for pid, set_id in sweep.outer_processes(run, environs).items():
        if set_id not in kept_hosts and _state(pid) not in "ZX":
            found.add(f"process {pid} that holds a host")
    return found


@dataclass(frozen=True, kw_only=True)
class Leftovers:
    """Everything that exists at one moment; the difference of two was left behind between them."""

    processes: dict[int, str]
    zombies: set[int]
    ports: set[str]
    files: set[str]
    hosts: set[str]

    @classmethod
    def now(cls) -> Leftovers:
        """Look around."""
        environs = sweep.read_environs()
        return cls(
            processes=marked_processes(environs=environs),
            zombies=zombies(),
            ports=listening(),
            files=our_files(),
            hosts=hosts(environs),
        )

    def since(self, before: Leftovers) -> list[str]:
        """A line for each thing that was not there before."""
        return [
            *(
                f"process {p}: {self.processes[p]}"
                for p in sorted(self.processes.keys() - before.processes.keys())
            ),
            *(f"process {p} ended and was not waited for" for p in sorted(self.zombies - before.zombies)),
            *(f"listening on {port}" for port in sorted(self.ports - before.ports)),
            *(_describe_file(name) for name in sorted(self.files - before.files)),
            *sorted(self.hosts - before.hosts),
        ]


def check(before: Leftovers) -> list[str]:
    """Return what is left since `before` after a short time of grace, and kill its processes."""
    with contextlib.suppress(AssertionError):
        poll_until(lambda: not Leftovers.now().since(before), describe="", timeout_s=GRACE_S, every_s=0.05)
        return []
    now = Leftovers.now()
    for pid in now.processes.keys() - before.processes.keys():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return now.since(before)
