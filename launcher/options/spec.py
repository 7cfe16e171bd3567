"""JobSpec, its checks, and its construction from options. Starts nothing."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from pslaunch.runtime.shared import env as contract

from ..errors import SpecError
from ..node import binding
from ..node.job import PYTHON, Count, Limits, Node, Package, Plan, Wants, deal
from .args import DEFAULT_PROGRAM, Split
from .detect import ServerMode, choose_server, find_gpu_use, find_imports
from .kinds import Flag, Text, Truth, Value, parse_argument
from .locate import check_module
from .options import DEFAULT, GIVEN, SERVED
from .sources import Given

# A program that calls a function of a module with arguments in JSON.
CALL: Final = (
    "import importlib, json, sys; _, module, name, *args = sys.argv; "
    "getattr(importlib.import_module(module), name)(*map(json.loads, args))"
)

HeadPlace = Literal["launcher", "node"]


class Site(NamedTuple):
    """The nodes of a job, from its backend to the plan, which knows no backend."""

    nodes: tuple[Node, ...]  # none where their agents report them
    default_count: Count  # of pservers, and of trainers
    # On other machines: without this shell's variables and Python, and a head there is recorded here.
    remote: bool = True
    package: Package | None = None  # sent to the nodes; None: they have the workspace already
    reach: Any = None  # connection options, for its backend only
    expected: tuple[Node, ...] = ()  # nodes of a dry run, where agents report them
    job_id: str = ""  # of a job that begins by itself, with its nodes; else the launcher makes one
    of: str = ""  # a scheduler's name of a job, as a part of that id


class Elsewhere(NamedTuple):
    """The node that `pslaunch jobs`, `status` and so on ask."""

    backend: str
    reach: Any  # as in Site
    shown: str  # its name in messages


class JobSpec(NamedTuple):
    """One job as the user wants it, checked by `check_spec`. A count of None is the backend's default.

    Paths here are absolute; paths on other machines may begin with ~.
    """

    draft: Plan  # as far as the user decides; make_plan adds the rest
    workspace: Path  # the folder to send; else the folder on the nodes
    site: Site
    program: str = DEFAULT_PROGRAM  # a path inside the workspace, or absolute
    module: str = ""  # by whose name Python runs it
    program_args: tuple[str, ...] = ()
    runner: tuple[str, ...] = ()  # arguments of Python before the program
    call: str | None = None  # function of the program, called in place of running it
    server: ServerMode = DEFAULT["server"]
    server_num: int | None = None
    worker_num: int | None = None
    python: str | None = sys.executable  # None: the node's own
    log_dir: Path | None = None  # on the nodes
    head: HeadPlace = DEFAULT["head"]  # of the control process
    detach: bool = False  # the job continues without the launcher; the head is on a node
    install: bool = False  # a virtual environment of the job on each node
    wheel: Path | None = None  # of pslaunch, for it; None: made from this machine's installation
    wheelhouse: Path | None = None  # folder of wheels for it; None: the node's own index
    fetch_output: Path | None = None  # local folder for output/ of node 0
    fetch_logs: Path | None = None  # local folder for log/ of every node
    trace: Path | None = None  # file for the control messages
    log_to: Literal["tensorboard"] | None = None

    @property
    def is_here(self) -> bool:
        """Return True if the workspace is a folder of this machine."""
        return not self.site.remote or self.site.package is not None

    @property
    def command(self) -> tuple[str, ...]:
        """Return the program as an argument vector for the workspace: no shell, no search in PATH here."""
        words = [self.python or PYTHON, *self.runner]
        if self.call:
            module = self.module or self.program.removesuffix(".py").replace("/", ".")
            words += ["-c", CALL, module, self.call]
        elif self.module:
            words += ["-m", self.module]
        elif self.site.remote and self.program.startswith("/"):  # a command, which may be elsewhere there
            words = ["/usr/bin/env", Path(self.program).name]
        elif self.program.endswith(".py"):
            words += [self.program]
        else:
            words = [self.program if "/" in self.program else f"./{self.program}"]
        return (*words, *self.program_args)


def check_env_name(name: str, label: str) -> None:
    """Raise SpecError for a variable that users can't set."""
    if not re.fullmatch(r"[^\s=\0]+", name):
        raise SpecError(f"{label} {name!r} is not a variable name; expected NAME=VALUE")
    if name in binding.list_contract_names() - contract.COMMON_NAMES:
        option = name.removeprefix("PADDLE_").removeprefix("INIT_").lower()
        instead = f"; use --{option}" if option in DEFAULT else "; leave it out"
        raise SpecError(f"{label} {name} is set by pslaunch itself{instead}")


def _check_ports(spec: JobSpec, label: str) -> None:
    draft = spec.draft
    if draft.port is None or spec.server_num == 0:
        return
    count = spec.site.default_count if spec.server_num is None else Count("total", spec.server_num)
    nodes = deal(contract.PSERVER, count, spec.site.nodes) if spec.site.nodes else []
    on_a_node = max(Counter(node.id for node in nodes).values(), default=1)
    last = draft.port + on_a_node * (draft.ports_num + draft.ports_num_for_sparse) - 1
    if last > 65535:
        raise SpecError(
            f"{label}={draft.port}: {on_a_node} pservers need ports up to {last}; 65535 is the last"
        )


# --- From options. ---


def list_notes(spec: JobSpec, given: Given, split: Split) -> list[str]:
    """Return notes about effects of command line and files that are easy to miss."""
    said = [f"options also from {' and '.join(given.files)}"] if given.files else []
    if spec.draft.added_env.get(contract.get_snapshot_var("resume"), "").startswith(contract.RESUME_OF):
        said.append(
            "requeued: the training goes on from its newest snapshot, as with --resume, if it has one"
        )
    said += [f"{', '.join(split.forwarded)} goes to {spec.program}"] if split.forwarded else []
    unfetched = [v for name in ("fetch_output", "fetch_logs") for v in given.get_all(name) if spec.detach]
    said_later = [
        f"{value.label}={value.text} has no effect with --detach; after the job's end, "
        f"pslaunch fetch JOB {value.text} brings its output and logs"
        for value in unfetched
    ]
    return [*said, *_find_misplaced(spec, given, split), *given.left_out, *said_later]


def _find_misplaced(spec: JobSpec, given: Given, split: Split) -> list[str]:
    """Return a note for words after a Python program that are options of ours, and that its text has not."""
    path = spec.workspace / spec.program
    if path.suffix != ".py" or not spec.is_here:
        return []
    text = path.read_text("utf-8", "replace").replace("-", "_")
    names = [word[2:].partition("=")[0].replace("-", "_") for word in split.program_args if word[:2] == "--"]
    found = [name for name in dict.fromkeys(names) if name in given.options and name not in text]
    where = f"after {split.chosen_program} is given to the program; put it before"
    return [f"--{name} {where}" for name in found]


def read_draft(backend: str, given: Given, environ: Mapping[str, str]) -> Plan:
    """Return the user's part of the plan, without the job's name."""
    # Not `nodes`: the option is their number.
    parts = {*Plan._fields, *Limits._fields, *Wants._fields}
    found = read_fields(given, parts - {*JobSpec._fields, "nodes"})
    return Plan(
        backend=backend,
        added_env=_read_env(given.get_all("env"), environ) | _read_variables(given),
        flags=given.trainer_flags,
        wants=Wants(_read_gpus(given), found.pop("gpus_per_trainer"), found.pop("bind_cores")),
        limits=Limits(**{name: found.pop(name) for name in Limits._fields}),
        setup=tuple(given.read_all("setup")),
        **found,
    )


def read_common_options(given: Given, split: Split, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the other fields of JobSpec with equal meaning on every backend."""
    values = read_fields(given, JobSpec._fields)
    values["module"] = split.chosen_program if split.is_module else ""
    values["program_args"] = (*split.forwarded, *split.program_args)
    values["head"] = _choose_head(given)
    trace = "trace" in given.options and (given.read("trace") or environ.get("PSLAUNCH_TRACE"))
    values["trace"] = Path(trace) if trace else None
    values["call"] = given.read("call") if "call" in given else None
    return values


def read_fields(given: Given, fields: Container[str]) -> dict[str, Any]:
    """Return the values of the options that have such a field, but for texts, which need more to be read."""
    named = {name: option for name, option in given.options.items() if not isinstance(option.kind, Text)}
    return {option.field: given.read(name) for name, option in named.items() if option.field in fields}


def _choose_head(given: Given) -> HeadPlace:
    """Return the place of the head: a node if `--detach` or `--head` asks for it."""
    head: HeadPlace = given.read("head") if "head" in given.options else "launcher"
    if not given.is_set("detach"):
        return head
    if head == "launcher":
        refuse_without_effect(given, "head", "with --detach: the head of a detached job is on a node")
    return "node"


def check_spec(spec: JobSpec, given: Given) -> None:
    """Raise SpecError if a value is not allowed, or an option of the command line has no effect."""
    port, install = given.get("port"), given.get("install")
    if spec.install and install and not spec.site.package:
        raise SpecError(f"{install.label} needs --job_dispatch_package: the wheels are sent with the package")
    for name in spec.draft.flags:
        if (variable := contract.get_init_var(name)) in spec.draft.added_env:
            raise SpecError(f"--{name} and --env {variable} have the same meaning; give one of them")
    _check_ports(spec, port.label if port else "--port")
    refuse_unmet(given)
    if not spec.module and (call := given.get("call")) and not re.fullmatch(r"[^/.][^.]*\.py", spec.program):
        remedy = f"give a .py file of {spec.workspace}, or -m MODULE"
        raise SpecError(f"{call.shown}: {spec.program} is no module of the workspace; {remedy}")
    is_ours = spec.python == sys.executable and not spec.site.remote
    if spec.module and is_ours and not spec.draft.has_setup and "PYTHONPATH" not in spec.draft.added_env:
        check_module(spec.module, spec.workspace)
    if spec.log_to and spec.site.remote and not spec.fetch_logs:
        raise SpecError(
            f"--log_to={spec.log_to} needs --fetch_logs DIR, a folder here: it writes to DIR/{spec.log_to}"
        )
    kind, why = choose_server(spec.server, spec.server_num, spec.workspace, spec.program)
    if not (spec.program.endswith(".py") or spec.module) and not (spec.site.remote and kind == "bundled"):
        refuse_without_effect(given, "python", f"on {spec.program}, which is not a .py program")
    if kind == "none":
        for name in [name for name, option in given.options.items() if {*SERVED} & {*option.needs}]:
            refuse_without_effect(given, name, f"without pservers: {why}")
    if kind != "bundled":
        refuse_without_effect(given, "trainer_timeout", f"where no pserver is bundled: {why}")
    for name in ("use_gpu", "gpus", "gpus_per_trainer"):
        value = given.get(name)
        computes = name != "use_gpu" and find_gpu_use(spec.workspace / spec.program, spec.workspace)
        if value is None or computes or not given.is_set(name):
            continue
        only = (
            f"{value.label}={value.text}: the bundled runtime of this build has CPU kernels only "
            "(with_gpu OFF)"
        )
        if kind == "bundled":
            raise SpecError(f"{only}, and pservers are bundled: {why}. Another runtime: --server script")
        place = find_imports(spec.workspace / spec.program, spec.workspace).needed.get("pslaunch")
        if place and spec.server != "script":
            raise SpecError(f"{only}, and {place} imports it")


def _read_gpus(given: Given) -> str | None:
    value = given.get("gpus")
    words = value.text.removesuffix(",").split(",") if value else []
    is_list = len({*filter(contract.is_device, words)}) == len(words) and words != [value and value.text]
    if value and not is_list and not re.fullmatch("[1-9][0-9]{0,2}", value.text):
        raise SpecError(f"{value.shown}: expected a number of GPUs, or a list of them: 0,1; of one: 0,")
    return value.text if value else None


def count_gpus(given: Given, trainers: int) -> int:
    """Return the GPUs that a scheduler is asked for, for a node with so many trainers. Raises SpecError."""
    value = given.get("gpus")
    if value and not value.text.isdigit():
        raise SpecError(f"{value.shown}: the scheduler chooses the devices; give their number")
    return int(value.text) if value else trainers * (given.read("gpus_per_trainer") or 0)


def refuse_unmet(given: Given) -> None:
    """Raise SpecError if an option of the command line has no effect beside others."""
    for name in filter(given.__contains__, given.options):
        for need in [need for need in given.options[name].needs if need.name in given.options]:
            if need.name in given if need.value is GIVEN else given.read(need.name) == need.value:
                refuse_without_effect(given, name, need.words)


def refuse_without_effect(given: Given, name: str, why: str) -> None:
    """Raise SpecError if the option is on the command line: in a file it may be for other jobs."""
    for value in given.get_all(name):
        kind = given.options[name].kind
        flag, is_off = isinstance(kind, Flag), isinstance(kind, Truth) and not given.is_set(name)
        if value.on_line and not is_off:
            raise SpecError(f"{value.label}{'' if flag else f'={value.text}'} has no effect {why}")


def _read_variables(given: Given) -> dict[str, str]:
    """Return the variables of snapshots and metrics that are asked for; bind() completes the folder."""
    names = [name for name in contract.SNAPSHOT_ARGS if name in given]
    for value in [*given.get_all("snapshot_dir"), *given.get_all("export_dir")]:
        if value.text.startswith("~"):
            raise SpecError(f"{value.shown}: give an absolute path, or one in the workspace")
    variables = {contract.get_snapshot_var(name): str(given.read(name)) for name in names}
    if at := given.get("metrics_port"):
        parse_argument(contract.split_addr, at.text if ":" in at.text else f"127.0.0.1:{at.text}", at.label)
        variables["PSLAUNCH_METRICS_PORT"] = at.text
    return variables


def _read_env(words: Sequence[Value], environ: Mapping[str, str]) -> dict[str, str]:
    added: dict[str, str] = {}
    for word in words:
        name, has_value, value = word.text.partition("=")
        check_env_name(name, word.label)
        if name in added:
            raise SpecError(f"{word.label} {name} is given twice")
        if "\0" in value:
            raise SpecError(f"{word.label} {name}={value!r}: a variable can't hold a zero byte")
        if not has_value and name not in environ:
            raise SpecError(f"{word.label} {name}: not set in this shell; give {name}=VALUE")
        added[name] = value if has_value else environ[name]
    return added
