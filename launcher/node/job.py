"""A job as data: its plan, the nodes of its processes (`place`), and the facts that nodes report. Pure.

A dry run has `Facts.make_symbolic`: symbols like `{node:2.addr}` or `{pserver:1.port}` replace facts that
only nodes know.
"""

# ruff: noqa: UP045 - Python 3.9 evaluates the types of fields in `parse`
from __future__ import annotations

import functools
import os.path
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count, filterfalse
from typing import Any, NamedTuple, Optional, get_args, get_type_hints

from pslaunch.runtime.shared import env
from pslaunch.runtime.shared.env import PSERVER, SETUP_LOG, TRAINER, Port

GLOO, MASTER = "gloo", "master"  # ports on node 0 that belong to no process
PYTHON = "{python}"  # first word of an argv: the Python of the node
FIRST_PORT = 7164  # v2's default; without a given port, the search for free ones begins here


class Count(NamedTuple):
    """Number of processes of a role: `n` in all, on each node, or for each rank of a node."""

    rule: str  # total, per_node, per_rank
    n: int


class Role(NamedTuple):
    """One role of a job: its program and number of processes."""

    name: str  # PSERVER or TRAINER
    how_many: Count
    argv: tuple[str, ...]


class Node(NamedTuple):
    """A node as declared, then as reported by its agent.

    `addr`, at which others reach it, is empty until the nodes have tried. Paths on another machine may begin
    with `~`, which its agent replaces.
    """

    id: int
    name: str
    addr: str
    workspace: str = ""
    log_dir: str = ""
    output_dir: str = ""
    state_dir: str = ""  # lock and caches
    ranks: int = 1
    dispatched: bool = False  # its workspace is filled from the package
    python: str = ""  # replaces PYTHON there; empty until its agent has reported it
    roles: tuple[str, ...] = (PSERVER, TRAINER)  # of the processes allowed on it
    trainers: tuple[int, ...] = ()  # ranks counted by the scheduler that started its agent; none: dealt out

    @property
    def shown_addr(self) -> str:
        """Its address, or a symbol while that is unknown."""
        return self.addr or f"{{node:{self.id}.addr}}"

    @property
    def setup_key(self) -> str:
        """Name shown with the output of its preparation."""
        return f"setup/{self.id}"

    @property
    def setup_log(self) -> str:
        return f"{self.log_dir}/{SETUP_LOG}"

    def place_in(self, workspace: str, log_dir: str | None = None) -> Node:
        """Return it with programs in `workspace`; output and lock follow `log_dir`, if given."""
        base = log_dir or workspace
        return self._replace(
            workspace=workspace,
            log_dir=log_dir or f"{workspace}/log",
            output_dir=f"{base}/output",
            state_dir=f"{base}/.pslaunch",
        )


class Limits(NamedTuple):
    """Limits of a job: times in seconds, and a number."""

    grace_s: float = 5.0
    lost_after_s: float = 30.0
    stall_after_s: float = env.INIT_ARGS["stall_after"].default
    stall_timeout_s: Optional[float] = None
    trainer_timeout_s: float = env.TRAINER_TIMEOUT_S
    timeout_s: Optional[float] = None  # of the whole job
    max_restarts: int = 0
    restart_after_s: float = 60.0  # of running, which is progress where no program reports steps


class Wants(NamedTuple):
    """What trainers are to have of their node."""

    gpus: Optional[str] = None  # of the node: their number, or a list of them
    gpus_per_trainer: Optional[int] = None  # None: an even share; 0: none are dealt out
    bind_cores: bool = False


class Install(NamedTuple):
    """Contents of the environment made on each node, beside the workspace's requirements."""

    wheel: str  # the name of the file sent
    pins: tuple[str, ...]  # requirements of the bundled runtime
    offline: bool  # everything is sent, no package index is asked


class Package(NamedTuple):
    """A folder of the launcher's machine that is sent to the nodes."""

    folder: str
    skip: tuple[str, ...] = ()  # paths in it that the job itself writes
    links_out: bool = False  # nodes share the file system: links may lead out of the folder
    data_shards: tuple[str, ...] = ()  # patterns with a number: files of one trainer each
    links: Mapping[str, str] = {}  # names in it to folders mounted on the nodes
    data_shard_label: str = "--shard"  # the option, for messages
    link_label: str = "--link"
    extras: Mapping[str, str] = {}  # names in it to further folders that are sent


class Plan(NamedTuple):
    """All decisions made before any node is asked; first, in a JobSpec, those that the user has made."""

    job_id: str = ""
    name: str = ""
    epoch: int = 0
    backend: str = ""
    server: str = ""  # bundled, script or none
    why: str = ""  # the reason for `server`
    roles: tuple[Role, ...] = ()
    port: Optional[int] = None  # fixed if given by the user, else proposed by the head
    ports_num: int = env.INIT_ARGS["ports_num"].default
    ports_num_for_sparse: int = env.INIT_ARGS["ports_num_for_sparse"].default
    trainer_count: int = env.INIT_ARGS["trainer_count"].default  # compute threads of a trainer
    use_gpu: bool = env.INIT_ARGS["use_gpu"].default
    wants: Wants = Wants()
    added_env: Mapping[str, str] = {}
    flags: Mapping[str, str] = {}  # of the trainer
    limits: Limits = Limits()
    install: Optional[Install] = None
    setup: tuple[str, ...] = ()  # commands that the node's shell runs once before the start
    nic: str = ""  # the interface at whose address others reach a node, if given
    nodes: tuple[Node, ...] = ()  # empty where agents report them
    package: Optional[Package] = None  # None: the workspace exists on the nodes already
    trace: bool = False  # of control messages, on every node
    keep_logs: int = 3  # of so many earlier jobs in a log folder
    tensorflow: bool = False  # the program imports it
    lost_advice: str = ""  # for a lost node, if its backend has its own

    @property
    def has_setup(self) -> bool:
        """True if nodes are prepared before programs run."""
        return bool(self.install or self.setup)

    @property
    def loses_parts(self) -> bool:
        """True if snapshots need the disk of each node that has a pserver, of several."""
        found = {name for name in env.SNAPSHOT_ARGS if env.get_snapshot_var(name) in self.added_env}
        asked = found & {"snapshot_steps", "snapshot_minutes"}
        return bool(asked) and len(self.nodes) != 1 and not found & {"snapshot_copies", "snapshot_dir"}

    @property
    def outlives_head(self) -> bool:
        """True if pod 0 comes again, with a head that counts on by what other nodes or snapshots tell."""
        given = self.added_env.get(env.get_snapshot_var("snapshot_dir"), "")
        found = len(self.nodes) > 1 or os.path.isabs(given)
        return found and self.backend == "k8s" and self.limits.max_restarts > 0

    @property
    def trainers_listen(self) -> bool:
        """True if each trainer has a port of its own."""
        return self.server != "bundled" or self.tensorflow


class Process(NamedTuple):
    """One process with its node and rank."""

    role: str
    rank: int
    node: int
    local_rank: int
    argv: tuple[str, ...]
    log: str  # absolute, on its node

    @property
    def key(self) -> str:
        return f"{self.role}/{self.rank}"


class Placed(NamedTuple):
    """A plan whose processes have nodes: pservers first, each role in order of ranks."""

    plan: Plan
    nodes: tuple[Node, ...]
    processes: tuple[Process, ...]

    def list_processes(self, role: str) -> list[Process]:
        return [p for p in self.processes if p.role == role]


class Share(NamedTuple):
    """What one process has of its node; empty: all of it. Symbols in a dry run."""

    gpus: tuple[str, ...] = ()
    cores: tuple[Any, ...] = ()


class Facts(NamedTuple):
    """Values reported by agents or chosen by the head, beside the nodes' own: paths, ports, shares."""

    run_dirs: tuple[str, ...]  # of each node: sockets and secret of this run
    ports: Mapping[str, tuple[Port, ...]]  # by process key, and GLOO, MASTER
    shares: Mapping[str, Share] = {}  # by process key

    @staticmethod
    def make_symbolic(placed: Placed) -> Facts:
        """Return the facts of a dry run: a symbol for each unknown value."""
        declared = placed.plan.port
        ports: dict[str, tuple[Port, ...]] = {}
        for key, values in propose_ports(placed, declared or FIRST_PORT, FIRST_PORT).items():
            name = f"{key.replace('/', ':')}.port"
            symbols = (f"{{{name}+{i}}}" if i else f"{{{name}}}" for i in range(len(values)))
            ports[key] = values if declared and key.startswith(PSERVER) else tuple(symbols)
        plan, shares = placed.plan, {}
        for process in placed.list_processes(TRAINER):
            name = process.key.replace("/", ":")
            gpus = tuple(f"{{{name}.gpu:{i}}}" for i in range(plan.wants.gpus_per_trainer or 0))
            shares[process.key] = Share(gpus, (f"{{{name}.cores}}",) if plan.wants.bind_cores else ())
        return Facts(tuple(f"{{node:{n.id}.run}}" for n in placed.nodes), ports, shares)


def to_data(value: object) -> Any:
    """Return data with named tuples as JSON objects, also inside tuples and dicts."""
    if isinstance(value, dict):
        return {key: to_data(v) for key, v in value.items()}
    if not isinstance(value, tuple):
        return value
    fields = getattr(value, "_fields", None)
    return {k: to_data(v) for k, v in zip(fields, value)} if fields else [to_data(v) for v in value]


_get_kinds = functools.cache(get_type_hints)


def parse(kind: Any, data: Any) -> Any:
    """Return what `to_data` converted, of this type. Raises TypeError for data of another version."""
    if hasattr(kind, "_fields"):
        kinds = _get_kinds(kind)
        return kind(**{name: parse(kinds.get(name), value) for name, value in data.items()})
    part = next(iter(get_args(kind)), None)  # of a tuple, or of an optional
    if isinstance(data, list):
        return tuple(parse(part, each) for each in data)
    return parse(part, data) if data is not None and hasattr(part, "_fields") else data


def place(plan: Plan, nodes: Sequence[Node]) -> Placed:
    """Give every process its node and rank: ranks of a node follow each other, as under torchrun.

    Raises ValueError where the nodes do not allow it.
    """
    processes: list[Process] = []
    for role in plan.roles:
        on_node: Counter[int] = Counter()
        for rank, node in enumerate(deal(role.name, role.how_many, nodes)):
            local_rank = on_node[node.id]
            on_node[node.id] += 1
            log = os.path.join(node.log_dir, env.get_output_log(role.name, rank, local_rank))
            processes.append(Process(role.name, rank, node.id, local_rank, role.argv, log))
    return Placed(plan, tuple(nodes), tuple(processes))


def deal(role: str, count: Count, nodes: Sequence[Node]) -> list[Node]:
    """Return the node of each process of a role, in order of ranks. Raises ValueError."""
    nodes = [node for node in nodes if role in node.roles]
    if role == TRAINER and any(node.trainers for node in nodes):  # the nodes have declared their ranks
        found = sorted((rank, i) for i, node in enumerate(nodes) for rank in node.trainers)
        ranks = [rank for rank, _ in found]
        if ranks != [*range(len(ranks))]:
            raise ValueError(f"the nodes' trainers are {ranks}, not each rank from 0 on once")
        if count.rule == "total" and count.n != len(found):
            raise ValueError(f"{count.n} trainers are asked for, and the nodes have {len(found)}")
        return [nodes[i] for _, i in found]
    if count.n and not nodes:
        raise ValueError(f"no node takes the role {role}")
    if count.rule == "total":
        return [nodes[i * min(len(nodes), count.n) // count.n] for i in range(count.n)]
    if count.rule == "per_node":
        return [node for node in nodes for _ in range(count.n)]
    return [node for node in nodes for _ in range(node.ranks * count.n)]


def propose_ports(placed: Placed, first: int, first_other: int) -> dict[str, tuple[int, ...]]:
    """Return ports for all listeners: pserver k of an address has the k-th block from `first`.

    Where trainers listen, each has a port, and in script mode Gloo one, from `first_other`, counted by
    address past the pservers' ports there. MASTER's port is unique over all addresses, since PyTorch listens
    at every address of a machine, as tensorflow does at the trainers' ports.
    """
    plan, trainers = placed.plan, placed.list_processes(TRAINER)
    block = plan.ports_num + plan.ports_num_for_sparse
    ports: dict[str, tuple[int, ...]] = {}
    used = {node.shown_addr: set[int]() for node in placed.nodes}
    for process in placed.list_processes(PSERVER):
        there = used[placed.nodes[process.node].shown_addr]
        start = first + len(there)
        ports[process.key] = tuple(range(start, start + block))
        there.update(ports[process.key])
    used_anywhere = set[int]().union(*used.values())
    free = {addr: filterfalse(there.__contains__, count(first_other)) for addr, there in used.items()}
    free_everywhere = filterfalse(used_anywhere.__contains__, count(first_other))
    others = [(p.key, p.node) for p in trainers] if plan.trainers_listen else []
    others += [(GLOO, 0)] if plan.server == "script" else []
    others += [(MASTER, 0)] if trainers else []
    for key, node in others:
        alone = plan.tensorflow or key == MASTER
        port = next(free_everywhere if alone else free[placed.nodes[node].shown_addr])
        ports[key] = (port,)
        used_anywhere.add(port)
    return ports


def choose_port_after(plan: Plan, pservers: int) -> int:
    """Return the first port past those of so many pservers if the user gave theirs, else 0 for any."""
    of_pservers = pservers * (plan.ports_num + plan.ports_num_for_sparse)
    port = plan.port + max(1, of_pservers) if plan.port else 0  # doors use the first one
    return port if port < 1 << 16 else 0


def choose_head_port(placed: Placed) -> int:
    """Return the port of a head on a node, as `choose_port_after` does."""
    return choose_port_after(placed.plan, len(placed.list_processes(PSERVER)))
