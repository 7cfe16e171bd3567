"""Nodes of Slurm, by one step of srun, in an allocation that is there or of the job's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ..face import CommandLine, Face

if TYPE_CHECKING:
    from ...options.spec import JobSpec


class SlurmFace(Face):
    name, example = "slurm", "--nodes 3 --partition short"
    refused, start = "options:REFUSED", "words:describe_start"
    spec, backend, reach = "spec:make_slurm_spec", "backend:SlurmBackend", "spec:SlurmReach"
    helps: ClassVar = {
        "": """Run one job on nodes of Slurm.

        In an allocation (sbatch, salloc) on all its nodes; anywhere else salloc gets one, by --nodes,
        --partition and --time. Each node has a pserver, each task a trainer. The program's folder is sent to
        every node, unless all of them see it. Words before and after PROGRAM are handled as by `pslaunch
        local`.
        """,
        "check": """Check the cluster and the nodes of a job, and report all that would prevent its run.

        Takes the command line of `pslaunch slurm` unchanged. Nodes are looked at in an allocation, or with
        --nodes, for which one is asked for; else the cluster alone. With --json: one object a line. The exit
        code is 0 if the job can run.
        """,
    }

    def check(self, line: CommandLine, spec: JobSpec) -> int:
        from .check import check_partition

        if code := check_partition(line, spec.site.reach):
            return code
        if not spec.site.reach.job and "nodes" not in line.given:
            return 0
        return super().check(line, spec)


FACE = SlurmFace()
