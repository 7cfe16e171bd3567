"""Planning: `JobSpec` -> `Plan`, and its dry run. Starts nothing."""

from __future__ import annotations

import json
import os.path
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pslaunch.runtime.shared.env import PSERVER, TRAINER, get_snapshot_var

from .errors import PreflightError
from .node import binding, job
from .node.job import Count, Facts, Install, Node, Package, Placed, Plan, Role
from .options.detect import choose_server, find_gpu_use, has_import
from .options.spec import JobSpec

# -P: a file of the workspace must not shadow a module of the pserver.
BUNDLED_PSERVER = ("-P", "-m", "pslaunch.runtime.pserver")


def make_plan(spec: JobSpec, job_id: str) -> Plan:
    """Return the plan of a job; with `--server auto` it reads the program's syntax tree."""
    server, why = choose_server(spec.server, spec.server_num, spec.workspace, spec.program)
    argv, site = spec.command, spec.site
    roles = [Role(TRAINER, _choose_count(spec.worker_num, site.default_count), argv)]
    if server != "none":
        bundled = (spec.python or job.PYTHON if site.remote else sys.executable, *BUNDLED_PSERVER)
        how_many = _choose_count(spec.server_num, site.default_count)
        roles.insert(0, Role(PSERVER, how_many, argv if server == "script" else bundled))
    wants = spec.draft.wants
    if wants.gpus_per_trainer is None:
        use = find_gpu_use(spec.workspace / spec.program, spec.workspace)
        deals = use == "sees" or (not use and (wants.gpus or spec.draft.use_gpu))
        wants = wants._replace(gpus_per_trainer=None if deals else 0)
    return spec.draft._replace(
        wants=wants,
        job_id=job_id,
        server=server,
        why=why,
        roles=tuple(roles),
        install=_make_install(spec),
        nodes=site.nodes,
        package=_skip_snapshots(spec),
        trace=spec.trace is not None,
        tensorflow=has_import(spec.workspace, spec.program, "tensorflow"),
    )


def _skip_snapshots(spec: JobSpec) -> Package | None:
    """Return the package to send, without the snapshots and exports that earlier jobs have left in it."""
    package, added = spec.site.package, spec.draft.added_env
    folders = [added.get(get_snapshot_var(name)) for name in ("snapshot_dir", "export_dir")]
    if package is None:
        return None
    inside = [os.path.relpath(Path(package.folder, one), package.folder) for one in folders if one]
    return package._replace(skip=(*package.skip, *inside))


def _make_install(spec: JobSpec) -> Install | None:
    if not spec.install:
        return None
    from .ship import wheel

    name = spec.wheel.name if spec.wheel else wheel.make_wheel_name()
    return Install(name, tuple(wheel.list_pins()), offline=spec.wheelhouse is not None)


def _choose_count(given: int | None, default: Count) -> Count:
    return default if given is None else Count("total", given)


def place_found(plan: Plan, found: Sequence[Node]) -> Placed:
    """Place a job on its declared nodes, or on those found by their agents. Raises PreflightError."""
    try:
        return job.place(plan, plan.nodes or found)
    except ValueError as e:
        raise PreflightError(f"the nodes of {plan.backend} can't have this job: {e}") from None


def make_dry_run(placed: Placed, facts: Facts) -> dict[str, Any]:
    """Return a job's known values as data; symbols such as {pserver:1.port} stand for the others."""
    plan = placed.plan
    return {
        "job": plan.job_id,
        "name": plan.name,
        "backend": plan.backend,
        "server": plan.server,
        "why": plan.why,
        "limits": plan.limits._asdict(),
        "install": plan.install._asdict() if plan.install else None,
        "setup": list(plan.setup),
        "nodes": [node._asdict() for node in placed.nodes],
        "processes": [
            {"process": p.key, "node": p.node, "argv": start["argv"], "cwd": start["cwd"], "log": p.log,
             "env": {**start["added_env"], **start["contract"]},
             **({"cores": start["cores"]} if plan.wants.bind_cores else {})}
            for p, start in zip(placed.processes, binding.bind(placed, facts), strict=True)
        ],
    }  # fmt: skip


def render_plan(data: dict[str, Any]) -> str:
    """Render a dry run as text: a block for each node and process, commands in shell syntax."""
    lines = [f"job {data['job']} ({data['backend']}); pservers: {data['server']}, {data['why']}"]
    for node in data["nodes"]:
        where = node["addr"] or "address not known yet"
        lines.append(f"node {node['id']}: {node['name']} ({where}), workspace {node['workspace']}")
    for process in data["processes"]:
        lines += ["", f"{process['process']} on node {process['node']}", f"  {shlex.join(process['argv'])}"]
        lines += [f"  log {process['log']}"]
        lines += [f"  cores {', '.join(map(str, process['cores']))}"] if process.get("cores") else []
        lines += [f"  {name}={json.dumps(value)[1:-1]}" for name, value in sorted(process["env"].items())]
    if start := data.get("start"):
        argv = start.get("argv")
        lines += ["", *(["starts its agents by", f"  {shlex.join(argv)}"] if argv else [])]
        lines += [f"  {name}: {line}" for name, value in start.items() if name != "argv" for line in value]
    return "\n".join(lines)
