"""Ends what a run of the tests started once the run is over, however it ends: a SIGKILL leaves no job behind.

Run as a program it is the guard of a run: it waits until the process of the tests closes the guard's standard
input or dies, then kills what carries the run's mark and removes the run's folder. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

PATIENCE_S = 10.0


def marked(variable: str) -> list[int]:
    """All other processes started with this in its environment."""
    found = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in found if pid != os.getpid() and _has(pid, variable)]


def _has(pid: int, variable: str) -> bool:
    with contextlib.suppress(OSError):  # gone meanwhile, or of another user
        return variable.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def start(variable: str, folder: str) -> subprocess.Popen[bytes]:
    """The guard of this process: nothing reaches it but the end of its standard input, close that to end it.

    It is in a session of its own and does not carry the mark.
    """
    argv = [sys.executable, "-I", "-S", __file__, variable, folder]
    return subprocess.Popen(argv, env={}, stdin=subprocess.PIPE, start_new_session=True)


def end_all(variable: str) -> None:
    """Kill until nothing that is marked is left: what a killed process leaves may start others meanwhile."""
    end_s = time.monotonic() + PATIENCE_S
    while (pids := marked(variable)) and time.monotonic() < end_s:
        for pid in pids:
            with contextlib.suppress(OSError):
                fd = os.pidfd_open(pid)
                try:
                    if _has(pid, variable):  # still the same one
                        signal.pidfd_send_signal(fd, signal.SIGKILL)
                finally:
                    os.close(fd)
        time.sleep(0.01)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a shell that ends the tests may mean us, too
    sys.stdin.buffer.read()
    end_all(sys.argv[1])
    shutil.rmtree(sys.argv[2], ignore_errors=True)
