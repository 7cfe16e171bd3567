"""The job of `pslaunch slurm` from its options: its nodes, and the words by which salloc gets them.

Rejected values raise SpecError with option, place and value; missing commands of Slurm raise PreflightError.
Slurm itself is not asked.
"""

from __future__ import annotations

import functools
import shutil
import zlib
from collections.abc import Mapping
from typing import Final, NamedTuple

from pslaunch.runtime.shared.env import RESUME_OF, get_snapshot_var

from ...errors import PreflightError, SpecError
from ...node.job import Node
from ...options.sources import Given
from ...options.spec import JobSpec, count_gpus, refuse_without_effect
from ..face import CommandLine
from ..gate_of_agents import CarriedAgents
from ..hosts_spec import make_carried_spec, read_count, read_words, refuse_step
from .options import WHEN_MADE

COMMANDS: Final = ("salloc", "srun", "scancel", "scontrol", "squeue", "sinfo")
FOR_ALLOCATION: Final = ("partition", "time", "account", "slurm_args")
# Words of salloc that only options of ours may give; the end of a job finds its allocation by its name.
OURS: Final[Mapping[str, str]] = {
    **{name: name for name in ("nodes", "job_name", "partition", "time", "account")},
    "-N": "nodes", "-J": "job_name", "-p": "partition", "-t": "time", "-A": "account",
    **dict.fromkeys(("-n", "ntasks"), "worker_num"),
}  # fmt: skip


class SlurmReach(NamedTuple):
    """The allocation of a job, and its agents; their number is that of the nodes."""

    job: str  # the allocation; "" for one of its own, until that is granted
    args: tuple[str, ...]  # by which salloc gets it
    agents: CarriedAgents
    only: str = ""  # names of its nodes that a step is for; "": any

    def list_expected(self) -> tuple[Node, ...]:
        """Return the planned nodes, whose names Slurm tells later."""
        nodes = range(self.agents.ranks)
        return tuple(self.agents.node._replace(id=i, name=f"{{slurm:{i}}}") for i in nodes)


def make_slurm_spec(line: CommandLine) -> JobSpec:
    """Return the job of `pslaunch slurm`. Raises SpecError or PreflightError."""
    given, environ = line.given, line.environ
    _find_commands(environ)
    if environ.get("SLURM_STEP_NUM_TASKS") != "1":  # else the shell of `srun --pty`
        refuse_step(environ, "slurm", "each task of which would start this job")
    job = environ.get("SLURM_JOB_ID", "")
    nodes = _read_nodes(given, environ, job)
    trainers: int | None = given.read("worker_num") or read_count("SLURM_NTASKS", environ)
    args = () if job else _list_args(given, nodes, trainers)
    spec = make_carried_spec(
        line,
        "slurm",
        ranks=nodes,
        hosts=nodes,
        worker_num=trainers,
        make_reach=functools.partial(SlurmReach, job, args),
    )
    return _resume_requeued(spec, environ) if job else spec


def _resume_requeued(spec: JobSpec, environ: Mapping[str, str]) -> JobSpec:
    """Return the job, which is to find its snapshots again once Slurm has requeued it."""
    env = spec.draft.added_env
    what = zlib.crc32(repr((spec.program, spec.program_args)).encode())  # a script may run several
    of = f"slurm{environ['SLURM_JOB_ID']}-{what:08x}"
    if not {get_snapshot_var(name) for name in ("snapshot_steps", "snapshot_minutes")} & env.keys():
        return spec
    if read_count("SLURM_RESTART_COUNT", environ):
        env = {get_snapshot_var("resume"): f"{RESUME_OF}{of}", **env}
    return spec._replace(site=spec.site._replace(of=of), draft=spec.draft._replace(added_env=env))


def _find_commands(environ: Mapping[str, str]) -> None:
    """Raise PreflightError if Slurm's commands are not there."""
    missing = [name for name in COMMANDS if not shutil.which(name, path=environ.get("PATH"))]
    if missing:
        raise PreflightError(
            f"no {missing[0]} in PATH: run pslaunch slurm on a login node of the cluster, "
            "or add the folder of Slurm's commands to PATH (Debian: slurm-client)"
        )


def _read_nodes(given: Given, environ: Mapping[str, str], job: str) -> int:
    """Return the number of nodes; in an allocation, all of it unless fewer are given."""
    wanted: int | None = given.read("nodes")
    if not job:
        return wanted or 1
    for name in FOR_ALLOCATION:
        refuse_without_effect(given, name, f"in an allocation (SLURM_JOB_ID={job}): {WHEN_MADE}")
    there = read_count("SLURM_JOB_NUM_NODES", environ)
    if there is None:
        raise SpecError(
            f"the allocation SLURM_JOB_ID={job} does not tell its number of nodes; give --nodes N"
        )
    if wanted and wanted > there:
        raise SpecError(f"--nodes={wanted}: the allocation SLURM_JOB_ID={job} has {there} nodes; {WHEN_MADE}")
    return wanted or there


def _list_args(given: Given, nodes: int, trainers: int | None) -> tuple[str, ...]:
    """Return the words for salloc that get an allocation."""
    args = [f"--nodes={nodes}", f"--ntasks={max(nodes, trainers or 0)}"]
    gpus = count_gpus(given, -(-max(nodes, trainers or 0) // nodes))
    args += [f"--gpus-per-node={gpus}"] if gpus else []
    args += [f"--{name}={given.read(name)}" for name in ("partition", "time", "account") if name in given]
    return (*args, *read_words(given.get("slurm_args"), "slurm", OURS))
