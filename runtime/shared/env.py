"""The environment contract as the runtime reads it: the variables of every process of a job on every backend.

The launcher writes them (launcher/node/binding.py). Self-contained: standard library only, Python 3.9 or
later, so that it can travel to any node. docs/environment.md and docs/options.md document it; tests compare
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, Callable, NamedTuple, Union

Port = Union[int, str]  # a str is the symbol of a dry run, such as "{pserver:1.port}"
Endpoint = tuple[str, Port]

PSERVER = "pserver"
TRAINER = "trainer"

TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS = frozenset({"0", "false", "no", "off", "", "none"})


class EnvError(ValueError):
    """A variable or argument with an invalid value; the message names both."""


def parse_bool(value: object, name: str) -> bool:
    """Return a bool, also from its text forms (`"False"`, `"0"`); raises EnvError naming `name`."""
    word = str(value).strip().lower()
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    raise EnvError(f"{name}={value!r}: expected true or false")


def parse_int(value: object, name: str, low: int = 0, high: int = 2**31 - 1) -> int:
    """Return a whole number from `low` to `high`, also from text; raises EnvError naming `name`."""
    text, shown = str(value).strip(), repr(value)
    if re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        if low <= int(text) <= high:
            return int(text)
        shown = str(int(text))
    raise EnvError(f"{name}={shown}: expected a whole number from {low} to {high}")


parse_port = partial(parse_int, low=1, high=65535)
parse_count = partial(parse_int, low=1)


def parse_text(value: object, name: str) -> str:
    return str(value)


NAN_RULES = ("warn", "refuse", "skip")


def parse_nan(value: object, name: str) -> str:
    """Return one of NAN_RULES; raises EnvError naming `name`."""
    if value not in NAN_RULES:
        raise EnvError(f"{name}={value!r}: expected {', '.join(NAN_RULES)}")
    return str(value)


def parse_float(value: object, name: str) -> float:
    """Return a number that is not negative, in the unit of the option."""
    try:
        number = float(str(value).strip())
    except ValueError:
        raise EnvError(f"{name}={value!r}: expected a number") from None
    if not 0 <= number < float("inf"):
        raise EnvError(f"{name}={value!r}: expected a finite number, not negative")
    return number


def join_addr(host: str, port: Port) -> str:
    """Return `host:port`, an IPv6 host in brackets (a symbol such as {node:0.addr} is not one)."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("{") else f"{host}:{port}"


def split_addr(text: str, name: str, default_port: int | None = None) -> tuple[str, int]:
    """Return host and port of `host:port`, `[v6]:port`, or of a bare host if `default_port` is given."""
    host, port = text.strip(), ""
    if host.startswith("["):
        host, _, rest = host[1:].partition("]")
        port = rest[1:] if rest.startswith(":") else ""
    elif host.count(":") == 1:
        host, _, port = host.partition(":")
    if not host or (not port and default_port is None):
        raise EnvError(f"{name}={text!r}: expected host:port")
    return host, parse_port(port, name) if port else int(default_port or 0)


# --- init(): v2's arguments, each also PADDLE_INIT_<NAME>, over which the argument takes precedence. ---


class InitArg(NamedTuple):
    """One argument of `init()`: its parser, default and help text."""

    parse: Callable[[object, str], Any]
    default: Any
    meaning: str


INIT_ARGS: Mapping[str, InitArg] = {
    "use_gpu": InitArg(parse_bool, False, "train on a GPU; the bundled runtime does not support it"),
    "trainer_count": InitArg(parse_count, 1, "compute threads of one trainer"),
    "port": InitArg(parse_port, 7164, "first port of the first pserver at an address"),
    "ports_num": InitArg(parse_count, 1, "ports of a pserver for dense parameters"),
    "ports_num_for_sparse": InitArg(parse_int, 0, "ports of a pserver for sparse tables; 0: the dense ports"),
    "num_gradient_servers": InitArg(parse_count, 1, "trainers that a pserver waits for"),
    "trainer_id": InitArg(parse_int, 0, "this trainer, from 0"),
    "pservers": InitArg(
        parse_text,
        "",
        "addresses of the pservers, host or host:port, comma-separated; one repeated k times has k",
    ),
    "seed": InitArg(parse_int, 1, "seed of all random numbers"),
    "connect_timeout": InitArg(parse_float, 120.0, "seconds to wait for the pservers"),
    "stall_after": InitArg(parse_float, 60.0, "seconds after which a waiting step is reported"),
    "stall_timeout": InitArg(
        parse_float,
        None,
        "seconds after which a waiting step ends the pserver, and a trainer whose pserver answers nothing",
    ),
    "secret_file": InitArg(parse_text, "", "file with the secret that pservers and trainers share"),
    "log_dir": InitArg(parse_text, "", "folder of paddle_trainer.INFO; log/ unless given"),
    "num_passes": InitArg(parse_count, None, "passes, in place of the program's own number"),
    "log_period": InitArg(parse_count, 100, "batches between two lines of paddle_trainer.INFO"),
    "dot_period": InitArg(parse_count, None, "batches between two dots on stderr; none unless given"),
    "saving_period": InitArg(parse_count, 1, "passes between two saves below save_dir"),
    "save_dir": InitArg(parse_text, "", "folder for the parameters of each pass; none unless given"),
    "test_period": InitArg(parse_int, 0, "batches between two tests; 0: none but the program's own"),
    "local": InitArg(parse_bool, None, "train alone, in place of the program's is_local"),
    "nan": InitArg(
        parse_nan, "warn", "at a gradient that is not finite: warn, refuse (ends the job), skip (the step)"
    ),
    "no_save": InitArg(parse_bool, False, "do not write the last pass's parameters to the output folder"),
    "snapshot_steps": InitArg(parse_int, 0, "steps between two snapshots; 0: none"),
    "snapshot_minutes": InitArg(parse_float, 0.0, "minutes between two snapshots; 0: none"),
    "snapshot_dir": InitArg(parse_text, "", "folder of snapshots; .pslaunch/snapshots unless given"),
    "snapshot_keep": InitArg(parse_count, 2, "snapshots that are kept, the newest ones"),
    "snapshot_copies": InitArg(parse_count, 1, "nodes that have each part of a snapshot, if none is shared"),
    "export_steps": InitArg(parse_int, 0, "steps between two exports of values for model servers; 0: none"),
    "export_dir": InitArg(parse_text, ".pslaunch/exports", "folder of exports"),
    "resume": InitArg(
        parse_text, "", "go on from the newest snapshot: 1, or the folder that has it, if not snapshot_dir"
    ),
}
TRAINER_TIMEOUT_S = 60.0  # default of a pserver option that init() lacks
TRAINER_FLAGS = (  # of the v2 trainer (no_save is ours): given to the launcher, they overrule the program
    "num_passes", "log_period", "dot_period", "saving_period", "save_dir", "test_period", "local", "nan",
    "no_save",
)  # fmt: skip
SNAPSHOT_DIR = ".pslaunch/snapshots"


def get_snapshot_dir(given: str, environ: Mapping[str, str]) -> str:
    """Return the folder of snapshots: the argument of init(), that of the launcher, or the default."""
    return given or environ.get("PSLAUNCH_SNAPSHOT_DIR", "") or SNAPSHOT_DIR


def get_init_var(argument: str) -> str:
    return f"PADDLE_INIT_{argument.upper()}"


SNAPSHOT_ARGS = tuple(name for name in INIT_ARGS if name.startswith(("snapshot_", "export_", "resume")))
# Begins a value of `resume`: from the newest snapshot, if there is one, of jobs with -THIS- in their ids.
RESUME_OF = "of:"


def get_snapshot_var(argument: str) -> str:
    """Return the variable by which the launcher gives one of SNAPSHOT_ARGS to programs."""
    return "PSLAUNCH_SNAPSHOT_DIR" if argument == "snapshot_dir" else get_init_var(argument)


def find_near_init_var(name: str) -> str:
    """Return the variable of init() that an unknown name is most similar to, or ""."""
    start = get_init_var("")
    argument = name[len(start) :].lower()
    if not name.startswith(start) or (argument in INIT_ARGS and name == get_init_var(argument)):
        return ""
    near = find_near(argument, INIT_ARGS, 0.8)
    return get_init_var(near) if near else ""


def find_near(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the known name that is most similar; "" if none is."""
    from difflib import get_close_matches  # rarely needed

    return next(iter(get_close_matches(name, known, 1, cutoff)), "")


def suggest(name: object, known: Iterable[str], otherwise: str = "", cutoff: float = 0.6) -> str:
    """Return the end of a message about an unknown name: the known one that was meant, or `otherwise`."""
    near = find_near(str(name), known, cutoff)
    return f"; did you mean {near}?" if near else otherwise


def read_init_args(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of `init()` given by the environment, parsed; others are absent."""
    found = {}
    for name, arg in INIT_ARGS.items():
        text = environ.get(get_init_var(name))
        if text is not None:
            found[name] = arg.parse(text, get_init_var(name))
    if "secret_file" not in found and environ.get("PSLAUNCH_SECRET_FILE"):
        found["secret_file"] = environ["PSLAUNCH_SECRET_FILE"]
    return found


def list_pserver_endpoints(
    pservers: str, port: int, ports_num: int, ports_num_for_sparse: int
) -> list[tuple[str, int]]:
    """Return the first port of each pserver: the k-th at one address has the k-th block from `port`."""
    seen: dict[str, int] = {}
    endpoints = []
    for text in filter(None, (part.strip() for part in pservers.split(","))):
        host, first = split_addr(text, "pservers", port)
        k = seen.get(text, 0)
        seen[text] = k + 1
        endpoints.append((host, first + k * (ports_num + ports_num_for_sparse)))
    return endpoints


# --- What the launcher gives beside the contract, and what it keeps away. ---


# Users may set them; the launcher does where it deals out GPUs.
VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def is_device(word: object) -> bool:
    """Return True for a device of such a variable: its number or its UUID."""
    return isinstance(word, str) and bool(re.fullmatch(r"[0-9]{1,4}|(GPU|MIG)-[-/0-9A-Za-z]{1,99}", word))


def split_devices(text: str) -> list[str]:
    """Return the devices of such a variable; as CUDA does, up to the first word that is none, such as -1."""
    return list(takewhile(is_device, (word.strip() for word in text.split(","))))


def make_gpu_environ(gpus: Sequence[str]) -> dict[str, str]:
    """Return the variables of a trainer that sees these GPUs alone; Paddle counts in the visible ones."""
    own, places = ",".join(gpus), ",".join(map(str, range(len(gpus))))
    return {**dict.fromkeys(VISIBLE_DEVICES, own), "FLAGS_selected_gpus": places} if gpus else {}


def make_tf_config(contract: Mapping[str, str]) -> str:
    """Return cluster and task as tensorflow reads them; beside a script's pservers trainer 0 is the chief."""
    import json  # rarely needed

    role, rank = contract["PSLAUNCH_ROLE"], int(contract["PSLAUNCH_RANK"])
    trainers, chiefs, cluster = contract["PADDLE_TRAINER_ENDPOINTS"].split(","), 0, {}
    if contract["PADDLE_GLOO_FS_PATH"]:  # in script mode
        chiefs = 1
        cluster = {"chief": trainers[:1], "ps": contract["PADDLE_PSERVERS_IP_PORT_LIST"].split(",")}
    cluster["worker"] = trainers[chiefs:]
    if role == PSERVER or rank < chiefs:
        task = {"type": "ps" if role == PSERVER else "chief", "index": rank}
    else:
        task = {"type": "worker", "index": rank - chiefs}
    return json.dumps({"cluster": {name: addrs for name, addrs in cluster.items() if addrs}, "task": task})


TF_CONFIG = "TF_CONFIG"  # only where the program imports tensorflow
# As torchrun and tensorflow have them. Their names are common: the user's own values win.
COMMON_NAMES = frozenset(
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
     TF_CONFIG}
)  # fmt: skip
OPTION_PREFIX = "PSLAUNCH_OPT_"  # of the launcher's options, which no program gets
LISTEN_FDS = "PSLAUNCH_LISTEN_FDS"  # descriptors of a bundled pserver's bound ports, dense ports first
PROXIES = frozenset(
    name for word in ("http_proxy", "https_proxy", "all_proxy") for name in (word, word.upper())
)
# PADDLE_WITH_GLOO is the user's: paddle.distributed.launch reads it from its environment too.
DEFAULTS: Mapping[str, str] = {"PADDLE_WITH_GLOO": "0", "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"}
MPI_FAMILIES = ("OMPI_", "PMIX_", "PRTE_", "PMI_")
MAX_VARIABLE_BYTES = 128 * 1024 - 1  # of the kernel, with its name and "="


COMMAND_NAMES = ("OMPI_COMMAND", "OMPI_ARGV")


def describe_command(argv: Sequence[str]) -> dict[str, str]:
    """Return the variables in which Open MPI names a program's command; those beyond the limit are absent."""
    said = dict(zip(COMMAND_NAMES, (argv[0], " ".join(argv[1:]))))
    return {
        k: v
        for k, v in said.items()
        if len(f"{k}={v}".encode("utf-8", "surrogateescape")) <= MAX_VARIABLE_BYTES
    }


# --- The contract as the runtime reads it. ---


class Job(NamedTuple):
    """A process's view of its job; empty or zero if no launcher started it."""

    job_id: str
    epoch: int
    role: str  # PSERVER, TRAINER or ""
    rank: int
    local_rank: int
    node_id: int
    nodes: tuple[str, ...]
    log_dir: str
    output_dir: str
    progress: str

    @property
    def launched(self) -> bool:
        """True if pslaunch started this process."""
        return bool(self.job_id)


def read_job(environ: Mapping[str, str]) -> Job:
    """Return the job of this process: each field has a variable. Raises EnvError for an invalid one."""
    names = {field: f"PSLAUNCH_{field.upper()}" for field in Job._fields}
    found: dict[str, Any] = {field: environ.get(name, "") for field, name in names.items()}
    for field in ("epoch", "rank", "local_rank", "node_id"):
        found[field] = parse_int(environ.get(names[field], "0"), names[field])
    found["nodes"] = tuple(filter(None, found["nodes"].split(",")))
    return Job(**found)


# --- Names of log files. ---

SETUP_LOG = "setup.log"  # output of the node's setup
_LOGS = {TRAINER: "train{}.log", PSERVER: "server{}.log"}  # {}: nothing, or a point and the rank
_INFO_LOGS = {TRAINER: "paddle_trainer{}.INFO", PSERVER: "paddle_pserver2{}.INFO"}


def get_output_log(role: str, rank: int, local_rank: int) -> str:
    """Return the file of stdout and stderr: `train.log`, or `train.2.log` for further ones on a node."""
    return _LOGS[role].format(f".{rank}" if local_rank else "")


def get_info_log(role: str, rank: int, local_rank: int) -> str:
    """Return the file of the runtime's own lines: `paddle_trainer.INFO`, `paddle_pserver2.INFO`."""
    return _INFO_LOGS[role].format(f".{rank}" if local_rank else "")


def is_log(name: str) -> bool:
    """Return True if a file of this name in a log folder is a job's, of any rank."""
    plain = re.sub(r"\.[0-9]+\.", ".", name, count=1)
    return name == SETUP_LOG or plain in {one.format("") for one in (*_LOGS.values(), *_INFO_LOGS.values())}
