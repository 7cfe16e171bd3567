"""The job of `pslaunch slurm` from its options: its nodes, and the words by which salloc gets them.

Rejected values raise SpecError with option, place and value; missing commands of Slurm raise PreflightError.
Slurm itself is not asked.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...errors import PreflightError, SpecError
from ...node.job import Count, Node
from ...options.args import Split
from ...options.locate import locate
from ...options.options import DEFAULT, MAX_PROCESSES
from ...options.remote_spec import check_install, read_folders, read_nic, read_package, read_programs
from ...options.sources import Given
from ...options.spec import JobSpec, Site, check_spec, read_common_options, read_draft, refuse_without_effect
from ..carried import HeadAddress, choose_gate_port, parse_common
from ..lines import OF_ANOTHER

COMMANDS: Final = ("salloc", "srun", "scancel", "scontrol", "squeue", "sinfo")
FOR_ALLOCATION: Final = ("partition", "time", "account", "slurm_args")


class SlurmReach(NamedTuple):
    """The nodes of a job, and what its agents need to begin."""

    ranks: int  # nodes: each has one process of the step
    job: str  # the allocation; "" for one of its own, until that is granted
    args: tuple[str, ...]  # by which salloc gets it
    node: Node  # as of CarriedReach, and all that follow
    nic: str = ""
    port: int = 0
    agent_python: str | None = None
    connect_timeout_s: float = DEFAULT["connect_timeout"]
    head: HeadAddress | None = None
    only: str = ""  # name of the one node that is asked


def make_slurm_spec(given: Given, split: Split, *, cwd: Path, environ: Mapping[str, str]) -> JobSpec:
    """Return the job of `pslaunch slurm`: the given values, and defaults for all others.

    cwd: absolute; relative paths of this machine start there. Raises SpecError or PreflightError.
    """
    _find_commands(environ)
    draft, options = read_draft("slurm", given, environ), read_common_options(given, environ)
    job = environ.get("SLURM_JOB_ID", "")
    nodes = _read_nodes(given, environ, job)
    options["worker_num"] = options["worker_num"] or _read_count("SLURM_NTASKS", environ)
    package, workspace, program = read_package(given, split, lambda: locate(given, split, cwd))
    name, folder, logs = read_folders(given, workspace, sent=package is not None)
    node = Node(0, "", "", dispatched=package is not None).place_in(folder, logs)
    reach = SlurmReach(
        ranks=nodes,
        job=job,
        args=() if job else _list_args(given, name, nodes, options["worker_num"]),
        node=node,
        nic=read_nic(given),
        port=choose_gate_port(draft, options["server_num"], nodes),
        agent_python=given.read("agent_python"),
        connect_timeout_s=given.read("connect_timeout"),
    )
    spec = JobSpec(
        draft=draft._replace(name=name),
        workspace=workspace,
        site=Site(
            (),
            pservers=Count("per_node", 1),
            trainers=Count("per_node", 1),
            package=package,
            nic=reach.nic,
            reach=reach,
            expected=tuple(node._replace(id=i, name=f"{{slurm:{i}}}") for i in range(nodes)),
        ),
        program=program,
        **read_programs(given, split, logs, cwd),
        **options,
    )
    check_install(spec, given)
    check_spec(spec, given)
    return spec


def parse_reach(data: Any) -> SlurmReach:
    """Return the reach from its data in a record. Raises SpecError if another version wrote it."""
    try:
        return SlurmReach(**{**data, "args": tuple(data["args"]), **parse_common(data)})
    except (KeyError, TypeError):
        raise SpecError(OF_ANOTHER) from None


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
    value, wanted = given.get("nodes"), given.read("nodes") if "nodes" in given else None
    if not job:
        return wanted or 1
    for name in FOR_ALLOCATION:
        refuse_without_effect(given, name, f"in an allocation (SLURM_JOB_ID={job})")
    there = _read_count("SLURM_JOB_NUM_NODES", environ)
    if there is None:
        raise SpecError(
            f"the allocation SLURM_JOB_ID={job} does not tell its number of nodes; give --nodes N"
        )
    if wanted and wanted > there:
        assert value
        raise SpecError(f"{value.shown}: the allocation SLURM_JOB_ID={job} has {there} nodes")
    return wanted or there


def _read_count(name: str, environ: Mapping[str, str]) -> int | None:
    text = environ.get(name, "")
    found = int(text) if re.fullmatch(r"[1-9][0-9]{0,5}", text) else None
    if found and found > MAX_PROCESSES:
        raise SpecError(f"{name}={text}: {MAX_PROCESSES} at most")
    return found


def _list_args(given: Given, name: str, nodes: int, trainers: object) -> tuple[str, ...]:
    """Return the words for salloc that get an allocation."""
    tasks = max(nodes, trainers if isinstance(trainers, int) else 0)
    args = [f"--nodes={nodes}", f"--ntasks={tasks}"]
    args += [f"--{name}={given.read(name)}" for name in ("partition", "time", "account") if name in given]
    if value := given.get("slurm_args"):
        try:
            args += shlex.split(value.text)
        except ValueError as e:
            raise SpecError(f"{value.shown}: {e}") from None
    return tuple(args)
