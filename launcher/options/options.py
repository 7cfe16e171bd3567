"""Options of commands: name, kind, help, default; the rows that several backends and later shells have.

Each backend lists its own rows and takes of these what its jobs have. Commands, files, JobSpec and
docs/options.md use the whole. `--help` imports it: keep it light.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pslaunch.runtime.shared import env
from pslaunch.runtime.shared.env import INIT_ARGS, TRAINER_TIMEOUT_S

from ..node.job import Limits, Plan
from .kinds import Choice, Flag, Number, OptionKind, Seconds, Text, Truth

MAX_PROCESSES: Final = 4096  # of one role
MAX_THREADS: Final = 1024
MAX_PORTS: Final = 1024  # of one kind, of one pserver
MIN_LOST_AFTER_S: Final = 3.0  # heartbeats come every second; less would end healthy jobs
GIVEN: Final = object()  # any value in place of the default


class Need(NamedTuple):
    """Value of another option beside which an option has no effect."""

    name: str
    value: Any
    why: str = ""  # after "has no effect"; made of name and value unless given

    @property
    def words(self) -> str:
        if self.why:
            return self.why
        if self.value is None or self.value is False:
            return f"without --{self.name}"
        named = self.value is True or self.value is GIVEN
        return f"with --{self.name}" if named else f"with --{self.name}={self.value}"


class Option(NamedTuple):
    """One option; backends whose rows differ have one each."""

    name: str
    kind: OptionKind
    help: str
    metavar: str = ""
    default: Any = None
    says: str = ""  # the default in words
    aliases: tuple[str, ...] = ()  # with their dashes
    needs: tuple[Need, ...] = ()

    @property
    def field(self) -> str:
        """Return its name in JobSpec or in the reach of its backend, with the unit."""
        return f"{self.name}_s" if isinstance(self.kind, Seconds) else self.name

    @property
    def names(self) -> tuple[str, ...]:
        return (f"--{self.name}", *self.aliases)

    @property
    def text(self) -> str:
        """Return its help with its default."""
        default = self.says or ("" if self.default is None else self._format_default())
        return f"{self.help} [default: {default}]" if default else self.help

    def _format_default(self) -> str:
        if isinstance(self.kind, Flag):
            return "off"
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)


def make_flag(name: str, text: str, aliases: tuple[str, ...] = (), needs: tuple[Need, ...] = ()) -> Option:
    """Return an option without a value, off unless given."""
    return Option(name=name, kind=Flag(), help=text, default=False, aliases=aliases, needs=needs)


def join_rows(*tables: Iterable[Option]) -> tuple[Option, ...]:
    """Return the rows of several tables; the first of a name counts."""
    found: dict[str, Option] = {}
    for table in tables:
        for option in table:
            found.setdefault(option.name, option)
    return tuple(found.values())


def pick_rows(table: Sequence[Option], *names: str) -> list[Option]:
    return [option for option in table if option.name in names]


# Needs of several rows.
SENT: Final = (Need("job_workspace", GIVEN, "where nothing is sent (--job_workspace)"),)
SERVED: Final = (Need("server_num", 0, "without pservers (--server_num=0)"),)
ATTACHED: Final = (Need("detach", True),)

SERVER_NUM: Final = Option(name="server_num", metavar="N", kind=Number(0, MAX_PROCESSES),
    help="Total number of parameter servers; with 0 each trainer trains alone.")  # fmt: skip
WORKER_NUM: Final = Option(
    name="worker_num", metavar="N", kind=Number(1, MAX_PROCESSES), help="Total number of trainers."
)
CONF: Final = Option(name="conf", metavar="FILE", kind=Text(),
    help="A conf.py; its ports, job name and variables are used, not its hosts.")  # fmt: skip
ROOT_DIR: Final = Option(name="root_dir", metavar="DIR", kind=Text(), says="the home folder", default="~",
    help="Folder on the hosts for the job's workspace.", needs=SENT)  # fmt: skip
PACKAGE: Final = Option(name="job_dispatch_package", metavar="DIR", kind=Text(), says="the program's folder",
    help="Folder to send to the hosts, where the programs run in it.")  # fmt: skip
ENV: Final = Option(name="env", metavar="NAME[=VALUE]", kind=Text(repeatable=True),
    help="Environment variable for the programs, from this shell or with a value; "
    "may be repeated.")  # fmt: skip

GPUS: Final = Option(name="gpus", metavar="LIST", kind=Text(), aliases=("--devices",),
    says="all that are found", help="GPUs of each node: their number, or which, such as 0,1.")  # fmt: skip
JSON: Final = make_flag("json", "Print JSON: one object a line.")
# Of later shells, beside the places of jobs.
LATER_OPTIONS: Final = {option.name: option for option in (
    make_flag("kill", "Stop at once, without SIGTERM and grace."),
    make_flag("follow", "Continue until the job ends.", ("-f",)),
    Option(name="output", metavar="FILE", kind=Text(), default="report.html", aliases=("-o",),
        help="File to write."),
    JSON,
)}  # fmt: skip

# Of every job.
COMMON: Final[Sequence[Option]] = (
    ENV,
    Option(name="server", metavar="HOW", kind=Choice(("auto", "bundled", "script")), default="auto",
        help="Kind of pservers: bundled runs `pslaunch pserver`, script runs the "
        "program in both roles, auto chooses by the program's text.", needs=SERVED),
    Option(name="call", metavar="NAME", kind=Text(),
        help="Import PROGRAM and call this function of it; words after PROGRAM are arguments in JSON."),
    Option(name="job_name", metavar="NAME", kind=Text(), says="the workspace's name",
        help="Name of the job."),
    Option(name="trainer_count", metavar="N", kind=Number(1, MAX_THREADS),
        default=INIT_ARGS["trainer_count"].default, help="Compute threads of each trainer."),
    Option(name="use_gpu", metavar="BOOL", kind=Truth(), default=INIT_ARGS["use_gpu"].default,
        help="Train on a GPU; for programs with their own runtime."),
    GPUS,
    Option(name="gpus_per_trainer", metavar="N", kind=Number(0, MAX_THREADS),
        says="an even share if the program uses GPUs and does not choose by itself",
        help="GPUs of each trainer, which sees no others; 0: all of the node."),
    make_flag("bind_cores", "Give each trainer of a node its own cores, all of one NUMA node.",
        needs=(Need("bind_to", GIVEN), Need("script", True))),
    Option(name="port", metavar="PORT", kind=Number(1, 65535), says="a free block is chosen",
        help="First port of the first pserver.", needs=SERVED),
    Option(name="ports_num", metavar="N", kind=Number(1, MAX_PORTS), default=INIT_ARGS["ports_num"].default,
        help="Ports of each pserver for dense parameters.", needs=SERVED),
    Option(name="ports_num_for_sparse", metavar="N", kind=Number(0, MAX_PORTS),
        default=INIT_ARGS["ports_num_for_sparse"].default,
        help="Ports of each pserver for sparse tables; 0: the dense ones.", needs=SERVED),
    Option(name="metrics_port", metavar="[HOST:]PORT", kind=Text(), says="none", needs=SERVED,
        help="Port for Prometheus of pserver 0; that of pserver i is i higher."),
    Option(name="grace", metavar="SECONDS", kind=Seconds(0.0), default=Limits().grace_s,
        help="Seconds between SIGTERM and SIGKILL when a job is stopped."),
    Option(name="timeout", metavar="SECONDS", kind=Seconds(0.1), says="none",
        help="Seconds that the whole job may take; then it ends in order, with 124."),
    Option(name="lost_after", metavar="SECONDS", kind=Seconds(MIN_LOST_AFTER_S),
        default=Limits().lost_after_s, help="Seconds without a heartbeat until a node counts as lost."),
    Option(name="stall_after", metavar="SECONDS", kind=Seconds(0.1), default=INIT_ARGS["stall_after"].default,
        help="Seconds until a waiting step is reported.", needs=SERVED),
    Option(name="stall_timeout", metavar="SECONDS", kind=Seconds(0.1), says="never",
        help="A step that waits this long ends the job, in seconds.", needs=SERVED),
    Option(name="trainer_timeout", metavar="SECONDS", kind=Seconds(0.1), default=TRAINER_TIMEOUT_S,
        help="Seconds without a trainer until its pservers end the job."),
    Option(name="snapshot_steps", metavar="N", kind=Number(1, 10**9), says="none",
        help="Steps between two snapshots, from which a restart goes on.", needs=SERVED),
    Option(name="snapshot_minutes", metavar="N", kind=Number(1, 10**6), says="none",
        help="Minutes between two snapshots.", needs=SERVED),
    Option(name="snapshot_keep", metavar="N", kind=Number(1, 1000),
        says=f"the newest {INIT_ARGS['snapshot_keep'].default}",
        help="Number of snapshots that are kept.", needs=SERVED),
    Option(name="snapshot_copies", metavar="N", kind=Number(1, 1000),
        says=f"{INIT_ARGS['snapshot_copies'].default}, its pserver's",
        help="Nodes that have each part of a snapshot: with 2 the disk of any one may be lost.",
        needs=SERVED),
    Option(name="snapshot_dir", metavar="DIR", kind=Text(), says="snapshots/ of .pslaunch/ on each node",
        help="Folder of the snapshots on the nodes, also for programs of your own; best one that all share."),
    Option(name="export_steps", metavar="N", kind=Number(1, 10**9), says="none",
        help="Steps between two exports of the values for model servers.", needs=SERVED),
    Option(name="export_dir", metavar="DIR", kind=Text(), says=INIT_ARGS["export_dir"].default,
        help="Folder of the exports on the nodes; one that all share, unless pservers are on one.",
        needs=SERVED),
    Option(name="resume", metavar="[=DIR]", kind=Text(values=0),
        help="Go on from the newest snapshot of an earlier job; --resume=DIR: from that of a folder.",
        needs=SERVED),
    Option(name="max_restarts", metavar="N", kind=Number(0, 1000), default=Limits().max_restarts,
        help="Restarts of all programs after a failure, in place of the job's end."),
    Option(name="restart_after", metavar="SECONDS", kind=Seconds(0.0), default=Limits().restart_after_s,
        help="Seconds of running after which a failed program that reports no steps is restarted too.",
        needs=(Need("max_restarts", 0, "without --max_restarts"),)),
    Option(name="trace", metavar="FILE", kind=Text(), says="PSLAUNCH_TRACE, else none",
        help="File for each control message, without secrets; nodes write theirs beside their logs.",
        needs=(Need("dry_run", True),)),
    Option(name="keep_logs", metavar="N", kind=Number(0, 1000), default=Plan().keep_logs,
        help="Number of earlier jobs whose logs stay, in log/earlier/JOB."),
    Option(name="log_to", metavar="WHERE", kind=Choice(("tensorboard",)),
        help="Also write what processes report for TensorBoard, to tensorboard/ in the folder of "
        "the logs on this machine.",
        needs=(*ATTACHED, Need("dry_run", True))),
    make_flag("detach", "Return as soon as the programs run; the job continues by itself."),
    make_flag("dry_run", "Print the plan and start nothing."),
    JSON,
)  # fmt: skip

# Of jobs on hosts that are there before and after them.
ON_HOSTS: Final[Sequence[Option]] = (
    SERVER_NUM._replace(says="one on each host, if the program needs any"),
    WORKER_NUM._replace(says="one on each host"),
    Option(name="job_workspace", metavar="DIR", kind=Text(),
        help="Working folder of the programs on the hosts; nothing is sent."),
    Option(name="shard", metavar="PATTERN", kind=Text(repeatable=True),
        help="Files by number: trainer t gets each i mod trainers = t: 'data/*-{:05d}'; may be repeated.",
        needs=SENT),
    Option(name="link", metavar="NAME=PATH", kind=Text(repeatable=True),
        help="Link in the workspace to a path on the hosts; may be repeated.", needs=SENT),
    Option(name="nics", metavar="NAME", kind=Text(), says="PADDLE_NIC of conf.py, else one reachable by all",
        help="Network interface of the hosts for the processes' traffic."),
    Option(name="python", metavar="FILE", kind=Text(), says="the node's own",
        help="Interpreter of bundled pservers and .py programs on the hosts.", needs=(
            Need(
                "install", True, "with --install; --agent_python names the Python that makes its environment"
            ),
        ),
    ),
    make_flag("install", "Make a virtual environment of the job on each host, with pslaunch in it."),
    Option(name="wheel", metavar="FILE", kind=Text(), says="made from this pslaunch",
        help="The wheel of pslaunch for --install.", needs=(Need("install", False),)),
    Option(name="wheelhouse", metavar="DIR", kind=Text(), says="the host's own index",
        help="Folder of wheels for --install.", needs=(Need("install", False),)),
    Option(name="setup", metavar="CMD", kind=Text(repeatable=True),
        help="Shell command for each host, once before the start; may be repeated."),
    Option(name="agent_python", metavar="FILE", kind=Text(), says="searched for",
        help="Python 3.9 or later on the hosts, for pslaunch's own processes."),
    Option(name="connect_timeout", metavar="SECONDS", kind=Seconds(0.1), default=10.0,
        help="Seconds until a connection attempt to a host fails."),
    Option(name="fetch_output", metavar="DIR", kind=Text(), says="it stays on node 0",
        help="Local folder for output/, fetched at the end.", needs=ATTACHED),
    Option(name="fetch_logs", metavar="DIR", kind=Text(), says="they stay on the hosts",
        help="Local folder for the logs of all hosts, fetched at the end.", needs=ATTACHED),
    Option(name="log_dir", metavar="DIR", kind=Text(), says="log/ of the workspace",
        help="Folder of the logs; output/ and .pslaunch/ are in it too."),
    Option(name="head", metavar="WHERE", kind=Choice(("launcher", "node")), default="launcher",
        help="Place of the job's control process: launcher, or node for node 0."),
)  # fmt: skip

# Flags of the v2 trainer: each command for a job takes them, too, without a line in its help.
_KINDS: Final[Mapping[object, OptionKind]] = {
    env.parse_count: Number(1, 2**31 - 1), env.parse_int: Number(0, 2**31 - 1),
    env.parse_text: Text(), env.parse_bool: Flag(), env.parse_nan: Choice(env.NAN_RULES),
}  # fmt: skip
TRAINER: Final[Mapping[str, Option]] = {
    name: Option(name, _KINDS[INIT_ARGS[name].parse], INIT_ARGS[name].meaning) for name in env.TRAINER_FLAGS
}

# Headings of a job's --help: an example, and the options under it. All others are of the backend alone.
HEADINGS: Final[Mapping[str, tuple[str, Sequence[str]]]] = {
    "Processes": ("--server_num 2 --worker_num 4", ("server_num", "worker_num", "server", "job_name",
        "trainer_count", "use_gpu", "gpus", "gpus_per_trainer", "bind_cores")),
    "Programs and files": ("--env LANG=C.UTF-8 --python python3.12", ("job_workspace", "job_dispatch_package",
        "shard", "link", "call", "env", "python", "install", "wheel", "wheelhouse", "setup", "agent_python")),
    "Network": ("--ports_num 2", ("port", "ports_num", "ports_num_for_sparse", "metrics_port", "nics")),
    "Seconds": ("--grace 30 --stall_timeout 600", ("grace", "lost_after", "stall_after", "stall_timeout",
        "trainer_timeout", "connect_timeout", "timeout")),
    "Snapshots and restarts": ("--snapshot_steps 1000 --max_restarts 3", ("snapshot_steps",
        "snapshot_minutes", "snapshot_keep", "snapshot_copies", "snapshot_dir", "export_steps", "export_dir",
        "resume", "max_restarts", "restart_after")),
    "Output": ("--json", ("log_dir", "keep_logs", "log_to", "fetch_output", "fetch_logs", "trace", "json")),
    "Start": ("--dry_run", ("head", "detach", "dry_run", "connect", "help")),
}  # fmt: skip

# By name, of what most jobs have.
DEFAULT: Final[Mapping[str, Any]] = {option.name: option.default for option in (*ON_HOSTS, *COMMON)}
