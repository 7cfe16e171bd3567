"""Start of a job from a file, without a launcher: the format, which the launcher writes and nodes read."""

from __future__ import annotations

import json
import os
import re
from typing import NamedTuple

from . import codes, job

# Paths in the folder that every node has.
JOB_FILE, PROGRAM = "job/job.json", "job/pslaunch.pyz"
PACKAGE_FILE = "package/package.zip"
SECRET_FILE = "secret/secret"
WHEEL = "wheel"  # folder of wheels of pslaunch
NAME_FILE = "pieces/name"  # of the Job that this node's pod is of, from the cluster
MIN_SECRET_BYTES = 16


class Beginning(NamedTuple):
    """Everything that a node needs to begin its part of the job, but for the secret."""

    plan: job.Plan  # with all nodes
    head: str  # name at which other nodes find node 0, perhaps only later
    port: int  # of the head
    wait_timeout_s: float  # for all nodes to connect
    report: str = ""  # file for the job's end as JSON, if it exists
    lease_s: float = 0.0  # after which the job ends without a launcher; 0: it needs none
    linger_s: float = 0.0  # after the end, for a launcher to fetch files
    packed: bool = False  # the package is in PACKAGE_FILE; else a launcher brings it, if the plan has one

    def encode(self) -> bytes:
        """Return the contents of JOB_FILE, to be read by people too; equal jobs give equal bytes."""
        return json.dumps(job.to_data(self), indent=1).replace("\x7f", "\\u007f").encode() + b"\n"


def read_beginning(folder: str) -> Beginning:
    with open(os.path.join(folder, JOB_FILE), encoding="utf-8") as f:
        begun: Beginning = job.parse(Beginning, json.load(f))
    return begun


def is_wheel_for(name: str, machine: str, libc: str = "many|musl") -> bool:
    """Return True if a wheel is for Linux on a kind of processor; by its name, `machine` as of uname."""
    tags = name[: -len(".whl")].rpartition("-")[2].split(".")
    return any(re.fullmatch(f"({libc})?linux[0-9_]*_{machine}", tag) for tag in tags)


def check_name(folder: str, name: str) -> None:
    """Raise Refusal if the cluster has the Job under another name, OSError without that name."""
    with open(os.path.join(folder, NAME_FILE), encoding="utf-8") as f:
        found = f.read().strip()
    if found != name:
        raise codes.Refusal(
            codes.PREFLIGHT,
            f"this pod is of the Job {found}, but the job was made as {name}, and its pods find each other "
            "by that name: render it anew with another --job_name instead of a namePrefix or nameSuffix",
        )


def read_secret(folder: str) -> bytes:
    """Return the job's secret. Raises ValueError, OSError."""
    with open(os.path.join(folder, SECRET_FILE), encoding="ascii") as f:
        secret = bytes.fromhex(f.read().strip())
    if len(secret) < MIN_SECRET_BYTES:
        raise ValueError(
            f"{f.name} is not a secret: expected at least {MIN_SECRET_BYTES} bytes in hexadecimal"
        )
    return secret
