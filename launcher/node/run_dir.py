"""The run folder of a node, and what is left of jobs whose keeper and agent were killed at once.

Both hold a lock in it, which the kernel releases with the last of them: if it is free, nothing guards.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import time

from . import procs
from .listing import read_lines
from .marked import Marked

SPAWNER_FILE = "spawner"  # has the name of the daemon of MPI, if trainers are its ranks
_PREFIX, _LOCK = "pslaunch-", "guarded"
# Of a search for what nothing guards: its length if nothing is found, the time until KILL, the longest.
LOOK_S, GRACE_S, KILL_S = 0.3, 5.0, 6.5


def make_run_dir_name() -> str:
    """Return a new name for the folder of sockets and the secret; a socket's path may have only 107 bytes.

    The agent makes the folder; from then on both guards remove it.
    """
    base = os.environ.get("TMPDIR", "/tmp")
    if len(base) > 60 or not os.access(base, os.W_OK | os.X_OK):
        base = "/tmp"
    return os.path.join(base, f"{_PREFIX}{os.urandom(6).hex()}")


def lock_run_dir(path: str) -> int:
    """Return a descriptor that holds the lock of a new run folder, which nobody ever sees free."""
    lock = os.path.join(path, _LOCK)
    fd = os.open(f"{lock}-", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.rename(f"{lock}-", lock)
    return fd


def end_leftovers() -> str:
    """End what nothing guards here any more, remove its run folders, and return words about it."""
    base, told = os.path.dirname(make_run_dir_name()), []
    for name in os.listdir(base) if os.access(base, os.R_OK) else ():
        path = os.path.join(base, name)
        with contextlib.suppress(OSError):  # not of ours, or guarded
            if name.startswith(_PREFIX) and os.lstat(path).st_uid == os.geteuid():
                with open(os.path.join(path, _LOCK), "r+b") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    marked = Marked(read_lines(path, SPAWNER_FILE), (f"/{name}/".encode(),))
                    left = _end_all(marked)
                    told += [f"processes of {x}, whose keepers were killed, were ended" for x in marked.jobs]
                    told += [f"process {pid} can't be ended: {procs.WHY_LEFT}" for pid in left]
                    if not left:
                        shutil.rmtree(path, ignore_errors=True)
    return "; ".join(told)


def _end_all(marked: Marked) -> list[int]:
    """End all that is marked; return the pids of what survived."""
    left, begun_s, past_s, limit_s = list[int](), time.monotonic(), 0.0, LOOK_S
    while past_s < limit_s:
        if left := marked.send(signal.SIGTERM if past_s < GRACE_S else signal.SIGKILL):
            limit_s = min(past_s + LOOK_S, KILL_S)  # a chain of forks hides from most looks
        time.sleep(0.01)  # the kernel ends them without notice
        past_s = time.monotonic() - begun_s
    return left
