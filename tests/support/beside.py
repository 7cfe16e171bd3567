"""Hosts that each run another job of the same user too, which must not notice the one under test."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from support import leaks
from support.jobs import FabricPlace, Job, parent_of
from support.process import started, until_empty
from testbed import Host, Hosts

NAME = "stranger"
STRANGER = """
import os, signal
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: os.write(1, b"noticed\\n"))
os.write(1, b"ready\\n")
while True:
    signal.pause()
"""


class Beside:
    """The job beside, on one host: a launcher of its own, one trainer."""

    def __init__(self, hosts: Hosts, host: Host, package: Path) -> None:
        self.host, self._stack = host, contextlib.ExitStack()
        place = FabricPlace(hosts, on=[host])
        argv = place.command(package, ("--grace=0.2", "--server_num=0"), ())
        # Without the mark of this run: it is not what a test may leave behind.
        env = {name: value for name, value in os.environ.items() if name != leaks.MARK}
        self.job = Job(self._stack.enter_context(started(argv, env=env)), place)

    def wait_until_ready(self) -> None:
        self.job.until_printed("ready", ["trainer/0"])
        trainer = self.job.pid("trainer/0")
        agent = parent_of(trainer)
        self.pids = {trainer, agent, parent_of(agent)}

    def check(self) -> None:
        """It goes on, and has noticed nothing."""
        output = self.job.launcher.output()
        assert self.job.launcher.proc.poll() is None, output
        assert {e["event"] for e in self.job.events()} <= {
            "job",
            "dispatch",
            "node",
            "process",
            "line",
            "progress",
        }, output
        assert (self.host.root / NAME / "log/train.log").read_text() == "ready\n"
        assert self.host.processes().keys() >= self.pids

    def close(self) -> None:
        self._stack.close()


class Inhabited:
    """A set of hosts, each with such a job."""

    def __init__(self, hosts: Hosts, package: Path) -> None:
        self.hosts, self._package = hosts, package
        self._beside: dict[str, Beside] = {}

    def make_ready(self) -> None:
        """Put the hosts back as they were made, except for the jobs beside."""
        for host in self.hosts:
            if not host.as_made:
                host.reset()
            for entry in host.root.iterdir():
                if entry.name != NAME:
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        new = [host for host in self.hosts if host.name not in self._beside]
        for host in new:
            self._beside[host.name] = Beside(self.hosts, host, self._package)
        for host in new:
            self._beside[host.name].wait_until_ready()

    def left(self) -> list[str]:
        """Return the processes that run on the hosts and are not of those jobs."""
        return [
            f"{host.name}: {words}"
            for host in self.hosts
            for pid, words in host.processes().items()
            if pid not in self._beside[host.name].pids
        ]

    def check(self) -> None:
        """Nobody was disturbed but by what befell the host."""
        try:
            for host in self.hosts:
                if host.as_made:
                    self._beside[host.name].check()
            until_empty(self.left, leaks.GRACE_S)
        finally:
            for host in self.hosts:
                if not host.as_made:
                    self._beside.pop(host.name).close()

    def close(self) -> None:
        for beside in self._beside.values():
            beside.close()


@contextlib.contextmanager
def inhabited(hosts: Hosts, package: Path) -> Iterator[Inhabited]:
    """`package`: with the program that must not notice."""
    found = Inhabited(hosts, package)
    try:
        yield found
    finally:
        found.close()
