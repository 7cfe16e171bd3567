"""The job of `pslaunch fabric` from its options: its hosts, the files sent and fetched.

Rejected values raise SpecError with option, place and value. No host is contacted.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from ...errors import SpecError
from ...node.job import Count, Node, Plan
from ...options.args import Split
from ...options.hostfile import parse_hostfile
from ...options.hosts import Host, choose, parse_hosts, split_list
from ...options.kinds import Value
from ...options.locate import read_list
from ...options.options import DEFAULT
from ...options.sources import Given
from ...options.spec import Elsewhere, JobSpec, Site
from ..face import CommandLine
from ..gather import gather_given
from ..hosts_spec import make_hosts_spec


class FabricReach(NamedTuple):
    hosts: tuple[Host, ...]
    agent_python: str | None = None  # path of the agent's Python there; None: search
    connect_timeout_s: float = DEFAULT["connect_timeout"]
    max_connections: int = 32  # opened at once
    # None: ask where there is a terminal
    host_key_policy: Literal["ask", "accept_new", "reject"] | None = None


def make_fabric_spec(line: CommandLine) -> JobSpec:
    """Return the job of `pslaunch fabric`. Raises SpecError."""
    reach = _read_reach(line.given, line.cwd)
    if not any(name in line.given for name in ("job_dispatch_package", "job_workspace")):
        raise SpecError(
            "no workspace: give --job_dispatch_package=DIR to send a folder to the hosts, "
            "or --job_workspace=DIR for a folder on them"
        )

    def make_site(_draft: Plan, node: Node) -> Site:
        nodes = [node._replace(id=i, name=h.text, ranks=h.times) for i, h in enumerate(reach.hosts)]
        return Site(tuple(nodes), Count("per_rank", 1), reach=reach)

    return make_hosts_spec(line, "fabric", make_site)


def find_first_host(values: Mapping[str, str], cwd: Path) -> Elsewhere:
    """Return the first host of a conf.py, which knows its jobs. Raises SpecError."""
    named = Split({"conf": [Value(values["conf"], "--conf")]})
    reach = _read_reach(gather_given("fabric", named, cwd), cwd)
    return Elsewhere("fabric", reach, f"{reach.hosts[0].text}, the first of the hosts")


def _read_reach(given: Given, cwd: Path) -> FabricReach:
    others = "agent_python", "connect_timeout", "max_connections", "host_key_policy"  # as its fields follow
    return FabricReach(tuple(_read_hosts(given, cwd)), *map(given.read, others))


def _read_hosts(given: Given, cwd: Path) -> list[Host]:
    listed, file = given.get_all("hosts"), given.get("hostfile")
    conf = given.get("conf")
    conf_py = conf.text if conf else "conf.py" if "conf.py" in given.files else ""
    words = [(word, value.label) for value in listed for word in split_list(value.text)]
    # In conf.py a number after a host is its port, as for Fabric.
    slots = not (conf_py and listed and listed[0].label.startswith(conf_py))
    found = parse_hosts([word for word, _ in words], [label for _, label in words], slots=slots)
    if file:
        text = read_list(cwd / file.text, file.shown)
        found = parse_hostfile(text, file.text, ports=True)
    if not found:
        why = f"{conf_py} has no HOSTS" if conf_py else "there is no conf.py with HOSTS"
        raise SpecError(f"no hosts: {why}; give --hosts=user@host,... or --hostfile=FILE")
    return choose(found, given.get_all("include"), given.get_all("exclude"))
