"""All options of the commands that start a job: name, kind, help, default, backends.

Commands, files, JobSpec and docs/options.md use this table. `--help` imports it: keep it light.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from pslaunch.runtime.shared.env import INIT_ARGS, TRAINER_TIMEOUT_S

from .kinds import Choice, Flag, Number, OptionKind, Seconds, Text, Truth

BACKENDS: Final = ("local", "fabric")
PLANNED: Final = {"mpi": "an Open MPI cluster", "k8s": "Kubernetes"}
MAX_PROCESSES: Final = 4096  # of one role
MAX_THREADS: Final = 1024
MAX_PORTS: Final = 1024  # of one kind, of one pserver
MIN_LOST_AFTER_S: Final = 3.0  # heartbeats come every second; less would end healthy jobs


class Option(NamedTuple):
    """One option of some backends; backends with different rows have one each."""

    name: str
    kind: OptionKind
    help: str
    metavar: str = ""
    default: Any = None
    says: str = ""  # the default in words
    backends: tuple[str, ...] = BACKENDS
    aliases: tuple[str, ...] = ()  # with their dashes

    @property
    def field(self) -> str:
        """Return its name in JobSpec or Reach, with the unit."""
        return f"{self.name}_s" if isinstance(self.kind, Seconds) else self.name

    @property
    def values(self) -> int:
        """Return the number of words after it on a command line."""
        return self.kind.values if isinstance(self.kind, Text) else not isinstance(self.kind, Flag)

    @property
    def valued(self) -> bool:
        """Return True if it takes a value on a command line."""
        return self.values > 0

    @property
    def repeatable(self) -> bool:
        """Return True if a command line may repeat it."""
        return isinstance(self.kind, Text) and self.kind.repeatable

    @property
    def text(self) -> str:
        """Return its help with its default."""
        default = self.says or ("" if self.default is None else self._format_default())
        return f"{self.help} [default: {default}]" if default else self.help

    def _format_default(self) -> str:
        if isinstance(self.kind, Flag):
            return "off"
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)


LOCAL: Final = ("local",)
FABRIC: Final = ("fabric",)
SERVERS: Final = ("auto", "bundled", "script")
HEADS: Final = ("launcher", "node")
HOST_KEY_POLICIES: Final = ("ask", "accept_new", "reject")
_COUNT_OF_SERVERS: Final = Number(0, MAX_PROCESSES)
_COUNT: Final = Number(1, MAX_PROCESSES)


def _make_flag(name: str, text: str, backends: tuple[str, ...] = BACKENDS) -> Option:
    return Option(name=name, kind=Flag(), help=text, default=False, backends=backends)


def _get_shared(name: str) -> Any:
    """Return the default of the same argument of init()."""
    return INIT_ARGS[name].default


OPTIONS: Final[Sequence[Option]] = (
    Option(
        name="conf", metavar="FILE", kind=Text(), says="./conf.py if it is there",
        default="conf.py", backends=FABRIC,
        help="The cluster: HOSTS, ROOT_DIR, PADDLE_NIC, PADDLE_PORT and so on, as Python.",
    ),
    Option(
        name="hosts", metavar="LIST", kind=Text(repeatable=True), says="HOSTS of conf.py", backends=FABRIC,
        help="Hosts: user@host:port,node[01-64],...; a host named k times gets k pairs of processes.",
    ),
    Option(
        name="include", metavar="LIST", kind=Text(repeatable=True), says="all hosts", backends=FABRIC,
        help="Use only these hosts: node1@node[3-5].",
    ),
    Option(
        name="exclude", metavar="LIST", kind=Text(repeatable=True), says="none", backends=FABRIC,
        help="Do not use these hosts.",
    ),
    Option(
        name="root_dir", metavar="DIR", kind=Text(), says="ROOT_DIR of conf.py, else ~/pslaunch",
        default="~/pslaunch", backends=FABRIC,
        help="Folder on the hosts for the job's workspace.",
    ),
    Option(
        name="server_num", metavar="N", kind=_COUNT_OF_SERVERS, default=1, backends=LOCAL,
        help="Number of parameter servers; with 0 each trainer trains alone.",
    ),
    Option(
        name="worker_num", metavar="N", kind=_COUNT, default=1, backends=LOCAL,
        help="Number of trainers.",
    ),
    Option(
        name="server_num", metavar="N", kind=_COUNT_OF_SERVERS, says="one on each host", backends=FABRIC,
        help="Total number of parameter servers; with 0 each trainer trains alone.",
    ),
    Option(
        name="worker_num", metavar="N", kind=_COUNT, says="one on each host", backends=FABRIC,
        help="Total number of trainers.",
    ),
    Option(
        name="server", metavar="HOW", kind=Choice(SERVERS), default="auto",
        help="Kind of pservers: bundled runs `pslaunch pserver`, script runs the "
        "program in both roles, auto chooses by the program's text.",
    ),
    Option(
        name="job_workspace", metavar="DIR", kind=Text(), says="the program's folder", backends=LOCAL,
        help="Working folder of the programs.",
    ),
    Option(
        name="job_dispatch_package", metavar="DIR", kind=Text(), backends=LOCAL,
        help="Folder to send to the nodes; on this machine it is used in place.",
    ),
    Option(
        name="job_dispatch_package", metavar="DIR", kind=Text(), backends=FABRIC,
        help="Folder to send to the hosts, where the programs run in it.",
    ),
    Option(
        name="job_workspace", metavar="DIR", kind=Text(), backends=FABRIC,
        help="Working folder of the programs on the hosts; nothing is sent.",
    ),
    Option(
        name="job_name", metavar="NAME", kind=Text(), says="the workspace's name", help="Name of the job.",
    ),
    Option(
        name="shard", metavar="PATTERN", kind=Text(repeatable=True), backends=FABRIC,
        help="Files by number: trainer t gets each i mod trainers = t: 'data/*-{:05d}'; may be repeated.",
    ),
    Option(
        name="link", metavar="NAME=PATH", kind=Text(repeatable=True), backends=FABRIC,
        help="Link in the workspace to a path on the hosts; may be repeated.",
    ),
    Option(
        name="trainer_count", metavar="N", kind=Number(1, MAX_THREADS), default=_get_shared("trainer_count"),
        help="Compute threads of each trainer.",
    ),
    Option(
        name="use_gpu", metavar="BOOL", kind=Truth(), default=_get_shared("use_gpu"),
        help="Train on a GPU; for programs with their own runtime.",
    ),
    Option(
        name="nics", metavar="NAME", kind=Text(), says="PADDLE_NIC of conf.py, else one reachable by all",
        help="Network interface of the hosts for the processes' traffic.", backends=FABRIC,
    ),
    Option(
        name="port", metavar="PORT", kind=Number(1, 65535), says="a free block is chosen",
        help="First port of the first pserver.",
    ),
    Option(
        name="ports_num", metavar="N", kind=Number(1, MAX_PORTS), default=_get_shared("ports_num"),
        help="Ports of each pserver for dense parameters.",
    ),
    Option(
        name="ports_num_for_sparse", metavar="N", kind=Number(0, MAX_PORTS),
        default=_get_shared("ports_num_for_sparse"),
        help="Ports of each pserver for sparse tables; 0: the dense ones.",
    ),
    Option(
        name="env", metavar="NAME[=VALUE]", kind=Text(repeatable=True),
        help="Environment variable for the programs, from this shell or with a value; may be repeated.",
    ),
    Option(
        name="python", metavar="FILE", kind=Text(), says="that of pslaunch", backends=LOCAL,
        help="Interpreter of .py programs.",
    ),
    Option(
        name="python", metavar="FILE", kind=Text(), says="the host's own", backends=FABRIC,
        help="Interpreter of bundled pservers and .py programs on the hosts.",
    ),
    Option(
        name="log_dir", metavar="DIR", kind=Text(), says="log/ of the workspace",
        help="Folder of the logs; output/ is beside it.",
    ),
    _make_flag("install", "Make a virtual environment of the job on each host, with pslaunch in it.", FABRIC),
    Option(
        name="wheel", metavar="FILE", kind=Text(), says="made from what is installed here", backends=FABRIC,
        help="The wheel of pslaunch for --install.",
    ),
    Option(
        name="wheelhouse", metavar="DIR", kind=Text(), says="the host's own index", backends=FABRIC,
        help="Folder of wheels for --install.",
    ),
    Option(
        name="setup", metavar="CMD", kind=Text(repeatable=True), backends=FABRIC,
        help="Shell command for each host, once before the start; may be repeated.",
    ),
    Option(
        name="grace", metavar="SECONDS", kind=Seconds(0.0), default=5.0,
        help="Seconds between SIGTERM and SIGKILL when a job is stopped.",
    ),
    Option(
        name="lost_after", metavar="SECONDS", kind=Seconds(MIN_LOST_AFTER_S), default=30.0,
        help="Seconds without a heartbeat until a node counts as lost.",
    ),
    Option(
        name="stall_after", metavar="SECONDS", kind=Seconds(0.1), default=_get_shared("stall_after"),
        help="Seconds until a waiting step is reported.",
    ),
    Option(
        name="stall_timeout", metavar="SECONDS", kind=Seconds(0.1), says="never",
        help="A step that waits this long ends the job, in seconds.",
    ),
    Option(
        name="trainer_timeout", metavar="SECONDS", kind=Seconds(0.1), default=TRAINER_TIMEOUT_S,
        help="Seconds without a trainer until its pservers end the job.",
    ),
    Option(
        name="agent_python", metavar="FILE", kind=Text(), says="searched for", backends=FABRIC,
        help="Python 3.9 or later on the hosts, for pslaunch's own processes.",
    ),
    Option(
        name="connect_timeout", metavar="SECONDS", kind=Seconds(0.1), default=10.0, backends=FABRIC,
        help="Seconds until a connection attempt to a host fails.",
    ),
    Option(
        name="max_connections", metavar="N", kind=Number(1, MAX_PROCESSES), default=32, backends=FABRIC,
        help="Largest number of connections opened at once.",
    ),
    Option(
        name="host_key_policy", metavar="HOW", kind=Choice(HOST_KEY_POLICIES), backends=FABRIC,
        says="ask on a terminal, else reject",
        help="Policy for host keys missing from known_hosts: ask, accept_new or reject.",
    ),
    Option(
        name="fetch_output", metavar="DIR", kind=Text(), says="it stays on node 0", backends=FABRIC,
        help="Local folder for output/, fetched at the end.",
    ),
    Option(
        name="fetch_logs", metavar="DIR", kind=Text(), says="they stay on the hosts", backends=FABRIC,
        help="Local folder for the logs of all hosts, fetched at the end.",
    ),
    Option(
        name="nodes", metavar="N", kind=Number(1, MAX_PROCESSES), default=1, backends=LOCAL,
        help="Simulate a cluster: N nodes, all but node 0 with a copy of the workspace.",
    ),
    Option(
        name="head", metavar="WHERE", kind=Choice(HEADS), default="launcher",
        help="Place of the job's control process: launcher, or node for node 0.",
    ),
    Option(
        name="conf", metavar="FILE", kind=Text(), backends=LOCAL,
        help="A conf.py; its ports, job name and variables are used.",
    ),
    Option(
        name="trace", metavar="FILE", kind=Text(), says="PSLAUNCH_TRACE, else none",
        help="File for each control message, without secrets; nodes write theirs beside their logs.",
    ),
    _make_flag("detach", "Return as soon as the programs run; the job continues by itself."),
    _make_flag("dry_run", "Print the plan and start nothing."),
    _make_flag("connect", "With --dry_run: contact the hosts to complete the plan.", FABRIC),
    _make_flag("json", "Print JSON: one object a line."),
)  # fmt: skip


def get_options(backend: str) -> dict[str, Option]:
    """Return the options of a backend's command, by name."""
    return {option.name: option for option in OPTIONS if backend in option.backends}


# By name; where backends differ, of local.
DEFAULT: Final[Mapping[str, Any]] = {option.name: option.default for option in reversed(OPTIONS)}
