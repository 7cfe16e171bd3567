"""`init()`: settings of this run from program and environment, and preparation of the process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..shared import env


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotSettings:
    """Arguments of `init()` for snapshots and exports: those of env.SNAPSHOT_ARGS."""

    steps: int = 0
    minutes: float = 0.0
    dir: str = ""
    keep: int = 1
    copies: int = 1
    export_steps: int = 0
    export_dir: str = ""
    resume: str = ""

    @property
    def are_asked(self) -> bool:
        """True if this training takes snapshots or exports, or begins with a snapshot."""
        return bool(self.steps or self.minutes or self.export_steps or self.resume)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Arguments of `init()`, documented by env.INIT_ARGS, and this process's job; use_gpu is refused."""

    trainer_count: int
    port: int
    ports_num: int
    ports_num_for_sparse: int
    num_gradient_servers: int
    trainer_id: int
    pservers: str
    seed: int
    connect_timeout: float
    stall_after: float
    stall_timeout: float | None
    secret_file: str
    log_dir: str
    num_passes: int | None
    log_period: int
    dot_period: int | None
    saving_period: int
    save_dir: str
    test_period: int
    local: bool | None
    nan: str
    no_save: bool
    snapshots: SnapshotSettings
    job: env.Job
    flags: frozenset[str] = frozenset()  # trainer flags given in the environment

    @property
    def uses_snapshots(self) -> bool:
        """True if they are asked for, or this is a restart, which may begin with a snapshot."""
        return self.snapshots.are_asked or self.job.epoch > 0

    @property
    def endpoints(self) -> list[tuple[str, int]]:
        """Host and first port of each pserver."""
        return env.list_pserver_endpoints(self.pservers, self.port, self.ports_num, self.ports_num_for_sparse)


def resolve(arguments: Mapping[str, object], environ: Mapping[str, str]) -> Settings:
    """Return the settings from arguments and environment; pure.

    Arguments win, except over the trainer's flags: these are given at start to overrule the program.
    Raises TypeError for an unknown argument, EnvError for an invalid value.
    """
    values: dict[str, Any] = {name: arg.default for name, arg in env.INIT_ARGS.items()}
    for name, value in arguments.items():
        if name not in env.INIT_ARGS:
            hint = env.suggest(name, env.INIT_ARGS)
            raise TypeError(f"init() has no argument {name}{hint}")
        values[name] = env.INIT_ARGS[name].parse(value, name)
    given = env.read_init_args(environ)
    flags = frozenset(given) & frozenset(env.TRAINER_FLAGS)
    for name, value in given.items():
        if name not in arguments or name in flags:
            values[name] = value
    if values.pop("use_gpu"):
        raise env.EnvError(
            "use_gpu=True: this build has no GPU (with_gpu OFF), it computes on the CPU; set "
            "use_gpu=False, or use a framework with GPU support"
        )
    own = {name.removeprefix("snapshot_"): values.pop(name) for name in env.SNAPSHOT_ARGS}
    values["snapshots"] = SnapshotSettings(**own)
    settings = Settings(**values, job=env.read_job(environ), flags=flags)
    trainer, trainers = settings.trainer_id, settings.num_gradient_servers
    if trainer >= trainers:
        raise env.EnvError(
            f"trainer_id={trainer} must be below num_gradient_servers={trainers}, the number of trainers"
        )
    settings.endpoints  # noqa: B018  # raises for an address that can't be read
    return settings


_current: Settings | None = None
_given: dict[str, object] = {}  # arguments of all calls so far, as v2's flags
_part: Mapping[str, object] | None = None  # of a Fleet program, which wins; None in another program


def init(**arguments: object) -> None:
    """Prepare this process for training: arguments take precedence over `PADDLE_INIT_*` (docs/options.md).

    In the role PSERVER, if a launcher starts the program in both roles, the process becomes the pserver:
    no return. A program that has imported Fleet before goes on: it serves by fleet.run_server().
    """
    settings = prepare(arguments)
    if os.environ.get("TRAINING_ROLE", "").upper() == "PSERVER" and _part is None:
        host, port = os.environ.get("POD_IP", ""), os.environ.get("PADDLE_PORT") or str(settings.port)
        _become_pserver(build_pserver_options(settings, host, port))


def prepare(arguments: Mapping[str, object]) -> Settings:
    """Return the settings of this process, with these arguments from now on; report misspelt variables."""
    global _current
    for name in sorted(os.environ):
        if near := env.find_near_init_var(name):
            print(f"the variable {name} has no effect; did you mean {near}?", file=sys.stderr)
    _current = resolve({**_given, **arguments, **(_part or {})}, os.environ)
    _given.update(arguments)
    return _current


def set_part(part: Mapping[str, object]) -> None:
    """Set what Fleet's role maker decides; at first, as Fleet is imported, nothing."""
    global _part
    _part = part


def set_seed(seed: int) -> None:
    """Set the seed, for settings that were or will be prepared."""
    global _current
    _given["seed"] = seed
    if _current is not None:
        _current = replace(_current, seed=env.parse_int(seed, "seed"))


def get_settings() -> Settings:
    """Return the settings of this process; those of the environment if init() was not called."""
    if _current is None:
        init()
    assert _current is not None
    return _current


def build_pserver_options(settings: Settings, host: str, port: str) -> list[str]:
    """Return the options of the pserver at an address, as of a command line; pure."""
    numbers = ("ports_num", "ports_num_for_sparse", "num_gradient_servers")
    options = [("port", port), *((name, getattr(settings, name)) for name in numbers)]
    texts = [("host", host), ("secret_file", settings.secret_file), ("log_dir", settings.log_dir)]
    return [f"--{name}={value}" for name, value in [*options, *(one for one in texts if one[1])]]


def _become_pserver(options: list[str]) -> None:
    print("role PSERVER: this process becomes the pserver", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "pslaunch.runtime.pserver", *options])
