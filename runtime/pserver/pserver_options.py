"""The options of the pserver program: the command line, then the environment contract."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from .. import _core
from ..files.exports import name_export
from ..files.saving import Header
from ..shared import env

EXPORTS = 2**62  # PS_CUT_EXPORTS


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    host: str
    nics: tuple[str, ...]
    port: int
    ports_num: int
    ports_num_for_sparse: int
    num_gradient_servers: int
    secret: bytes
    log_dir: str
    save_dir: Path | None
    grace_s: float | None
    trainer_timeout_s: float
    stall_after_s: float
    stall_timeout_s: float | None
    metrics: str | None
    job: env.Job
    descriptors: tuple[int, ...]
    snapshot_dir: Path
    snapshot_keep: int
    export_dir: Path

    def get_cut_folder(self, header: Header, number: int) -> Path:
        """Return the folder of a snapshot of this step, or of an export, whose number is above EXPORTS."""
        if number >= EXPORTS:
            return self.export_dir / name_export(header.run, number - EXPORTS)
        return self.snapshot_dir / f"cut-{header.epoch:04d}-{number:012d}"

    @property
    def ports(self) -> int:
        return self.ports_num + self.ports_num_for_sparse


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"pslaunch pserver: {message}", file=sys.stderr)
        raise SystemExit(2)


class _Once(argparse.Action):
    """An option that may be given only once."""

    def __call__(
        self, parser: argparse.ArgumentParser, space: argparse.Namespace, value: Any, option: Any = None
    ) -> None:
        if option in vars(space).setdefault("given", set()):
            parser.error(f"{option} is given twice")
        space.given.add(option)
        setattr(space, self.dest, value)


def _make_parser(given: dict[str, object]) -> argparse.ArgumentParser:
    def get_default(name: str) -> object:
        return given.get(name, env.INIT_ARGS[name].default)

    p = _Parser(prog="pslaunch pserver", description="Serve parameters to trainers.", allow_abbrev=False)

    def add(name: str, metavar: str, text: str, shown: str, value: object) -> None:
        words = f"{text} [default: {shown}]" if shown else text
        p.add_argument(f"--{name}", metavar=metavar, default=value, help=words, action=_Once)

    add("port", "PORT", "First port.", "7164", get_default("port"))
    add("ports_num", "N", "Ports for dense parameters.", "1", get_default("ports_num"))
    sparse = "Ports for sparse tables; 0: the dense ones."
    add("ports_num_for_sparse", "N", sparse, "0", get_default("ports_num_for_sparse"))
    add("num_gradient_servers", "N", "Trainers to wait for.", "1", get_default("num_gradient_servers"))
    add("host", "ADDRESS", "Address to listen on.", "all", None)
    nics = "Network interfaces to listen on, comma-separated, in place of --host."
    add("nics", "NAMES", nics, "all", "")
    add("save_dir", "DIR", "Folder for the final parameters of the ports.", "", "")
    add("grace", "SECONDS", "Seconds from TERM to KILL; too few to save are reported.", "unknown", None)
    add("secret_file", "FILE", "Secret shared with the trainers.", "", get_default("secret_file"))
    add("log_dir", "DIR", "Folder of paddle_pserver2.INFO.", "", given.get("log_dir", ""))
    gone = "Seconds that a trainer may be disconnected."
    add("trainer_timeout", "SECONDS", gone, f"{env.TRAINER_TIMEOUT_S:g}", env.TRAINER_TIMEOUT_S)
    stall = "Seconds after which a waiting step is reported."
    add("stall_after", "SECONDS", stall, "60", get_default("stall_after"))
    timeout = "Seconds after which a waiting step ends the pserver."
    add("stall_timeout", "SECONDS", timeout, "never", get_default("stall_timeout"))
    metrics = "Port of GET /metrics for Prometheus; at a HOST that others reach with the secret as token."
    add("metrics_port", "[HOST:]PORT", metrics, "none", given.get("metrics"))
    return p


def _use_underscores(argv: Sequence[str]) -> list[str]:
    words = []
    for word in argv:
        name, equals, value = word.partition("=")
        words.append(("--" + name[2:].replace("-", "_") if name.startswith("--") else name) + equals + value)
    return words


def _read_secret(path: str) -> bytes:
    try:
        return Path(path).read_bytes().strip()
    except OSError as e:
        raise env.EnvError(f"--secret_file={path}: {e.strerror}") from None


def parse_options(argv: Sequence[str], environ: dict[str, str]) -> Options:
    """Return the options from the command line and the environment. Raises EnvError, or exits with 2."""
    job = env.read_job(environ)
    given = env.read_init_args(environ)
    parser = _make_parser({"log_dir": job.log_dir, "metrics": environ.get("PSLAUNCH_METRICS_PORT"), **given})
    a, others = parser.parse_known_args(_use_underscores(argv))
    if others:
        known = [f"--{name}" for name in vars(a)]
        hint = env.suggest(others[0].partition("=")[0], known, "; see --help")
        parser.error(f"unknown option {others[0]!r}{hint}")
    ports_num = env.parse_count(a.ports_num, "--ports_num")
    sparse = env.parse_int(a.ports_num_for_sparse, "--ports_num_for_sparse")
    port = env.parse_port(a.port, "--port")
    if port + ports_num + sparse - 1 > 65535:
        raise env.EnvError(f"--port={port}: {ports_num + sparse} ports starting there exceed 65535")
    if a.host and a.nics:
        raise env.EnvError("--host and --nics exclude each other: give one")
    listed = environ.get(env.LISTEN_FDS, "")
    descriptors = tuple(env.parse_int(fd, env.LISTEN_FDS) for fd in listed.split(",") if fd)
    if descriptors and len(descriptors) != ports_num + sparse:
        raise env.EnvError(f"{env.LISTEN_FDS}={listed}: {ports_num + sparse} ports need as many")
    limit = _core.get_protocol()["PS_MAX_TRAINERS"]
    return Options(
        host=a.host or "0.0.0.0",
        nics=tuple(filter(None, a.nics.split(","))),
        port=port,
        ports_num=ports_num,
        ports_num_for_sparse=sparse,
        num_gradient_servers=env.parse_int(a.num_gradient_servers, "--num_gradient_servers", 1, limit),
        secret=_read_secret(a.secret_file) if a.secret_file else b"",
        log_dir=a.log_dir,
        save_dir=Path(a.save_dir).absolute() if a.save_dir else None,
        grace_s=None if a.grace is None else env.parse_float(a.grace, "--grace"),
        trainer_timeout_s=env.parse_float(a.trainer_timeout, "--trainer_timeout"),
        stall_after_s=env.parse_float(a.stall_after, "--stall_after"),
        stall_timeout_s=None
        if a.stall_timeout is None
        else env.parse_float(a.stall_timeout, "--stall_timeout"),
        metrics=a.metrics_port,
        job=job,
        descriptors=descriptors,
        snapshot_dir=Path(env.get_snapshot_dir(given.get("snapshot_dir", ""), environ)).absolute(),
        snapshot_keep=given.get("snapshot_keep", env.INIT_ARGS["snapshot_keep"].default),
        export_dir=Path(given.get("export_dir", env.INIT_ARGS["export_dir"].default)).absolute(),
    )
