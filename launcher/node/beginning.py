"""Start of a job from a file, without a launcher: the format, which the launcher writes and nodes read.

And how its agents go on once the head is lost with its node, and another one comes.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from . import codes, job
from .loop import Loop

if TYPE_CHECKING:
    from .line.wire import Line
    from .messages import Memory, RecallMsg, RememberMsg

    Dial = Callable[[], Line]  # slow; raises OSError, ProofError

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


def find_memory(folder: str, job_id: str) -> Memory | None:
    """Return what a job's newest snapshot in a folder tells of it (docs/checkpoint.md), None for none."""
    found = [(-1, 0)]
    for path in glob.glob(os.path.join(glob.escape(folder), "*", "manifest.json")):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError), open(path, "rb") as f:
            one = json.load(f)
            found += [(int(one["epoch"]), int(one["step"]))] if one["job_id"] == job_id else []
    epoch, step = max(found)
    return None if epoch < 0 else {
        "epoch": epoch, "told": [], "same": [], "cut": step, "sealed": step, "at": {}, "ran_s": 0.0,
        "job_s": 0.0, "why": "its pod is gone, with those of all other nodes",
    }  # fmt: skip


def read_secret(folder: str) -> bytes:
    """Return the job's secret. Raises ValueError, OSError."""
    with open(os.path.join(folder, SECRET_FILE), encoding="ascii") as f:
        secret = bytes.fromhex(f.read().strip())
    if len(secret) < MIN_SECRET_BYTES:
        raise ValueError(
            f"{f.name} is not a secret: expected at least {MIN_SECRET_BYTES} bytes in hexadecimal"
        )
    return secret


class LostHead:
    """What an agent's head has told for another one; `dial` is None where none comes."""

    def __init__(self, loop: Loop, dial: Dial | None, say: Callable[[Any], object]) -> None:
        self._loop, self.dial, self._say = loop, dial, say
        self._memory: Memory | None = None
        self._memory_s = 0.0  # when it was true
        self.linger_s = 0.0  # for files to be fetched, if no other head comes
        self.is_lost = self.is_sought = False

    def order_remember(self, m: RememberMsg) -> None:
        self._memory, self._memory_s, self.linger_s = m["memory"], self._loop.now(), float(m["linger_s"])

    def order_recall(self, m: RecallMsg) -> None:
        """Tell another head what is known of the job, here or by snapshots."""
        known, ago_s = self._memory, self._loop.now() - self._memory_s if self._memory else 0.0
        self._loop.do_aside(
            lambda: known or find_memory(m["snapshots"], m["job_id"]),
            lambda found: self._say({"type": "known", "memory": found, "ago_s": ago_s}),
        )

    def lose(self, reason: str) -> None:
        """Note the loss if another head may come; where no program was started, nobody restarts the job."""
        if self._memory and self.dial:
            self._memory["why"] = self._memory["why"] or f"its agent: {reason}"
            self.is_lost = True
