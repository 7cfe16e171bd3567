"""Processes of this machine: who descends from us, what they are told, and that none is left.

Never by name or pattern: only what descends from this process, each known by pid and start time.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import sys
import time
from typing import NamedTuple

BEAT_S = 1.0  # between keeper and agent, both ways
KILL_LIMIT_S = 1.5

_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Have every orphan below us handed to us, so that no double fork escapes. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(code)}")


class Proc(NamedTuple):
    """A process as /proc shows it; `start` tells it from a later one with the same pid."""

    pid: int
    parent: int
    state: str
    threads: int
    start: int

    @property
    def gone(self) -> bool:
        """Whether nothing of it runs any more; a process may go on after its first thread has ended."""
        return self.state in "ZX" and self.threads <= 1


def read_proc(pid: int) -> Proc | None:
    """The process with this pid, None where there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            stat = f.read()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()  # the name in brackets may hold spaces and brackets
    return Proc(pid, int(fields[1]), fields[0].decode(), int(fields[17]), int(fields[19]))


def descendants(root: int) -> list[Proc]:
    """All living processes below `root`, parents before children."""
    children: dict[int, list[Proc]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            proc = read_proc(int(name))
            if proc:
                children.setdefault(proc.parent, []).append(proc)
    found: list[Proc] = []
    queue = [root]
    while queue:
        for proc in children.pop(queue.pop(0), []):
            queue.append(proc.pid)
            if not proc.gone:
                found.append(proc)
    return found


def send(proc: Proc, number: int) -> bool:
    """Signal exactly this process, not another with its pid; False where it is gone or not ours."""
    try:
        pidfd = os.pidfd_open(proc.pid)
    except AttributeError:
        pidfd = -1
    except OSError as e:
        if e.errno != errno.ENOSYS:  # kernels before 5.3: the start time alone must do
            return False
        pidfd = -1
    try:
        now = read_proc(proc.pid)
        if now is None or now.start != proc.start:
            return False
        if pidfd >= 0:
            signal.pidfd_send_signal(pidfd, number)
        else:
            os.kill(proc.pid, number)
        return True
    except OSError:
        return False
    finally:
        if pidfd >= 0:
            os.close(pidfd)


def send_group(leader: int, number: int) -> None:
    """Signal the process group of our own child `leader`, which has not been waited for yet."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def kill_descendants(limit_s: float) -> tuple[int, list[Proc]]:
    """SIGKILL to all below this process, again and again until none is left.

    Returns how many were killed and which could not be within the limit. Does not reap what is
    waited for elsewhere: zombies count as gone.
    """
    me = os.getpid()
    killed: set[tuple[int, int]] = set()
    end_s = time.monotonic() + limit_s
    while True:
        left = descendants(me)
        for proc in left:
            if send(proc, signal.SIGKILL):
                killed.add((proc.pid, proc.start))
        if not left or time.monotonic() >= end_s:
            return len(killed), left
        # The kernel takes a moment to end them and to hand us their orphans; nothing tells us when.
        time.sleep(0.005)


def describe_exit(status: int) -> tuple[int, str]:
    """Exit code (128+n for a signal) and the signal's name ("" for none) of a wait status."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        return 128 + number, name
    return os.WEXITSTATUS(status), ""


def oom_kills() -> int:
    """How many processes the kernel has killed for memory, in our cgroup where that tells, else at all."""
    for path in _oom_files():
        try:
            with open(path, encoding="ascii", errors="replace") as f:
                for line in f:
                    words = line.split()
                    if len(words) == 2 and words[0] == "oom_kill":
                        return int(words[1])
        except (OSError, ValueError):
            continue
    return 0


def _oom_files() -> list[str]:
    files = []
    with contextlib.suppress(OSError), open("/proc/self/cgroup", encoding="utf-8", errors="replace") as f:
        for line in f:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if not controllers:
                files.append(f"/sys/fs/cgroup{path}/memory.events")
            elif "memory" in controllers.split(","):
                files.append(f"/sys/fs/cgroup/memory{path}/memory.oom_control")
    files.append("/proc/vmstat")
    return files


def complain(text: str) -> None:
    """Last words, for whoever started us; where nobody listens any more nothing is lost."""
    with contextlib.suppress(OSError):
        print(f"pslaunch {text}", file=sys.stderr, flush=True)


def reap() -> dict[int, int]:
    """Wait status of each child that has ended, by pid."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = status
    return ended
