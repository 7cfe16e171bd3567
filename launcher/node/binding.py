"""The literal values of a job's processes (`bind`): arguments, and the environment contract. Pure.

The runtime reads these variables by runtime/shared/env.py; docs/environment.md documents them. A user's own
values are never changed.
"""

from __future__ import annotations

import os.path
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING

from pslaunch.runtime.shared import env
from pslaunch.runtime.shared.env import PSERVER, TRAINER

from . import job
from .job import Facts, Node, Placed, Plan, Process, Share

if TYPE_CHECKING:
    from .messages import StartMsg


def bind(placed: Placed, facts: Facts) -> list[StartMsg]:
    """Return an order to start for each process, in their order; all is literal, or symbols in a dry run."""
    of_job, starts = _make_job_environ(placed, facts), []
    trainers = Counter(p.node for p in placed.list_processes(TRAINER))
    for p in placed.processes:
        contract = {**of_job, **_make_own_environ(placed, facts, p)}
        if p.role == TRAINER:
            contract.update(_make_trainer_environ(placed, facts, p, trainers))
        starts.append(_make_start(placed, p, contract, facts.shares.get(p.key, Share())))
    return starts


def _make_job_environ(placed: Placed, facts: Facts) -> dict[str, str]:
    """Return the variables that all processes have alike."""
    plan, addrs = placed.plan, [node.shown_addr for node in placed.nodes]
    pservers, trainers = placed.list_processes(PSERVER), placed.list_processes(TRAINER)

    def join(processes: Iterable[Process]) -> str:
        return ",".join(env.join_addr(addrs[p.node], facts.ports[p.key][0]) for p in processes)

    stall_timeout_s, gloo = plan.limits.stall_timeout_s, facts.ports.get(job.GLOO)
    return {
        "PADDLE_INIT_USE_GPU": str(plan.use_gpu),
        "PADDLE_INIT_TRAINER_COUNT": str(plan.trainer_count),
        "PADDLE_INIT_PORT": str(facts.ports[pservers[0].key][0] if pservers else plan.port or job.FIRST_PORT),
        "PADDLE_INIT_PORTS_NUM": str(plan.ports_num),
        "PADDLE_INIT_PORTS_NUM_FOR_SPARSE": str(plan.ports_num_for_sparse),
        "PADDLE_INIT_NUM_GRADIENT_SERVERS": str(len(trainers)),
        "PADDLE_INIT_PSERVERS": ",".join(addrs[p.node] for p in pservers),
        "PADDLE_INIT_STALL_AFTER": f"{plan.limits.stall_after_s:g}",
        **({} if stall_timeout_s is None else {"PADDLE_INIT_STALL_TIMEOUT": f"{stall_timeout_s:g}"}),
        "PADDLE_CLUSTER_TRAIN": "True",
        "PADDLE_PSERVERS_IP_PORT_LIST": join(pservers),
        "PADDLE_TRAINER_ENDPOINTS": join(trainers if plan.trainers_listen else ()),
        "PADDLE_TRAINERS_NUM": str(len(trainers)),
        "PADDLE_COORDINATOR_ENDPOINTS": "",
        "PADDLE_GLOO_RENDEZVOUS": "3",
        "PADDLE_GLOO_HTTP_ENDPOINT": env.join_addr(addrs[0], gloo[0]) if gloo else "",
        "PSLAUNCH_JOB_ID": plan.job_id,
        "PSLAUNCH_EPOCH": str(plan.epoch),
        "PSLAUNCH_NODES": ",".join(addrs),
    }


def _make_own_environ(placed: Placed, facts: Facts, p: Process) -> dict[str, str]:
    node, run_dir = placed.nodes[p.node], facts.run_dirs[p.node]
    return {
        "TRAINING_ROLE": p.role.upper(),
        "POD_IP": node.shown_addr,
        "PADDLE_PORT": str(facts.ports.get(p.key, ("",))[0]),
        "PADDLE_GLOO_FS_PATH": f"{run_dir}/gloo" if job.GLOO in facts.ports else "",
        "PSLAUNCH_ROLE": p.role,
        "PSLAUNCH_RANK": str(p.rank),
        "PSLAUNCH_LOCAL_RANK": str(p.local_rank),
        "PSLAUNCH_WORKSPACE": node.workspace,
        "PSLAUNCH_LOG_DIR": node.log_dir,
        "PSLAUNCH_OUTPUT_DIR": node.output_dir,
        "PSLAUNCH_SNAPSHOT_DIR": find_snapshots(placed.plan, node),
        "PSLAUNCH_NODE_ID": str(p.node),
        "PSLAUNCH_NODE_IP": node.shown_addr,
        "PSLAUNCH_PROGRESS": f"{run_dir}/{p.role}-{p.rank}.sock",
        "PSLAUNCH_SECRET_FILE": f"{run_dir}/secret",
    }


def _make_trainer_environ(
    placed: Placed, facts: Facts, p: Process, trainers: Mapping[int, int]
) -> dict[str, str]:
    """Return a trainer's own variables. trainers: their number on each node."""
    size = str(sum(trainers.values()))
    return {
        "PADDLE_INIT_TRAINER_ID": str(p.rank),
        "PADDLE_TRAINER_ID": str(p.rank),
        "OMPI_COMM_WORLD_RANK": str(p.rank),
        "OMPI_COMM_WORLD_SIZE": size,
        "FLAGS_selected_gpus": "0",
        "FLAGS_selected_xpus": "0",
        "RANK": str(p.rank),
        "WORLD_SIZE": size,
        "LOCAL_RANK": str(p.local_rank),
        "LOCAL_WORLD_SIZE": str(trainers[p.node]),
        "GROUP_RANK": str(p.node),
        "MASTER_ADDR": placed.nodes[0].shown_addr,
        "MASTER_PORT": str(facts.ports[job.MASTER][0]),
        "TORCHELASTIC_RESTART_COUNT": str(placed.plan.epoch),
        **{env.get_init_var(name): text for name, text in placed.plan.flags.items()},
    }


def _make_start(placed: Placed, process: Process, contract: dict[str, str], share: Share) -> StartMsg:
    plan, node = placed.plan, placed.nodes[process.node]
    bundled = process.role == PSERVER and plan.server != "script"
    written = {**contract, **env.make_gpu_environ(share.gpus)}
    if plan.tensorflow and not bundled:
        written[env.TF_CONFIG] = env.make_tf_config(contract)
    for name in env.COMMON_NAMES & plan.added_env.keys():
        written.pop(name, None)
    argv = process.argv + (_make_bundled_options(plan, contract) if bundled else ())
    if argv[0] == job.PYTHON:
        argv = (node.python or f"{{node:{node.id}.python}}", *argv[1:])
    return {
        "type": "start", "key": process.key, "role": process.role, "argv": list(argv), "cwd": node.workspace,
        "added_env": dict(plan.added_env), "contract": written, "log": process.log, "keep_ports": bundled,
        "cores": list(share.cores),
    }  # fmt: skip


def find_snapshots(plan: Plan, node: Node) -> str:
    """Return the folder of snapshots; one that the user gave may be in the workspace."""
    given = plan.added_env.get(env.get_snapshot_var("snapshot_dir"))
    base = node.state_dir.removesuffix(f"/node-{node.id}")  # whichever of those that share it was first
    return os.path.join(node.workspace, given) if given else f"{base}/snapshots"


def _make_bundled_options(plan: Plan, contract: Mapping[str, str]) -> tuple[str, ...]:
    names = "ports_num", "ports_num_for_sparse", "num_gradient_servers", "stall_after", "stall_timeout"
    given = {name: contract.get(env.get_init_var(name)) for name in names}
    address = {"host": contract["POD_IP"], "port": contract["PADDLE_PORT"]}
    options = {**address, **given, "trainer_timeout": f"{plan.limits.trainer_timeout_s:g}"}
    return tuple(f"--{name}={value}" for name, value in options.items() if value is not None)


@cache
def list_contract_names(role: str = TRAINER) -> frozenset[str]:
    """Return the contract's variables for a role; trainers have all. Stale ones are removed, and users can't
    set them, except those of COMMON_NAMES."""
    roles = tuple(job.Role(name, job.Count("total", 1), ("",)) for name in (PSERVER, TRAINER))
    placed = job.place(Plan(roles=roles), [Node(0, "", "")])
    pserver, trainer = bind(placed, Facts.make_symbolic(placed))
    written = (trainer if role == TRAINER else pserver)["contract"]
    return frozenset({*written, env.LISTEN_FDS, env.TF_CONFIG})


def compose(
    inherited: Mapping[str, str], added: Mapping[str, str], contract: Mapping[str, str]
) -> dict[str, str]:
    """Return a program's whole environment: inherited on its node, added by the user, the contract.

    Proxies and options of the launcher are removed unless added. Stale contract variables never reach a
    program, and those of mpirun never reach a pserver.
    """
    names = list_contract_names() | env.PROXIES
    is_pserver = contract.get("PSLAUNCH_ROLE") == PSERVER
    families = (env.OPTION_PREFIX, *(env.MPI_FAMILIES if is_pserver else ()))
    kept = {k: v for k, v in inherited.items() if k not in names and not k.startswith(families)}
    return {**env.DEFAULTS, **kept, **added, **contract}
