"""Who holds a busy port of this machine: shared by agents and pservers.

Standard library only, Python 3.9 or later: it travels to any node, as env.py does.
"""

from __future__ import annotations

import contextlib
import os

MAX_COMMAND_CHARS = 100


def holder(port: int, mark: str = "") -> str:
    """Who listens on a TCP port, as far as we may see: `pid 12 (redis-server *:7164)`, or "".

    Where nobody does: who holds this abstract Unix socket.
    """
    sockets = _listening(port) or _bound(mark)
    if not sockets:
        return ""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if _has_open(pid, sockets):
                return f"pid {pid} ({_command(pid)})"
    return ""


def _listening(port: int) -> set[str]:
    """The sockets that listen there, in the words of /proc/PID/fd."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table, encoding="ascii") as f:
            for line in f:
                words = line.split()
                if len(words) > 9 and words[3] == "0A" and int(words[1].rpartition(":")[2], 16) == port:
                    found.add(f"socket:[{words[9]}]")
    return found


def _bound(mark: str) -> set[str]:
    with contextlib.suppress(OSError), open("/proc/net/unix", encoding="latin-1") as f:
        return {f"socket:[{words[6]}]" for words in map(str.split, f) if words[7:] == [f"@{mark}"]}
    return set()


def _has_open(pid: str, targets: set[str]) -> bool:
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/fd/{fd}") in targets:
                return True
    return False


def _command(pid: str) -> str:
    with open(f"/proc/{pid}/cmdline", "rb") as f:
        words = f.read().replace(b"\0", b" ").decode("utf-8", "replace")
    words = words.strip()
    return words if len(words) <= MAX_COMMAND_CHARS else f"{words[: MAX_COMMAND_CHARS - 1]}…"
