"""`pslaunch check`: inspects all hosts of a job in parallel, reports all problems, and starts no program.

Agents start as for a job; they inspect their nodes (node/agent/inspect.py), test the network, and end.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pslaunch.runtime.shared.env import PSERVER

from .. import __version__
from ..backends.base import Backend
from ..backends.lines import Line
from ..errors import HostError, PreflightError, PslaunchError, SpecError
from ..follow.way import SlowWork
from ..node import codes, job
from ..node.dealing import deal_resources
from ..node.dispatch.dispatch import split_by_node
from ..node.dispatch.manifest import Entry
from ..node.job import Facts, Node, Placed, Plan
from ..node.line.trace import Trace
from ..node.loop import Loop
from ..options.detect import find_imports
from ..options.spec import JobSpec
from ..plan import make_plan, place_found
from ..ship.package import list_sizes
from ..ship.wheel import list_pins
from .findings import Finding, Seen, Wanted, choose_check_code, judge_hosts
from .inspection import Inspection
from .report import tell

if TYPE_CHECKING:
    from ..node import messages

OWN_PACKAGE: Final = "pslaunch"
MPI_MODULE: Final = "mpi4py"
RUNTIME_MODULES: Final = ("pslaunch.runtime", "numpy")
FOR_VENV: Final = ("venv", "ensurepip")
PACKAGES: Final = (OWN_PACKAGE, "numpy")  # whose versions matter


def begin_trace(path: Path, side: str) -> Trace:
    """Open the file of --trace, before anything is started. Raises SpecError."""
    trace = Trace(side)
    try:
        trace.begin(str(path))
    except OSError as e:
        text = f"the trace {path} can't be written: {e.strerror}; give another --trace or PSLAUNCH_TRACE"
        raise SpecError(text) from None
    return trace


def check_after_failed_start(spec: JobSpec, backend: Backend, failed: Mapping[int, HostError]) -> bool:
    """Show the check of all hosts on stderr after some could not be reached; return False if not possible."""
    try:
        _, seen, findings = examine_hosts(spec, backend, failed)
        if tell(seen, findings, sys.stderr, as_json=False) == codes.OK:
            print("the checks find nothing else wrong with the hosts; see the failure above", file=sys.stderr)
    except (PslaunchError, OSError):
        return False
    return True


def examine_hosts(
    spec: JobSpec, backend: Backend, failed: Mapping[int, HostError], trace: Trace | None = None
) -> tuple[tuple[Node, ...], list[Seen], list[Finding]]:
    """Inspect all hosts; return nodes, observations and findings. Raises EndedEarlyError.

    failed: known unreachable hosts, by node; they are not tried again.
    """
    plan = make_plan(spec, "check")
    wanted = find_wanted(spec, plan.server)
    entries = list_sizes(plan.package) if plan.package else []
    with contextlib.ExitStack() as at_end:
        loop = Loop()
        for closing in (loop.close, backend.close):
            at_end.callback(closing)
        tried = [node for node in plan.nodes if node.id not in failed]
        work = SlowWork(loop, lambda: backend.try_start(tried, plan.limits))
        started = work.finish(backend, backend.cancel)
        errors = {**failed, **{node.id: x for node, x in started if isinstance(x, HostError)}}
        lines = [(node, x) for node, x in started if isinstance(x, Line)]
        inspection = Inspection(loop, lines, wanted, plan.limits.lost_after_s, trace)
        at_end.callback(inspection.close)
        placed = place_found(plan, [node for node, _ in started])
        inspection.ask_facts(lambda node: make_question(spec, wanted, placed, node))
        inspection.try_network(plan.port or 0)
        if MPI_MODULE in wanted.modules:
            inspection.try_mpi(spec.python or "", dict(plan.added_env), plan.limits.lost_after_s)
        inspection.end()
    sent = count_sent_bytes(placed, entries)
    answered = inspection.list_seen()
    seen = [answered.get(n.id) or Seen(n.name, errors.get(n.id)) for n in placed.nodes]
    _, lacks = deal_resources(placed, list_resources(seen))
    for node, one in zip(placed.nodes, seen, strict=True):
        one.lacks = lacks.get(node.id, "")
    return placed.nodes, seen, judge_hosts(seen, wanted, sent)


def list_resources(seen: Sequence[Seen]) -> dict[int, messages.Resources]:
    """Return the GPUs and cores of the nodes that have told them."""
    return {i: one.facts["resources"] for i, one in enumerate(seen) if one.facts}


def find_facts(spec: JobSpec, plan: Plan, backend: Backend) -> tuple[Placed, Facts]:
    """Return the job with facts of its hosts: addresses, paths, Pythons, free ports.

    Raises PreflightError with the exit code of a check after showing any problem on stderr.
    """
    nodes, seen, findings = examine_hosts(spec, backend, {})
    if code := choose_check_code(findings):
        tell(seen, findings, sys.stderr, as_json=False)
        raise PreflightError("a dry run with --connect needs hosts without problems; see above", code)
    placed = job.place(plan, [_add_facts(plan, *pair) for pair in zip(nodes, seen, strict=True)])
    shares, _ = deal_resources(placed, list_resources(seen))
    facts = Facts.make_symbolic(placed)._replace(shares=shares)
    if any(why for one in seen if one.facts for why in one.facts["ports"].values()):
        return placed, facts  # the job chooses others at its start
    return placed, facts._replace(ports={**facts.ports, **_propose_ports(placed)})


def _add_facts(plan: Plan, node: Node, one: Seen) -> Node:
    facts = one.facts
    assert facts is not None
    workspace = str(facts["folders"]["workspace"]["path"])
    logs = facts["folders"].get("log_dir")
    python = "" if plan.install else str(facts["agent_python"]["executable"])
    known = node._replace(addr=one.addr or str(facts["addrs"][0]), python=python)
    return known.place_in(workspace, str(logs["path"]) if logs else None)


# --- Needs and questions. ---


def find_wanted(spec: JobSpec, server: str) -> Wanted:
    """Return the needs of the job on every node."""
    program = spec.program
    found = find_imports(spec.workspace / program, spec.workspace)
    needed, later = dict(found.needed), dict(found.later)
    ours = needed.pop(OWN_PACKAGE, "") or later.pop(OWN_PACKAGE, "")
    who = "the pserver" if server == "bundled" else ours
    if who:
        needed = {**{name: needed.get(name, who) for name in RUNTIME_MODULES}, **needed}
    return Wanted(
        sent=spec.site.package is not None,
        port_given=spec.draft.port is not None,
        modules=dict.fromkeys(FOR_VENV, "--install") if spec.install else needed,
        later={} if spec.install else {name: where for name, where in later.items() if name not in needed},
        install=spec.install,
        pins=tuple(list_pins()) if spec.install else (),
        wheels=tuple(path.name for path in spec.wheelhouse.iterdir()) if spec.wheelhouse else None,
        version=__version__ if who else "",
    )


def make_question(spec: JobSpec, wanted: Wanted, placed: Placed, node: int) -> messages.InspectQuestion:
    here, plan = placed.nodes[node], placed.plan
    paths = {"workspace": here.workspace}
    if spec.log_dir is not None:
        paths["log_dir"] = here.log_dir
    return {
        "nic": plan.nic,
        "paths": paths,
        "lock": f"{here.state_dir}/lock",
        "files": [] if wanted.sent or spec.module else [f"{here.workspace}/{spec.program}"],
        "links": sorted(set(plan.package.links.values())) if plan.package else [],
        "ports": sorted(p for ports in _propose_ports(placed, node).values() for p in ports if p <= 65535),
        "python": spec.python or "",
        "modules": [*wanted.modules, *wanted.later],
        "packages": PACKAGES,
        "pins": list(wanted.pins) if wanted.wheels is None else [],
        "env": dict(plan.added_env),
        "bind_cores": plan.wants.bind_cores,
    }


def _propose_ports(placed: Placed, node: int | None = None) -> dict[str, tuple[int, ...]]:
    """Return the ports of the pservers, of all nodes or one; without --port, those proposed first."""
    ports = job.propose_ports(placed, placed.plan.port or job.FIRST_PORT, job.FIRST_PORT)
    return {p.key: ports[p.key] for p in placed.list_processes(PSERVER) if node in (None, p.node)}


def count_sent_bytes(placed: Placed, entries: Sequence[Entry]) -> list[int]:
    """Return the size of the package, with these entries, for each node, as if it had no file yet."""
    nodes, parts = placed.nodes, split_by_node(placed, {})
    if parts is None:
        return [sum(e.size for e in entries)] * len(nodes)
    part = parts(entries)
    return [sum(e.size for e in part(node.id)) for node in nodes]
