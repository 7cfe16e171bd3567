"""The job of a backend with hosts from its options: files sent and fetched, and the agents of carriers.

Rejected values raise SpecError with option, place and value.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import SpecError
from ..node.job import Count, Node, Plan
from ..options.kinds import Value
from ..options.locate import locate
from ..options.options import MAX_PROCESSES
from ..options.remote_spec import read_folders, read_nic, read_package, read_programs
from ..options.spec import JobSpec, Site, check_spec, read_common_options, read_draft
from .face import CommandLine
from .gate_of_agents import CarriedAgents

if TYPE_CHECKING:
    from .carried import CarriedReach


def make_hosts_spec(
    line: CommandLine,
    backend: str,
    find_sent: Callable[[], tuple[Path, str]],
    make_site: Callable[[Plan, Node], Site],
    **counts: Any,
) -> JobSpec:
    """Return the job: the given values, and defaults for all others. Raises SpecError.

    find_sent: as in `read_package`. make_site: from the draft, and a node with the folders on the hosts.
    """
    given, split = line.given, line.split
    draft, options = read_draft(backend, given, line.environ), read_common_options(given, line.environ)
    package, workspace, program = read_package(given, split, find_sent)
    name, folder, logs = read_folders(given, workspace, sent=package is not None)
    node = Node(0, "", "", dispatched=package is not None).place_in(folder, logs)
    spec = JobSpec(
        draft=draft._replace(name=name),
        workspace=workspace,
        site=make_site(draft, node)._replace(package=package, nic=read_nic(given)),
        program=program,
        **read_programs(given, split, logs, line.cwd),
        **{**options, **counts},
    )
    check_spec(spec, given)
    return spec


def make_carried_spec(
    line: CommandLine,
    backend: str,
    *,
    ranks: int,
    hosts: int,
    worker_num: int | None,
    trainers: Count,
    make_reach: Callable[[CarriedAgents], CarriedReach],
) -> JobSpec:
    """Return the job of a backend with a carrier. Raises SpecError.

    ranks: processes that the carrier starts; hosts: number of nodes, as far as it is known.
    """
    given = line.given

    def make_site(draft: Plan, node: Node) -> Site:
        pservers = hosts if given.read("server_num") is None else given.read("server_num")
        agents = CarriedAgents(
            ranks=ranks,
            node=node,
            nic=read_nic(given),
            port=_choose_gate_port(draft, pservers),
            agent_python=given.read("agent_python"),
            connect_timeout_s=given.read("connect_timeout"),
        )
        reach, each = make_reach(agents), Count("per_node", 1)
        return Site((), pservers=each, trainers=trainers, reach=reach, expected=reach.list_expected())

    def find_sent() -> tuple[Path, str]:
        return locate(given, line.split, line.cwd)

    return make_hosts_spec(line, backend, find_sent, make_site, worker_num=worker_num)


def _choose_gate_port(draft: Plan, pservers: int) -> int:
    """Return the launcher's port, after those of the pservers, or 0 for any."""
    if draft.port is None:
        return 0
    after = draft.port + pservers * (draft.ports_num + draft.ports_num_for_sparse)
    return after if after <= 65535 else 0


def read_words(value: Value | None) -> list[str]:
    """Return the words for the carrier in a text, split as in a shell. Raises SpecError."""
    if value is None:
        return []
    try:
        return shlex.split(value.text)
    except ValueError as e:
        raise SpecError(f"{value.shown}: {e}") from None


def read_count(name: str, environ: Mapping[str, str]) -> int | None:
    """Return a number in Slurm's environment; None if there is none. Raises SpecError."""
    text = environ.get(name, "")
    found = int(text) if re.fullmatch(r"[1-9][0-9]{0,5}", text) else None
    if found and found > MAX_PROCESSES:
        raise SpecError(f"{name}={text}: {MAX_PROCESSES} at most")
    return found
