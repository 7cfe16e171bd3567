"""From what the user wants to what will run: `JobSpec` -> `Plan`, and a dry run of it. Starts nothing."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from pslaunch.runtime.shared.env import PSERVER, TRAINER

from .node import job
from .node.job import Count, Facts, Install, Limits, Node, Package, Placed, Plan, Role
from .options.detect import choose_server
from .options.locate import DEFAULT_PROGRAM
from .options.spec import JobSpec, PackageSpec, Reach

# -P: a file of the workspace must not shadow a module of the pserver.
BUNDLED_PSERVER = ("-P", "-m", "pslaunch.runtime.pserver")


def make_plan(spec: JobSpec, job_id: str) -> Plan:
    """The plan of a job; reads the program's syntax tree where `--server auto` asks for it."""
    server, why = choose_server(spec.server, spec.server_num, spec.workspace, spec.program or DEFAULT_PROGRAM)
    argv, here = spec.command, spec.reach is None
    roles = [Role(TRAINER, _count(spec, spec.worker_num), argv)]
    if server != "none":
        bundled = (sys.executable if here else spec.python or job.PYTHON, *BUNDLED_PSERVER)
        roles.insert(0, Role(PSERVER, _count(spec, spec.server_num), argv if server == "script" else bundled))
    return Plan(
        job_id=job_id,
        name=spec.job_name,
        epoch=0,
        backend=spec.backend,
        server=server,
        why=why,
        roles=tuple(roles),
        port=spec.port,
        ports_num=spec.ports_num,
        ports_num_for_sparse=spec.ports_num_for_sparse,
        trainer_count=spec.trainer_count,
        use_gpu=spec.use_gpu,
        added_env=dict(spec.env),
        flags=dict(spec.trainer_flags),
        limits=Limits(
            spec.grace_s,
            spec.lost_after_s,
            spec.stall_after_s,
            spec.stall_timeout_s,
            spec.trainer_timeout_s,
        ),
        install=_install(spec),
        setup=spec.setup,
        nic=spec.reach.nic or "" if spec.reach else "",
        nodes=remote_nodes(spec, spec.reach) if spec.reach else local_nodes(spec),
        package=_sent(spec.package) if spec.reach else _copied(spec),
    )


def _install(spec: JobSpec) -> Install | None:
    if not spec.install:
        return None
    from .ship import wheel

    name = spec.wheel.name if spec.wheel else wheel.wheel_name()
    return Install(name, tuple(wheel.pins()), offline=spec.wheelhouse is not None)


def _count(spec: JobSpec, n: int | None) -> Count:
    """How many processes of a role: as many as asked for, else one, or one for each time a host is named."""
    if n is not None:
        return Count("total", n)
    return Count("total", 1) if spec.reach is None else Count("per_rank", 1)


def remote_nodes(spec: JobSpec, reach: Reach) -> tuple[Node, ...]:
    """The hosts as nodes. What is sent goes to ROOT_DIR/JOB_NAME; paths may begin with `~`, a node's home."""
    sent = f"{reach.root_dir.rstrip('/')}/{spec.job_name}"
    workspace = sent if spec.package else str(spec.workspace)
    base = workspace if spec.log_dir is None else str(spec.log_dir)
    return tuple(
        Node(
            id=i,
            name=host.text,
            addr="",
            workspace=workspace,
            log_dir=f"{workspace}/log" if spec.log_dir is None else base,
            output_dir=f"{base}/output",
            state_dir=f"{base}/.pslaunch",
            ranks=host.times,
            dispatched=spec.package is not None,
        )
        for i, host in enumerate(reach.hosts)
    )


def _sent(package: PackageSpec | None) -> Package | None:
    if package is None:
        return None
    return Package(
        str(package.folder),
        shards=package.shards,
        links=dict(package.links),
        shard_label=package.shard_label,
        link_label=package.link_label,
    )


def _copied(spec: JobSpec) -> Package | None:
    """Further nodes of a simulated cluster are filled from the workspace, without what the job writes."""
    if spec.nodes == 1:
        return None
    logs = spec.log_dir
    inside = logs is not None and logs != spec.workspace and logs.is_relative_to(spec.workspace)
    skip = (str(logs.relative_to(spec.workspace)),) if logs is not None and inside else ()
    return Package(str(spec.workspace), skip, links_out=True)


def local_nodes(spec: JobSpec) -> tuple[Node, ...]:
    """This machine as node 0, in place; each further node of a simulated cluster has a copy of the workspace.

    Logs, output and lock of node 0 are in the workspace, or all below `--log_dir`; copies are below its lock.
    """
    base = spec.log_dir or spec.workspace
    state = base / ".pslaunch"
    nodes = [_node(0, spec.workspace, spec.log_dir or spec.workspace / "log", base / "output", state)]
    for i in range(1, spec.nodes):
        copy = state / "nodes" / str(i) / spec.workspace.name
        nodes.append(_node(i, copy, copy / "log", copy / "output", copy / ".pslaunch", dispatched=True))
    return tuple(nodes)


def _node(
    i: int, workspace: Path, log_dir: Path, output_dir: Path, state_dir: Path, *, dispatched: bool = False
) -> Node:
    return Node(
        id=i,
        name="localhost" if i == 0 else f"localhost-{i}",
        addr=f"127.0.{i // 250}.{i % 250 + 1}",  # the whole of 127/8 is this machine
        workspace=str(workspace),
        log_dir=str(log_dir),
        output_dir=str(output_dir),
        state_dir=str(state_dir),
        dispatched=dispatched,
    )


def dry_run(placed: Placed, facts: Facts) -> dict[str, Any]:
    """What is known of a job, as data; symbols such as {pserver:1.port} stand for the rest."""
    plan, bound = placed.plan, job.bind(placed, facts)
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
            {"process": s.key, "node": s.node, "argv": list(s.argv), "cwd": s.cwd, "log": s.log,
             "env": {**s.added_env, **s.contract}}
            for s in bound.starts
        ],
    }  # fmt: skip


def render(data: dict[str, Any]) -> str:
    """A dry run for people: a block for each node and each process, commands as a shell would take them."""
    lines = [f"job {data['job']} ({data['backend']}); pservers: {data['server']}, {data['why']}"]
    for node in data["nodes"]:
        where = node["addr"] or "address not known yet"
        lines.append(f"node {node['id']}: {node['name']} ({where}), workspace {node['workspace']}")
    for process in data["processes"]:
        lines += ["", f"{process['process']} on node {process['node']}", f"  {shlex.join(process['argv'])}"]
        lines += [f"  log {process['log']}"]
        lines += [f"  {name}={json.dumps(value)[1:-1]}" for name, value in sorted(process["env"].items())]
    return "\n".join(lines)
