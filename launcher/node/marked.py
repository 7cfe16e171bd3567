"""Processes with a mark in their environment, wherever they descend from.

A mark is some words that are all in it, of which one has been drawn or made for a single job.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from . import procs

SPAWNER = "PMIX_SERVER_URI2"  # name and port of the daemon of Open MPI that starts a process


class Marked:
    """What carries one of these marks, or ranks of MPI spawn by these daemons; jobs: words for whose."""

    def __init__(self, spawners: Iterable[str], *marks: tuple[bytes, ...]) -> None:
        spawned = ((f"\0{SPAWNER}={one}\0".encode(), b"\0OMPI_PARENT_PORT=") for one in {*spawners} - {""})
        self._marks = (*marks, *spawned)
        self._told, self.jobs = set[tuple[int, int, int]](), set[str]()

    def send(self, number: int) -> list[int]:
        """Signal each of them once, with 0 none; return the pids of those that live."""
        found = []
        for proc in procs.list_procs() if self._marks else ():
            environ = b"\0"
            with contextlib.suppress(OSError), open(f"/proc/{proc.pid}/environ", "rb") as f:
                environ += f.read()
            if not proc.is_gone and any(all(map(environ.__contains__, m)) for m in self._marks):
                found.append(proc.pid)
                job = environ.partition(b"\0PSLAUNCH_JOB_ID=")[2].partition(b"\0")[0]
                self.jobs.add(f"job {os.fsdecode(job)}" if job else "a job of MPI")
                if number and (proc.pid, proc.start, number) not in self._told:
                    self._told.add((proc.pid, proc.start, number))
                    procs.send(proc, number)
        return found
