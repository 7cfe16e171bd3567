"""Slurm as data: the words for salloc and srun, and the cause of a failure in what they say. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any, Final

from ...node import codes
from ..failures import CarrierFailure, FailureTable
from .spec import SlurmReach

READY: Final = "pslaunch: allocation "
# Holds an allocation: ends with its salloc, also if that is killed.
HOLD: Final = f'echo "{READY}$SLURM_JOB_ID" >&2; exec tail --pid=$PPID -f /dev/null'
# Beginnings of variables about the task that is an agent, and no trainer.
OF_TASK: Final = (
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_TASK", "SLURM_STEP"),
    *("SLURM_GTIDS", "SLURM_SRUN_", "SLURM_LAUNCH_NODE", "PMI", "SLURM_PMI"),
)
# Reasons in the queue that no waiting ends.
HOPELESS: Final = frozenset(
    {
        *("PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints"),
        *("AccountNotAllowed", "InvalidAccount", "QOSNotAllowed", "InvalidQOS", "DependencyNeverSatisfied"),
    }
)


def make_allocation(reach: SlurmReach, name: str) -> list[str]:
    """Return the command line that holds an allocation of this name in the queue."""
    return ["salloc", "--kill-command", f"--job-name={name}", *reach.args, "sh", "-c", HOLD]


def make_step(reach: SlurmReach, job: str, program: Sequence[str]) -> list[str]:
    """Return the command line of the step: one process on each node, which stays when another ends."""
    return [
        *("srun", f"--jobid={job}", f"--nodes={reach.agents.ranks}", f"--ntasks={reach.agents.ranks}"),
        *((f"--nodelist={reach.only}",) if reach.only else ()),
        *("--ntasks-per-node=1", "--overlap", "--kill-on-bad-exit=0", "--wait=0", "--mpi=none"),
        *("--cpu-bind=none", "--export=ALL", "--input=none", *program),
    ]


def describe_start(reach: SlurmReach) -> dict[str, Any]:
    """Return the command lines of allocation and step, with symbols for what is made at the start."""
    own = [shlex.join(make_allocation(reach, "{name}"))] if not reach.job else []
    step = make_step(reach, reach.job or "{job}", ["/bin/sh", "-c", "{agent}"])
    return {"allocation": own, "argv": step}


PATTERNS: Final = (
    (r"pslaunch: (\S+ can't reach the launcher [^\n]+)", codes.PREFLIGHT,
     "{0}; choose its network with --nics, allow --port and the ports after it in firewalls, or start "
     "the job on a node: sbatch or salloc"),
    (r"pslaunch boot: (no Python 3\.9 [^\n]+)", codes.PREFLIGHT, "{0}; give --agent_python PATH"),
    (r"pslaunch (?:agent|keeper): ([^\n]+)", codes.PREFLIGHT, "an agent could not begin: {0}"),
    (r"(?i)Unable to contact slurm controller", codes.SERVICE,
     "Slurm's controller does not answer (scontrol ping)"),
    (r"(?i)(Munge (?:en|de)code failed: [^\n]+|authentication (?:error|credential)[^\n]*)",
     codes.PREFLIGHT,
     "Slurm can't prove who you are: {0}; on this machine: munge -n"),
    (r"(?i)invalid partition(?: name)? specified:? ?(\S*)", codes.USAGE,
     "Slurm has no partition {0}; sinfo prints those that it has: --partition NAME"),
    (r"(?i)(Invalid account[^\n]*|Invalid qos[^\n]*|[^\n]*not permitted[^\n]*|[^\n]*QOS policy[^\n]*"
     r"|Access/permission denied|[^\n]*limit\(s\) on [^\n]*)", codes.RIGHTS,
     "Slurm refuses it: {0}; give another --account or --partition"),
    (r"(?i)(Node count specification invalid|More processors requested than permitted"
     r"|Requested node configuration is not available|Requested time limit is invalid[^\n]*"
     r"|Invalid --?\w+ specification|Invalid (?:feature|node name|generic resource)[^\n]*"
     r"|Memory specification can not be satisfied|unrecognized option [^\n]*|invalid option [^\n]*)",
     codes.USAGE, "Slurm refuses it: {0}; sinfo prints what there is"),
    (r"(?i)(Invalid job id specified|Job/step already completing or completed"
     r"|Expired or invalid job[^\n]*|allocation [^\n]*revoked|Slurm job \d+ has expired)",
     codes.NODE_LOST, "the allocation is over: {0}"),
    (r"(?i)(Node failure on \S+|NODE FAILURE[^\n]*)", codes.NODE_LOST, "Slurm lost a node: {0}"),
)  # fmt: skip
_CANCELLED: Final = re.compile(
    r"\*\*\* (?:STEP|JOB) (\d+)(\S*) ON (\S+) CANCELLED AT (\S+)(?: DUE TO ([\w ]+))?"
)
_REMEDIES: Final = {
    "TIME LIMIT": "give more time: --time, or sbatch --time",
    "PREEMPTION": "another job has a higher priority",
}
_NOISE: Final = re.compile(
    r"|srun: cluster configuration lacks support for cpu binding|salloc: (?:Relinquishing|Pending) job .*"
    r"|salloc: Granted .*|srun: Job step aborted: .*|srun: Force Terminated .*|salloc: Job aborted .*"
)


FAILURES: Final = FailureTable("Slurm", PATTERNS, _NOISE)


def find_end(output: str) -> CarrierFailure | None:
    """Return Slurm's reason for the end of a step, from srun's output; None if Slurm has not ended it."""
    match = _CANCELLED.search(output)
    if not match:
        return None
    job, step, _, when, why = match.groups("")
    what = f"step {job}{step}" if step else f"job {job}"
    if why.startswith("NODE FAILURE"):
        text = f"Slurm ended {what} at {when}, since it has lost a node (sinfo -R)"
        return CarrierFailure(codes.NODE_LOST, text)
    known = next((f", {remedy}" for start, remedy in _REMEDIES.items() if why.startswith(start)), "")
    reason = f"due to {why.strip().lower()}{known}" if why else "by scancel"
    return CarrierFailure(codes.TERM, f"Slurm cancelled {what} at {when} {reason}")
