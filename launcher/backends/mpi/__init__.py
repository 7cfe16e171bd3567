"""Ranks of Open MPI, started by mpirun."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...errors import require_extra
from ..face import CommandLine, Face

if TYPE_CHECKING:
    from ...options.spec import JobSpec


class MpiFace(Face):
    name, example = "mpi", "-hostfile machines -n 3"
    refused, start = "options:REFUSED", "mpirun:describe_start"
    spec, backend, reach = "spec:make_mpi_spec", "backend:MpiBackend", "spec:MpiReach"
    helps: ClassVar = {
        "": """Run one job under mpirun of Open MPI 4 or 5.

        Each rank is a trainer, and each host has a pserver. The program's folder is sent to every host. The
        hosts need Open MPI and Python 3.9 or later. Options have mpirun's names: -hostfile machines -n 3.
        Words before and after PROGRAM are handled as by `pslaunch local`.
        """,
        "check": """Check all hosts of a job through mpirun, and report everything that would prevent its run.

        Takes the command line of `pslaunch mpi` unchanged. No program is started. With --json: one object a
        host. The exit code is 0 if the job can run.
        """,
    }

    def act(self, line: CommandLine, spec: JobSpec) -> int | None:
        if not line.given.is_set("script"):
            return None
        require_extra("mpi")
        from .script import write_script

        return write_script(line, spec)


FACE = MpiFace()
