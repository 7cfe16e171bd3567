"""The options of the pserver program: the command line, then the environment contract."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from pslaunch.runtime import _core, env


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What a pserver is told; see `parse_options`."""

    host: str
    nics: tuple[str, ...]
    port: int
    ports_num: int
    ports_num_for_sparse: int
    num_gradient_servers: int
    secret: bytes
    log_dir: str
    trainer_timeout_s: float
    stall_after_s: float
    stall_timeout_s: float | None
    epoch: int
    nodes: tuple[str, ...]
    descriptors: tuple[int, ...]

    @property
    def ports(self) -> int:
        """Listening ports, dense ones first."""
        return self.ports_num + self.ports_num_for_sparse


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"pslaunch pserver: {message}", file=sys.stderr)
        raise SystemExit(2)


def _parser(given: dict[str, object]) -> argparse.ArgumentParser:
    def default(name: str) -> object:
        return given.get(name, env.INIT_ARGS[name].default)

    p = _Parser(prog="pslaunch pserver", description="Serve parameters to trainers.", allow_abbrev=False)
    p.add_argument("--port", default=default("port"), help="first port (7164)")
    p.add_argument("--ports_num", default=default("ports_num"), help="ports for dense parameters (1)")
    p.add_argument("--ports_num_for_sparse", default=default("ports_num_for_sparse"), help="further ones (0)")
    p.add_argument("--num_gradient_servers", default=default("num_gradient_servers"), help="trainers (1)")
    p.add_argument("--host", help="address to listen on (all)")
    p.add_argument(
        "--nics", default="", help="network interfaces to listen on, comma-separated, in place of --host"
    )
    p.add_argument("--save_dir", default="", help="folder for snapshots; not there yet, and refused")
    p.add_argument("--secret_file", default=default("secret_file"), help="secret shared with the trainers")
    p.add_argument(
        "--log_dir", default=given.get("log_dir", ""), help="folder of paddle_pserver2.INFO (none)"
    )
    p.add_argument("--trainer_timeout", default=60, help="seconds that a trainer may be gone (60)")
    p.add_argument(
        "--stall_after", default=default("stall_after"), help="seconds until a wait is reported (60)"
    )
    p.add_argument("--stall_timeout", help="seconds after which a wait ends the pserver (never)")
    return p


def _with_underscores(argv: Sequence[str]) -> list[str]:
    words = []
    for word in argv:
        name, equals, value = word.partition("=")
        words.append(("--" + name[2:].replace("-", "_") if name.startswith("--") else name) + equals + value)
    return words


def parse_options(argv: Sequence[str], environ: dict[str, str]) -> Options:
    """Options from the command line, then the environment. Raises EnvError, OSError, or exits with 2."""
    job = env.read_job(environ)
    given = env.init_args(environ)
    a = _parser({"log_dir": job.log_dir, **given}).parse_args(_with_underscores(argv))
    ports_num = env.parse_count(a.ports_num, "--ports_num")
    sparse = env.parse_int(a.ports_num_for_sparse, "--ports_num_for_sparse")
    port = env.parse_port(a.port, "--port")
    if port + ports_num + sparse - 1 > 65535:
        raise env.EnvError(f"--port={port}: {ports_num + sparse} ports from there go beyond 65535")
    if a.save_dir:
        raise env.EnvError(
            "--save_dir: pservers write no snapshots yet; trainers save the model (their save_dir)"
        )
    if a.host and a.nics:
        raise env.EnvError("--host and --nics: give one of them")
    listed = environ.get(env.LISTEN_FDS, "")
    descriptors = tuple(env.parse_int(fd, env.LISTEN_FDS) for fd in listed.split(",") if fd)
    if descriptors and len(descriptors) != ports_num + sparse:
        raise env.EnvError(f"{env.LISTEN_FDS}={listed}: {ports_num + sparse} ports need as many descriptors")
    limit = _core.protocol()["PS_MAX_TRAINERS"]
    return Options(
        host=a.host or "0.0.0.0",
        nics=tuple(filter(None, a.nics.split(","))),
        port=port,
        ports_num=ports_num,
        ports_num_for_sparse=sparse,
        num_gradient_servers=env.parse_int(a.num_gradient_servers, "--num_gradient_servers", 1, limit),
        secret=Path(a.secret_file).read_bytes().strip() if a.secret_file else b"",
        log_dir=a.log_dir,
        trainer_timeout_s=env.parse_float(a.trainer_timeout, "--trainer_timeout"),
        stall_after_s=env.parse_float(a.stall_after, "--stall_after"),
        stall_timeout_s=env.parse_float(a.stall_timeout, "--stall_timeout") if a.stall_timeout else None,
        epoch=job.epoch,
        nodes=job.nodes,
        descriptors=descriptors,
    )
