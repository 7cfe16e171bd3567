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
_LOOK_EVERY_S = 0.05  # at all of /proc, which takes milliseconds
WHY_LEFT = "it waits in the kernel, is another user's, or forks faster than it can be killed"

_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Have every orphan below us handed to us, so that no double fork escapes. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(code)}")


def rename(title: str) -> None:
    """Have lists of processes show `title` in place of our command line, where the kernel tells its address.

    Written over our arguments, which takes no right; a child that was forked before keeps its own.
    """
    with open("/proc/self/stat", "rb") as f:
        start, end = map(int, f.read().rpartition(b")")[2].split()[45:47])
    if start < end:
        ctypes.memmove(start, title.encode()[: end - start - 1].ljust(end - start, b"\0"), end - start)


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


def kill_descendants(limit_s: float) -> tuple[int, dict[int, int], list[int]]:
    """SIGKILL to all below this subreaper, again and again until it has no child at all.

    Returns how many were killed, the wait status of each child that ended, and the pids of what could not
    be ended within the limit. A process that forks and ends at once is in no list of /proc when that has been
    read; but it is our child by then, and the kernel counts our children without a gap.
    """
    me, count = os.getpid(), 0
    told: set[int] = set()
    ended: dict[int, int] = {}
    end_s = look_s = time.monotonic()
    end_s += limit_s
    while True:
        reaped = reap()
        ended.update(reaped)
        told -= reaped.keys()
        now_s = time.monotonic()
        if not has_children():
            return count, ended, []
        if now_s >= end_s:
            return count, ended, [proc.pid for proc in descendants(me)] or _children()
        # Our own children first: they are found and told within microseconds, before they fork again.
        # Their pids are their own, since only we wait for them.
        fresh = set(_children()) - told
        for pid in fresh:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                count += 1
        told |= fresh
        if now_s >= look_s:  # all the others: also what is below a process that can't be ended
            look_s = now_s + _LOOK_EVERY_S
            for proc in descendants(me):
                if proc.pid not in told and send(proc, signal.SIGKILL):
                    told.add(proc.pid)
                    count += 1
        elif not fresh:
            time.sleep(0.001)  # the kernel takes a moment to end them; nothing tells us when


def _children() -> list[int]:
    """Return the pids of our children, as the kernel lists them for each thread; none where it does not."""
    found: list[int] = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/children", encoding="ascii") as f:
            found += map(int, f.read().split())
    return found


def has_children() -> bool:
    """Return False only where this process has no child at all, not even one that has ended."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


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
