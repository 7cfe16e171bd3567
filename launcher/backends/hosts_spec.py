"""The job of a backend with hosts from its options: files sent and fetched, and the agents of carriers.

Rejected values raise SpecError with option, place and value.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from ..errors import SpecError
from ..node.job import Count, Node, Plan, choose_port_after
from ..options import locate
from ..options.kinds import Value
from ..options.options import MAX_PROCESSES
from ..options.sources import Given
from ..options.spec import JobSpec, Site, check_spec, read_common_options, read_draft
from .carried import CarriedReach
from .face import CommandLine
from .gate_of_agents import CarriedAgents

MAX_NIC_BYTES: Final = 15  # of the kernel


def make_hosts_spec(
    line: CommandLine, backend: str, make_site: Callable[[Plan, Node], Site], **counts: Any
) -> JobSpec:
    """Return the job: the given values, and defaults for all others. Raises SpecError.

    make_site: from the draft, and a node with the folders on the hosts.
    """
    given, split = line.given, line.split
    draft = read_draft(backend, given, line.environ)._replace(nic=_read_nic(given))
    options = read_common_options(given, split, line.environ)
    package, workspace, program = locate.read_package(given, split, line.cwd)
    name = locate.choose_job_name(given, workspace)
    log_dir, root_dir = given.get("log_dir"), given.get("root_dir")
    root = locate.read_remote_path(root_dir) if root_dir else given.read("root_dir")
    logs = locate.read_remote_path(log_dir) if log_dir else None
    folder = f"{root.rstrip('/')}/{name}" if package else str(workspace)
    node = Node(0, "", "", dispatched=package is not None).place_in(folder, logs)
    wheel, wheelhouse = given.get("wheel"), given.get("wheelhouse")
    spec = JobSpec(
        draft=draft._replace(name=name),
        workspace=workspace,
        site=make_site(draft, node)._replace(package=package),
        program=program,
        python=None if given.is_set("install") else given.read("python"),
        log_dir=Path(logs) if logs else None,
        wheel=locate.find_wheel(wheel, line.cwd) if wheel else None,
        wheelhouse=locate.find_folder(wheelhouse, line.cwd) if wheelhouse else None,
        fetch_output=locate.check_folder_to_make(given.get("fetch_output"), line.cwd),
        fetch_logs=locate.check_folder_to_make(given.get("fetch_logs"), line.cwd),
        **{**options, **counts},
    )
    check_spec(spec, given)
    return spec


def _read_nic(given: Given) -> str:
    """Return the name of the network interface, checked; "" if it is not given."""
    value = given.get("nics")
    if value is None:
        return ""
    name = value.text
    if not name or len(os.fsencode(name)) > MAX_NIC_BYTES or not name.isprintable() or set(name) & set(" /,"):
        raise SpecError(f"{value.shown} is not the name of one network interface, such as eth0")
    return name


def make_carried_spec(
    line: CommandLine,
    backend: str,
    *,
    ranks: int,
    hosts: int,
    worker_num: int | None,
    make_reach: Callable[[CarriedAgents], CarriedReach],
) -> JobSpec:
    """Return the job of a backend with a carrier. Raises SpecError.

    ranks: processes that the carrier starts; hosts: number of nodes, as far as it is known. worker_num: None
    for one trainer on each node.
    """
    given = line.given

    def make_site(draft: Plan, node: Node) -> Site:
        pservers = hosts if given.read("server_num") is None else given.read("server_num")
        agents = CarriedAgents(
            ranks=ranks,
            node=node,
            nic=draft.nic,
            port=choose_port_after(draft, pservers),
            agent_python=given.read("agent_python"),
            connect_timeout_s=given.read("connect_timeout"),
        )
        reach = make_reach(agents)
        return Site((), Count("per_node", 1), reach=reach, expected=reach.list_expected())

    return make_hosts_spec(line, backend, make_site, worker_num=worker_num)


def read_words(
    value: Value | None, backend: str, ours: Mapping[str, str], refused: Mapping[str, str] = {}
) -> list[str]:
    """Return the words for the carrier in a text, split as in a shell. Raises SpecError.

    ours: options of the carrier that only options of ours may give, and these; the value of one such as -N
    may be in the same word. refused: reasons by words.
    """
    if value is None:
        return []
    try:
        words = shlex.split(value.text)
    except ValueError as e:
        raise SpecError(f"{value.shown}: {e}") from None
    for word in words:
        if not word.startswith(("-", ":")):
            continue
        name = word.lstrip("-").partition("=")[0].replace("-", "_")
        if why := refused.get(name):
            raise SpecError(f"{value.label}: {word} is not supported: {why}")
        if option := ours.get(name) or ours.get(word[:2]):
            raise SpecError(f"{value.label}: give {word} as an option of pslaunch {backend}, --{option}")
    return words


def refuse_step(environ: Mapping[str, str], backend: str, why: str) -> None:
    """Raise SpecError in a step of srun."""
    step = environ.get("SLURM_STEP_ID", "")
    if re.fullmatch(r"[0-9]{1,9}", step):  # steps of Slurm itself have longer ones
        raise SpecError(
            f"this is step {step} of srun, {why}: leave srun out "
            f"(in a script of sbatch, or after salloc: pslaunch {backend} ...)"
        )


def read_count(name: str, environ: Mapping[str, str]) -> int | None:
    """Return a number in Slurm's environment; None if there is none. Raises SpecError."""
    text = environ.get(name, "")
    found = int(text) if re.fullmatch(r"[1-9][0-9]{0,5}", text) else None
    if found and found > MAX_PROCESSES:
        raise SpecError(f"{name}={text}: {MAX_PROCESSES} at most")
    return found
