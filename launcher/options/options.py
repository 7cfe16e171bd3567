"""All options of the commands that start a job: name, kind, help, default, backends.

Commands, files, JobSpec and docs/options.md use this table. `--help` imports it: keep it light.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from pslaunch.runtime.shared.env import INIT_ARGS, TRAINER_TIMEOUT_S

from .kinds import Choice, Flag, Number, OptionKind, Seconds, Text, Truth

BACKENDS: Final = ("local", "fabric", "mpi", "k8s")
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
MPI: Final = ("mpi",)
K8S: Final = ("k8s",)
REMOTE: Final = (*FABRIC, *MPI)
STARTED: Final = (*LOCAL, *REMOTE)  # by their commands, which wait for the end
SERVERS: Final = ("auto", "bundled", "script")
HEADS: Final = ("launcher", "node")
HOST_KEY_POLICIES: Final = ("ask", "accept_new", "reject")
_COUNT_OF_SERVERS: Final = Number(0, MAX_PROCESSES)
_COUNT: Final = Number(1, MAX_PROCESSES)


def _make_flag(
    name: str, text: str, backends: tuple[str, ...] = BACKENDS, aliases: tuple[str, ...] = ()
) -> Option:
    return Option(name=name, kind=Flag(), help=text, default=False, backends=backends, aliases=aliases)


def _get_shared(name: str) -> Any:
    """Return the default of the same argument of init()."""
    return INIT_ARGS[name].default


_ENV_HELP: Final = "Environment variable for the programs, from this shell or with a value; may be repeated."

OPTIONS: Final[Sequence[Option]] = (
    Option(
        name="hostfile", metavar="FILE", kind=Text(), says="an allocation of Slurm or PBS, else this machine",
        backends=MPI, aliases=("-hostfile", "--machinefile", "-machinefile"),
        help="Hosts, one a line: user@node1 slots=2 max_slots=4. A line without slots is one trainer.",
    ),
    Option(
        name="host", metavar="LIST", kind=Text(), backends=MPI, aliases=("-H", "-host"),
        help="Hosts in place of a hostfile: user@node1:2,node2.",
    ),
    Option(
        name="mpirun", metavar="PATH", kind=Text(), default="mpirun", backends=MPI,
        help="mpirun of Open MPI 4 or 5; its version is found out.",
    ),
    Option(
        name="prefix", metavar="DIR", kind=Text(), says="that of mpirun, if --mpirun is a path", backends=MPI,
        aliases=("-prefix",), help="Folder of Open MPI on the hosts.",
    ),
    Option(
        name="mca", metavar="KEY VALUE", kind=Text(repeatable=True, values=2), backends=MPI,
        aliases=("-mca", "--gmca", "-gmca"), help="Setting of Open MPI; may be repeated.",
    ),
    Option(
        name="prtemca", metavar="KEY VALUE", kind=Text(repeatable=True, values=2), backends=MPI,
        aliases=("-prtemca",), help="Setting of the daemons of Open MPI 5; may be repeated.",
    ),
    Option(
        name="map_by", metavar="HOW", kind=Text(), backends=MPI, aliases=("-map-by",),
        help="Order of mpirun's ranks on the hosts: slot, node, ...",
    ),
    Option(
        name="rank_by", metavar="HOW", kind=Text(), backends=MPI, aliases=("-rank-by",),
        help="Numbering of mpirun's ranks.",
    ),
    Option(
        name="bind_to", metavar="HOW", kind=Text(), default="none", backends=MPI, aliases=("-bind-to",),
        help="Processors of each trainer: none, core, numa, ...",
    ),
    _make_flag("oversubscribe", "Allow more trainers than slots.", MPI, ("-oversubscribe",)),
    _make_flag("allow_run_as_root", "Let mpirun run as root.", MPI, ("-allow-run-as-root",)),
    Option(
        name="script", metavar="KIND", kind=Choice(("plain", "slurm", "pbs")), backends=MPI,
        help="Print a script in place of starting the job: slurm or pbs for a batch system, or plain, which "
        "mpirun runs without pslaunch.",
    ),
    Option(
        name="directive", metavar="TEXT", kind=Text(repeatable=True), backends=MPI,
        help="Header line of a script for Slurm (partition=gpu) or PBS ('q gpu'); may be repeated.",
    ),
    Option(
        name="output", metavar="FILE", kind=Text(), says="standard output", backends=MPI, aliases=("-o",),
        help="File for --script.",
    ),
    Option(
        name="mpirun_args", metavar="TEXT", kind=Text(), backends=MPI,
        help="Further words for mpirun, as in a shell.",
    ),
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
        name="root_dir", metavar="DIR", kind=Text(), says="the home folder", default="~", backends=MPI,
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
        name="server_num", metavar="N", kind=_COUNT_OF_SERVERS, says="one on each host", backends=REMOTE,
        help="Total number of parameter servers; with 0 each trainer trains alone.",
    ),
    Option(
        name="worker_num", metavar="N", kind=_COUNT, says="one on each host", backends=FABRIC,
        help="Total number of trainers.",
    ),
    Option(
        name="worker_num", metavar="N", kind=_COUNT, says="one for each slot of the hosts", backends=MPI,
        aliases=("-n", "-np", "--np", "-c"),
        help="Number of trainers: ranks of MPI. More than the lines of a hostfile are dealt in turn.",
    ),
    Option(
        name="server_num", metavar="N", kind=_COUNT_OF_SERVERS, says="one in each pod", backends=K8S,
        help="Total number of parameter servers; with 0 each trainer trains alone.",
    ),
    Option(
        name="worker_num", metavar="N", kind=_COUNT, says="one in each pod", backends=K8S,
        help="Total number of trainers.",
    ),
    Option(
        name="nodes", metavar="N", kind=_COUNT, backends=K8S,
        says="the larger of --server_num and --worker_num, else 1", help="Number of pods.",
    ),
    Option(
        name="kubeconfig", metavar="FILE", kind=Text(), backends=K8S,
        says="KUBECONFIG, else ~/.kube/config, else the account of this pod",
        help="The cluster's address and your credentials.",
    ),
    Option(
        name="context", metavar="NAME", kind=Text(), says="the current one", backends=K8S,
        help="Context of the kubeconfig.",
    ),
    Option(
        name="namespace", metavar="NAME", kind=Text(), says="the context's", backends=K8S, aliases=("-n",),
        help="Namespace of the job.",
    ),
    Option(
        name="image", metavar="NAME", kind=Text(), says="PSLAUNCH_IMAGE", backends=K8S,
        help="Image of the pods, with Python 3.9 or later.",
    ),
    Option(
        name="cpu", metavar="QUANTITY", kind=Text(), says="none asked for", backends=K8S,
        help="Processors of each pod, such as 2 or 500m.",
    ),
    Option(
        name="memory", metavar="QUANTITY", kind=Text(), says="none asked for", backends=K8S,
        help="Memory of each pod, such as 4Gi.",
    ),
    _make_flag("separate", "Give each process a pod of its own; pservers get a Job of their own.", K8S),
    Option(
        name="server_cpu", metavar="QUANTITY", kind=Text(), says="as --cpu", backends=K8S,
        help="With --separate: processors of each pserver's pod.",
    ),
    Option(
        name="server_memory", metavar="QUANTITY", kind=Text(), says="as --memory", backends=K8S,
        help="With --separate: memory of each pserver's pod.",
    ),
    Option(
        name="gpu", metavar="N", kind=Number(0, MAX_THREADS), default=0, backends=K8S,
        help="GPUs of each trainer's pod (nvidia.com/gpu).",
    ),
    Option(
        name="shm", metavar="QUANTITY", kind=Text(), says="that of the container runtime", backends=K8S,
        help="Shared memory of each pod, such as 1Gi.",
    ),
    Option(
        name="node_selector", metavar="NAME=VALUE", kind=Text(repeatable=True), says="any nodes",
        backends=K8S,
        help="Label of the cluster's nodes for the pods; may be repeated.",
    ),
    Option(
        name="toleration", metavar="KEY[=VALUE][:EFFECT]", kind=Text(repeatable=True), says="none",
        backends=K8S,
        help="Taint of the cluster's nodes that does not keep the pods away; may be repeated.",
    ),
    Option(
        name="pvc", metavar="NAME:PATH", kind=Text(repeatable=True), says="none", backends=K8S,
        help="Volume claim, and the path at which each pod has it; may be repeated.",
    ),
    Option(
        name="image_pull_secret", metavar="NAME", kind=Text(), says="none", backends=K8S,
        help="Secret for pulling the image.",
    ),
    Option(
        name="service_account", metavar="NAME", kind=Text(), says="the namespace's", backends=K8S,
        help="Service account of the pods, which get none of its tokens.",
    ),
    Option(
        name="env_secret", metavar="NAME=SECRET:KEY", kind=Text(repeatable=True), says="none", backends=K8S,
        help="Environment variable for the programs, from a Secret of the namespace; may be repeated.",
    ),
    Option(
        name="priority_class", metavar="NAME", kind=Text(), says="the cluster's", backends=K8S,
        help="Priority class of the pods.",
    ),
    Option(
        name="queue", metavar="NAME", kind=Text(), says="none", backends=K8S,
        help="Queue of Kueue that releases the job, which is created suspended.",
    ),
    Option(
        name="deadline", metavar="SECONDS", kind=Seconds(1.0), says="none", backends=K8S,
        help="Seconds that the job may take; the cluster then ends it.",
    ),
    _make_flag("network_policy", "Let only the job's own pods reach its ports.", K8S),
    Option(
        name="patch", metavar="FILE", kind=Text(), says="none", backends=K8S,
        help="Strategic merge patches in YAML, one a kind, for what has no option.",
    ),
    Option(
        name="ttl", metavar="SECONDS", kind=Seconds(1.0), default=3600.0, backends=K8S,
        help="Seconds until a finished job is removed.",
    ),
    Option(
        name="wait_timeout", metavar="SECONDS", kind=Seconds(1.0), default=600.0, backends=K8S,
        help="Seconds for all pods to come.",
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
        name="job_dispatch_package", metavar="DIR", kind=Text(), says="the program's folder", backends=MPI,
        help="Folder to send to the hosts, where the programs run in it. Its default is used in place if all "
        "hosts see it.",
    ),
    Option(
        name="job_dispatch_package", metavar="DIR", kind=Text(), says="the program's folder", backends=K8S,
        help="Folder to send to the pods, where the programs run in it; rendered, at most 900 KiB packed.",
    ),
    Option(
        name="job_workspace", metavar="DIR", kind=Text(), backends=REMOTE,
        help="Working folder of the programs on the hosts; nothing is sent.",
    ),
    Option(
        name="job_workspace", metavar="DIR", kind=Text(), backends=K8S,
        help="Working folder of the programs in the image or a volume claim; nothing is sent.",
    ),
    Option(
        name="job_name", metavar="NAME", kind=Text(), says="the workspace's name", help="Name of the job.",
    ),
    Option(
        name="shard", metavar="PATTERN", kind=Text(repeatable=True), backends=(*REMOTE, *K8S),
        help="Files by number: trainer t gets each i mod trainers = t: 'data/*-{:05d}'; may be repeated.",
    ),
    Option(
        name="link", metavar="NAME=PATH", kind=Text(repeatable=True), backends=REMOTE,
        help="Link in the workspace to a path on the hosts; may be repeated.",
    ),
    Option(
        name="link", metavar="NAME=PATH", kind=Text(repeatable=True), backends=K8S,
        help="Link in the workspace to a path in the image or a volume claim; may be repeated.",
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
        help="Network interface of the hosts for the processes' traffic.", backends=REMOTE,
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
        name="env", metavar="NAME[=VALUE]", kind=Text(repeatable=True), backends=(*LOCAL, *FABRIC, *K8S),
        help=_ENV_HELP,
    ),
    Option(
        name="env", metavar="NAME[=VALUE]", kind=Text(repeatable=True), backends=MPI, aliases=("-x",),
        help=_ENV_HELP,
    ),
    Option(
        name="python", metavar="FILE", kind=Text(), says="that of pslaunch", backends=LOCAL,
        help="Interpreter of .py programs.",
    ),
    Option(
        name="python", metavar="FILE", kind=Text(), says="the node's own", backends=(*REMOTE, *K8S),
        help="Interpreter of bundled pservers and .py programs on the hosts.",
    ),
    Option(
        name="log_dir", metavar="DIR", kind=Text(), says="log/ of the workspace", backends=STARTED,
        help="Folder of the logs; output/ is beside it.",
    ),
    _make_flag("install", "Make a virtual environment of the job on each host, with pslaunch in it.", REMOTE),
    Option(
        name="wheel", metavar="FILE", kind=Text(), says="made from what is installed here", backends=REMOTE,
        help="The wheel of pslaunch for --install.",
    ),
    Option(
        name="wheelhouse", metavar="DIR", kind=Text(), says="the host's own index", backends=REMOTE,
        help="Folder of wheels for --install.",
    ),
    Option(
        name="setup", metavar="CMD", kind=Text(repeatable=True), backends=REMOTE,
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
        name="agent_python", metavar="FILE", kind=Text(), says="searched for", backends=(*REMOTE, *K8S),
        help="Python 3.9 or later on the hosts, for pslaunch's own processes.",
    ),
    Option(
        name="connect_timeout", metavar="SECONDS", kind=Seconds(0.1), default=10.0, backends=REMOTE,
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
        name="fetch_output", metavar="DIR", kind=Text(), says="output/ of the folder", backends=K8S,
        help="Local folder for output/ of node 0, fetched at the end.",
    ),
    Option(
        name="fetch_logs", metavar="DIR", kind=Text(), says="log/ of the folder", backends=K8S,
        help="Local folder for the logs of all pods, fetched at the end.",
    ),
    Option(
        name="lease", metavar="SECONDS", kind=Seconds(3.0), default=120.0, backends=K8S,
        help="Seconds after which a job whose launcher is gone ends.",
    ),
    Option(
        name="linger", metavar="SECONDS", kind=Seconds(0.0), backends=K8S,
        says="120; 600 with --detach, or 0 with --pvc too",
        help="Seconds for which a job's files can be fetched after its end; 0: nothing is fetched.",
    ),
    Option(
        name="fetch_output", metavar="DIR", kind=Text(), says="it stays on node 0", backends=REMOTE,
        help="Local folder for output/, fetched at the end.",
    ),
    Option(
        name="fetch_logs", metavar="DIR", kind=Text(), says="they stay on the hosts", backends=REMOTE,
        help="Local folder for the logs of all hosts, fetched at the end.",
    ),
    Option(
        name="nodes", metavar="N", kind=Number(1, MAX_PROCESSES), default=1, backends=LOCAL,
        help="Simulate a cluster: N nodes, all but node 0 with a copy of the workspace.",
    ),
    Option(
        name="head", metavar="WHERE", kind=Choice(HEADS), default="launcher",
        help="Place of the job's control process: launcher, or node for node 0.", backends=STARTED,
    ),
    Option(
        name="conf", metavar="FILE", kind=Text(), backends=(*LOCAL, *MPI),
        help="A conf.py; its ports, job name and variables are used, not its hosts.",
    ),
    Option(
        name="trace", metavar="FILE", kind=Text(), says="PSLAUNCH_TRACE, else none",
        help="File for each control message, without secrets; nodes write theirs beside their logs.",
    ),
    _make_flag("detach", "Return as soon as the programs run; the job continues by itself."),
    _make_flag("dry_run", "Print the plan and start nothing."),
    _make_flag("validate", "Let the cluster judge every object of the job, and create nothing.", K8S),
    _make_flag("connect", "With --dry_run: contact the hosts to complete the plan.", FABRIC),
    _make_flag("json", "Print JSON: one object a line."),
    Option(
        name="output_dir", metavar="DIR", kind=Text(), says="standard output", backends=K8S, aliases=("-o",),
        help="Folder for the manifests, in several files.",
    ),
)  # fmt: skip


def get_options(backend: str) -> dict[str, Option]:
    """Return the options of a backend's command, by name."""
    return {option.name: option for option in OPTIONS if backend in option.backends}


# By name; where backends differ, of local.
DEFAULT: Final[Mapping[str, Any]] = {option.name: option.default for option in reversed(OPTIONS)}
