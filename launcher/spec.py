"""What the user wants: JobSpec, which can't be invalid, and its making from a command line.

Every rejected value is a SpecError that names the option and the value. Nothing is started here, and
nothing of a program is run.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypedDict, get_args

from pslaunch.args import Split
from pslaunch.detect import Server, choose_server, reads_arguments
from pslaunch.errors import SpecError
from pslaunch.hosts import Host
from pslaunch.locate import DEFAULT_PROGRAM, locate, log_dir, name_of
from pslaunch.node.job import PYTHON
from pslaunch.runtime import env as contract

MAX_PROCESSES: Final = 4096  # of one role on one node
MAX_THREADS: Final = 1024
MAX_PORTS: Final = 1024  # of one kind, of one pserver
MAX_NAME_BYTES: Final = 200  # a job's name is a folder's name with room for suffixes
MIN_LOST_AFTER_S: Final = 3.0  # heartbeats come every second; less would end healthy jobs


@dataclass(frozen=True, kw_only=True, slots=True)
class Reach:
    """How the hosts of a job are reached."""

    hosts: tuple[Host, ...]
    root_dir: str  # on the hosts; absolute, or begins with ~
    nic: str | None = None  # the interface whose address others reach a host by
    agent_python: str | None = None  # path of the Python for the agent there; None: it is looked for
    connect_timeout_s: float = 10.0
    max_connections: int = 32  # that are being opened at once
    host_key_policy: Literal["ask", "accept_new", "reject"] | None = (
        None  # None: ask where there is a terminal
    )


def reach_from_data(data: Mapping[str, Any]) -> Reach:
    """A Reach from what `dataclasses.asdict` made of it, also after a way through JSON."""
    return Reach(**{**data, "hosts": tuple(Host(**h) for h in data["hosts"])})


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """What is sent to the nodes."""

    folder: Path  # here
    shards: tuple[str, ...] = ()  # patterns: file i goes to the node of trainer i mod trainers alone
    links: Mapping[str, str] = field(default_factory=dict)  # name in the workspace to a path on the nodes


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSpec:
    """One job as the user wants it. A count of None is the backend's default.

    Paths here are absolute; paths on other machines may begin with ~.
    """

    backend: str
    job_name: str
    workspace: Path  # where something is sent: the folder that is; else the folder on the nodes
    reach: Reach | None = None  # None: this machine
    package: Package | None = None  # None: the workspace is on the nodes already
    program: str | None = None  # a path inside the workspace, or absolute; None: DEFAULT_PROGRAM
    program_args: tuple[str, ...] = ()
    trainer_flags: Mapping[str, str] = field(default_factory=dict)
    server: Server = "auto"
    server_num: int | None = None
    worker_num: int | None = None
    trainer_count: int = 1  # compute threads of a trainer
    use_gpu: bool = False
    port: int | None = None  # None: the head chooses
    ports_num: int = 1
    ports_num_for_sparse: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    python: str | None = sys.executable  # None: the node's own
    log_dir: Path | None = None  # on the nodes
    grace_s: float = 5.0
    lost_after_s: float = 30.0
    stall_after_s: float = 60.0
    stall_timeout_s: float | None = None
    nodes: int = 1
    head: Literal["launcher", "node"] = "launcher"  # where the job is decided
    detach: bool = False  # the job goes on without the launcher; then the head is on a node
    install: bool = False  # a virtual environment of the job on each node
    wheel: Path | None = None  # of pslaunch, for it; None: made from what is installed here
    wheelhouse: Path | None = None  # folder of wheels for it; None: the node's own index
    setup: tuple[str, ...] = ()  # commands for the node's shell, once before the start
    fetch_output: Path | None = None  # where output/ of node 0 goes
    fetch_logs: Path | None = None  # where log/ of every node goes

    def __post_init__(self) -> None:
        _check_name(self.job_name)
        _check_choice("server", self.server, get_args(Server))
        for name in _RANGES:
            _check_range(name, getattr(self, name))
        for name in _DURATIONS:
            _check_duration(name, getattr(self, f"{name}_s"))
        for name in ("workspace", "log_dir"):
            path = getattr(self, name)
            if path is not None and not path.is_absolute() and not (self.reach and str(path)[:1] == "~"):
                raise SpecError(f"{name}={path} is not absolute")
        _check_flags(self.trainer_flags, self.env)
        for name in self.env:
            _check_env_name(name)
        _check_counts(self)

    @property
    def command(self) -> tuple[str, ...]:
        """The program as an argument vector, to be run in the workspace: no shell, no search in PATH."""
        program = self.program or DEFAULT_PROGRAM
        if program.endswith(".py"):
            return (self.python or PYTHON, program, *self.program_args)
        runnable = program if "/" in program else f"./{program}"
        return (runnable, *self.program_args)


_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "server_num": (0, MAX_PROCESSES),
    "worker_num": (1, MAX_PROCESSES),
    "trainer_count": (1, MAX_THREADS),
    "port": (1, 65535),
    "ports_num": (1, MAX_PORTS),
    "ports_num_for_sparse": (0, MAX_PORTS),
    "nodes": (1, MAX_PROCESSES),
}
_DURATIONS: Final[Mapping[str, float]] = {
    "grace": 0.0,
    "lost_after": MIN_LOST_AFTER_S,
    "stall_after": 0.1,
    "stall_timeout": 0.1,
}


def _check_range(name: str, value: int | None) -> None:
    low, high = _RANGES[name]
    if value is not None and not low <= value <= high:
        raise SpecError(f"--{name}={value} is not from {low} to {high}")


def _check_duration(name: str, value_s: float | None) -> None:
    low_s = _DURATIONS[name]
    if value_s is not None and not low_s <= value_s < float("inf"):
        raise SpecError(f"--{name}={value_s:g} is not a number of seconds from {low_s:g} up")


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise SpecError(f"--{name}={value}: one of {', '.join(choices)}")


def _check_name(name: str) -> None:
    if not name or name in (".", "..") or "/" in name or not name.isprintable():
        raise SpecError(f"--job_name={name!r} can't be the name of a folder; give --job_name=NAME")
    if len(os.fsencode(name)) > MAX_NAME_BYTES:
        raise SpecError(f"--job_name={name[:20]}... is longer than {MAX_NAME_BYTES} bytes")


def _check_env_name(name: str) -> None:
    if not re.fullmatch(r"[^\s=\0]+", name):
        raise SpecError(f"--env {name!r} is no variable's name")
    if name in contract.contract_names():
        option = name.removeprefix("PADDLE_INIT_").lower()
        instead = f"; use --{option}" if f"--{option}" in _SETTABLE else ""
        raise SpecError(f"--env {name} belongs to the contract that pslaunch writes itself{instead}")


_SETTABLE: Final = frozenset(
    f"--{name}"
    for name in ("use_gpu", "trainer_count", "port", "ports_num", "ports_num_for_sparse", "stall_after")
)


def _check_flags(flags: Mapping[str, str], env: Mapping[str, str]) -> None:
    for name in flags:
        if name not in contract.TRAINER_FLAGS:
            raise SpecError(f"--{name} is no flag of the trainer")
        if contract.init_var(name) in env:
            raise SpecError(f"--{name} and --env {contract.init_var(name)} say the same; give one of them")


def _check_counts(spec: JobSpec) -> None:
    servers = spec.server_num
    if servers and spec.port is not None:
        on_a_node = -(-servers // spec.nodes)
        last = spec.port + on_a_node * (spec.ports_num + spec.ports_num_for_sparse) - 1
        if last > 65535:
            raise SpecError(
                f"--port={spec.port}: {on_a_node} pservers would need ports up to {last}; 65535 is the last"
            )


# --- From a command line, for `pslaunch local`. ---


def local_spec(
    given: Mapping[str, str],
    env_words: Sequence[str],
    split: Split,
    *,
    cwd: Path,
    environ: Mapping[str, str],
) -> JobSpec:
    """The job of `pslaunch local`: what was given, and design defaults for all else.

    given: text of each option by its name, only those on the command line. env_words: values of --env.
    cwd: absolute; relative paths start there. Raises SpecError; looks at files, changes nothing.
    """
    # The options first: a wrong one is named even where the program is wrong too.
    options = _options(given, env_words, cwd, environ)
    workspace, program = locate(given, split, cwd)
    spec = JobSpec(
        backend="local",
        job_name=given["job_name"] if "job_name" in given else name_of(workspace),
        workspace=workspace,
        package=Package(folder=workspace) if "job_dispatch_package" in given else None,
        program=program,
        program_args=(*split.forwarded, *split.program_args),
        trainer_flags=split.trainer_flags,
        **options,
    )
    _check_effects(spec, given)
    return spec


def notes(spec: JobSpec, split: Split) -> list[str]:
    """What to tell about words of the command line that may have been meant otherwise."""
    program = spec.program or DEFAULT_PROGRAM
    said = [f"{', '.join(split.forwarded)} goes to {program}"] if split.forwarded else []
    flags = [name for name in map(_option_name, split.program_args) if name in contract.TRAINER_FLAGS]
    if flags and not reads_arguments(spec.workspace / program, spec.workspace):
        words = ", ".join(f"--{name}" for name in flags)
        said.append(
            f"{words} after {program} is the program's own, and it does not seem to read arguments; "
            f"for the trainer it stands before {program}"
        )
    return said


def _option_name(word: str) -> str:
    return word.removeprefix("--").partition("=")[0].replace("-", "_") if word.startswith("--") else ""


class _Options(TypedDict):
    """The fields of JobSpec that options give as they are."""

    server: Server
    server_num: int | None
    worker_num: int | None
    trainer_count: int
    use_gpu: bool
    port: int | None
    ports_num: int
    ports_num_for_sparse: int
    env: Mapping[str, str]
    python: str
    log_dir: Path | None
    grace_s: float
    lost_after_s: float
    stall_after_s: float
    stall_timeout_s: float | None
    nodes: int
    head: Literal["launcher", "node"]
    detach: bool


def _options(
    given: Mapping[str, str], env_words: Sequence[str], cwd: Path, environ: Mapping[str, str]
) -> _Options:
    return _Options(
        server=_server(given.get("server", "auto")),
        server_num=_number(given, "server_num", 1),
        worker_num=_number(given, "worker_num", 1),
        trainer_count=_number(given, "trainer_count", 1),
        use_gpu=_use_gpu(given),
        port=_number(given, "port", 0) if "port" in given else None,
        ports_num=_number(given, "ports_num", 1),
        ports_num_for_sparse=_number(given, "ports_num_for_sparse", 0),
        env=_added_env(env_words, environ),
        python=_python(given.get("python"), cwd, environ),
        log_dir=log_dir(given.get("log_dir"), cwd),
        grace_s=_seconds(given, "grace", 5.0),
        lost_after_s=_seconds(given, "lost_after", 30.0),
        stall_after_s=_seconds(given, "stall_after", 60.0),
        stall_timeout_s=_seconds(given, "stall_timeout", 0.0) if "stall_timeout" in given else None,
        nodes=_number(given, "nodes", 1),
        head=_head(given),
        detach="detach" in given,
    )


def _head(given: Mapping[str, str]) -> Literal["launcher", "node"]:
    """Where the job is decided: on a node, where `--detach` asks for it or it was given."""
    word = given.get("head", "node" if "detach" in given else "launcher")
    if word == "launcher" and "detach" not in given:
        return "launcher"
    if word != "node":
        also = " together with --detach" if word == "launcher" else ": one of launcher, node"
        raise SpecError(f"--head={word}{also}")
    return "node"


def _check_effects(spec: JobSpec, given: Mapping[str, str]) -> None:
    """An option that has no effect is an error."""
    if spec.server_num == 0:
        for name in ("server", "port", "ports_num", "ports_num_for_sparse", "stall_after", "stall_timeout"):
            if name in given and not (name == "server" and given[name] == "script"):
                raise SpecError(f"--{name}={given[name]} has no effect without pservers (--server_num=0)")
    if "python" in given and not (spec.program or DEFAULT_PROGRAM).endswith(".py"):
        raise SpecError(f"--python={given['python']} has no effect: {spec.program} is no .py program")
    kind, why = choose_server(spec.server, spec.server_num, spec.workspace, spec.program or DEFAULT_PROGRAM)
    if spec.use_gpu and kind == "bundled":
        raise SpecError(
            f"--use_gpu={given['use_gpu']}: the bundled runtime of this build has CPU kernels only "
            f"(with_gpu OFF), and pservers are bundled: {why}. Another runtime: --server script"
        )


def _number(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        raise SpecError(f"--{name}={text!r} is not a whole number")
    _check_range(name, int(text))
    return int(text)


def _seconds(given: Mapping[str, str], name: str, default_s: float) -> float:
    text = given.get(name)
    try:
        value_s = default_s if text is None else float(text)
    except ValueError:
        raise SpecError(f"--{name}={text!r} is not a number of seconds") from None
    _check_duration(name, value_s if text is not None else None)
    return value_s


def _server(text: str) -> Server:
    choices: tuple[Server, ...] = get_args(Server)
    for choice in choices:
        if text == choice:
            return choice
    raise SpecError(f"--server={text!r}: one of {', '.join(choices)}")


def _use_gpu(given: Mapping[str, str]) -> bool:
    try:
        return contract.parse_bool(given.get("use_gpu", "False"), "--use_gpu")
    except contract.EnvError as e:
        raise SpecError(str(e)) from e


def _added_env(words: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    added: dict[str, str] = {}
    for word in words:
        name, has_value, value = word.partition("=")
        _check_env_name(name)
        if name in added:
            raise SpecError(f"--env {name} is given twice")
        if not has_value and name not in environ:
            raise SpecError(
                f"--env {name}: there is no such variable here to pass on; --env {name}=VALUE sets one"
            )
        added[name] = value if has_value else environ[name]
    return added


def _python(text: str | None, cwd: Path, environ: Mapping[str, str]) -> str:
    if text is None:
        return sys.executable
    # The path is kept as it is, links included: a virtual environment is found by the link's place.
    found = shutil.which(cwd / text if "/" in text else text, path=environ.get("PATH"))
    if not text or found is None:
        raise SpecError(f"--python={text!r} is not an executable file or a command in PATH")
    return str(cwd / found)
