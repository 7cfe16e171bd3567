"""Processes of this machine: list our descendants, signal them, leave none behind.

Never by name or pattern: only descendants of this process, identified by pid and start time.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .listing import read_text

BEAT_S = 1.0  # between keeper and agent, both ways
KILL_LIMIT_S = 1.5
END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LOOK_EVERY_S = 0.05  # between readings of /proc, which take milliseconds
_TICKS_PER_S, _PAGE_BYTES = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGESIZE")
WHY_LEFT = "it waits in the kernel, is another user's, or forks faster than it can be killed"

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_prctl = ctypes.CDLL(None, use_errno=True).prctl  # looked up here: a forked child must not load anything


def become_subreaper() -> None:
    """Adopt every orphan below us, so that no double fork escapes. Raises OSError."""
    _call_prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent() -> None:
    """Let the kernel send us TERM when the thread of our parent that forked us ends. Raises OSError."""
    _call_prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _call_prctl(option: int, value: int) -> None:
    if _prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")


def rename(title: str) -> None:
    """Show `title` in lists of processes instead of our command line, where the kernel gives its address.

    Overwrites our arguments, which needs no right; children forked before keep theirs.
    """
    with open("/proc/self/stat", "rb") as f:
        start, end = map(int, f.read().rpartition(b")")[2].split()[45:47])
    if start < end:
        ctypes.memmove(start, title.encode()[: end - start - 1].ljust(end - start, b"\0"), end - start)


class Proc(NamedTuple):
    """A process as /proc shows it; `start` distinguishes it from a later one with the same pid."""

    pid: int
    parent: int
    state: str
    threads: int
    start: int
    session: int
    cpu_ticks: int  # with those of its children that have ended
    memory_pages: int

    @property
    def is_gone(self) -> bool:
        """True where none of its threads runs; others may outlive the first."""
        return self.state in "ZX" and self.threads <= 1

    def lives(self) -> bool:
        """Return True while it runs, and no other process has its pid."""
        now = read_proc(self.pid)
        return now is not None and now.start == self.start and not now.is_gone


def read_proc(pid: int) -> Proc | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            stat = f.read()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()  # the name may contain spaces and brackets
    parent, session, threads, start, pages = (int(fields[i]) for i in (1, 3, 17, 19, 21))
    return Proc(pid, parent, fields[0].decode(), threads, start, session, sum(map(int, fields[11:15])), pages)


def list_procs() -> Iterator[Proc]:
    """Yield all processes of this machine, ended ones too, each as it is then."""
    return filter(None, map(read_proc, map(int, filter(str.isdigit, os.listdir("/proc")))))


def measure_sessions(leaders: Iterable[int]) -> dict[int, tuple[float, int]]:
    """Return seconds on processors so far, and resident bytes, of all processes of each session together."""
    used = dict.fromkeys(leaders, (0.0, 0))
    for proc in list_procs():
        if proc.session in used:
            cpu_s, size = used[proc.session]
            cpu_s, size = cpu_s + proc.cpu_ticks / _TICKS_PER_S, size + proc.memory_pages * _PAGE_BYTES
            used[proc.session] = cpu_s, size
    return used


def list_descendants(root: int) -> list[Proc]:
    """Return all living processes below `root`, parents before children."""
    children: dict[int, list[Proc]] = {}
    for proc in list_procs():
        children.setdefault(proc.parent, []).append(proc)
    found: list[Proc] = []
    queue = [root]
    while queue:
        for proc in children.pop(queue.pop(0), []):
            queue.append(proc.pid)
            if not proc.is_gone:
                found.append(proc)
    return found


def send(proc: Proc, number: int) -> bool:
    """Signal this process, never another with its pid; return False where it is gone or not ours."""
    pidfd = -1  # of kernels before 5.3, or an old libc: rely on the start time alone
    try:
        with contextlib.suppress(AttributeError):
            pidfd = os.pidfd_open(proc.pid)
    except OSError as e:
        if e.errno != errno.ENOSYS:
            return False
    try:
        if not proc.lives():
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


def kill_descendants() -> tuple[int, dict[int, int], list[int]]:
    """Kill everything below this subreaper, repeatedly until it has no child.

    Returns the number of kills, without helpers of our own session, the wait status of each ended child, and
    the pids that survived the limit.
    A process that forks and ends at once may escape a reading of /proc, but its child becomes ours then,
    and the kernel lists our children without a gap.
    """
    me, session, count = os.getpid(), os.getsid(0), 0
    told: set[int] = set()
    ended: dict[int, int] = {}
    end_s = look_s = time.monotonic()
    end_s += KILL_LIMIT_S
    while True:
        reaped = reap()
        ended.update(reaped)
        told -= reaped.keys()
        now_s = time.monotonic()
        if not has_children():
            return count, ended, []
        if now_s >= end_s:
            return count, ended, [proc.pid for proc in list_descendants(me)] or _list_children()
        # Our own children first: found and killed within microseconds, before they fork again. Their pids
        # can't be reused, since only we wait for them.
        fresh = set(_list_children()) - told
        for pid in fresh:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                count += os.getsid(pid) != session
        told |= fresh
        if now_s >= look_s:  # all others, also below a process that can't be ended
            look_s = now_s + _LOOK_EVERY_S
            for proc in list_descendants(me):
                if proc.pid not in told and send(proc, signal.SIGKILL):
                    told.add(proc.pid)
                    count += proc.session != session
        elif not fresh:
            time.sleep(0.001)  # the kernel ends them without notice


def _list_children() -> list[int]:
    """Return the pids of our children, [] where the kernel does not list them."""
    found: list[int] = []
    for task in os.listdir("/proc/self/task"):
        found += map(int, read_text(f"/proc/self/task/{task}/children").split())
    return found


def has_children() -> bool:
    """Return True while this process has a child, even an ended one."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def describe_exit(status: int) -> tuple[int, str]:
    """Return the exit code (128+n for a signal) and the signal's name ("" for none) of a wait status."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        return 128 + number, name
    return os.WEXITSTATUS(status), ""


def get_peer(sock: socket.socket) -> tuple[int, int]:
    """Return process and user at the other end of a Unix socket."""
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def connect(path: str) -> socket.socket:
    """Connect to a Unix socket, as of a running job's head. Raises OSError, also for another user's."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(name_socket(path))
        if not is_of_user(sock):
            raise PermissionError(errno.EPERM, "it is a socket of another user", path)
    except OSError:
        sock.close()
        raise
    return sock


def name_socket(path: str) -> str:
    """Return the name of a socket for the system: a leading `@` stands for an abstract one."""
    return f"\0{path[1:]}" if path.startswith("@") else path


def is_of_user(sock: socket.socket) -> bool:
    """Return True if the other end of a Unix socket is this user's or root's: anybody may use any name."""
    return get_peer(sock)[1] in (0, os.geteuid())


def count_oom_kills() -> int:
    """Return the number of processes killed for memory, in our cgroup if known, else on this machine."""
    for path in _list_oom_files():
        if "oom_kill" in (words := read_text(path).split()):
            return int(words[words.index("oom_kill") + 1])
    return 0


def _list_oom_files() -> Iterator[str]:
    for line in filter(None, read_text("/proc/self/cgroup").split("\n")):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield f"/sys/fs/cgroup{path}/memory.events"
        elif "memory" in controllers.split(","):
            yield f"/sys/fs/cgroup/memory{path}/memory.oom_control"
    yield "/proc/vmstat"


def complain(text: str) -> None:
    """Write to standard error, if anybody still reads it."""
    with contextlib.suppress(OSError):
        print(f"pslaunch {text}", file=sys.stderr, flush=True)


def report_left(who: str, pids: Iterable[int], log: str) -> None:
    """Name processes that can't be ended on standard error, and in `log`: nobody may read the former."""
    text = "".join(f"{who}: process {pid} can't be ended: {WHY_LEFT}\n" for pid in pids)
    if text:
        complain(text.rstrip())
        with contextlib.suppress(OSError), open(log, "a", encoding="utf-8") as f:
            f.write(text)


def read_text_end(fd: int, size: int) -> str:
    """Return the end of a file, such as the errors of a process."""
    return os.pread(fd, size, max(0, os.fstat(fd).st_size - size)).decode("utf-8", "replace")


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all of `data`, whatever a single write takes. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def reap() -> dict[int, int]:
    """Return the wait status of each ended child, by pid."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = status
    return ended
