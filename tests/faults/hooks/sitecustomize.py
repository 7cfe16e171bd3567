"""In every Python process of a job under test: holds it at a chosen moment, and obeys the test there.

Python imports a module of this name at its start, from where PYTHONPATH leads. `PSLAUNCH_TEST_HOLD` has
the moments, one a line: who, event, the how-manieth of them. Events are those of Python's audit hooks, with
the name of the file for `open`; `start` is the interpreter's own. At its moment a process connects to the
socket `PSLAUNCH_TEST_SOCKET`, says who it is, and obeys: go on, `exit N`, `oom`, `eat`.
`PSLAUNCH_TEST_LINE=1` hands the test both ends of each keeper's line, unless its agent dials;
`PSLAUNCH_TEST_DIAL=1` the head's address that a dialling keeper gets, so that the test can replace it.
`PSLAUNCH_TEST_HOST` is set on hosts that are reached by SSH.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

_FIRST = os.getpid()


def who() -> str:
    """launcher, keeper, agent, or the key of a program."""
    words = sys.orig_argv[1:]
    booted = "PSLAUNCH_TEST_HOST" in os.environ and words[-1:] == ["pslaunch"]  # by SSH
    if "pslaunch.node" in words or booted:
        return "keeper" if os.getpid() == _FIRST else "agent"
    if "PSLAUNCH_ROLE" in os.environ:
        return f"{os.environ['PSLAUNCH_ROLE']}/{os.environ['PSLAUNCH_RANK']}"
    return "launcher" if "pslaunch" in words else ""


def hold(event: str, fds: list[int] | None = None) -> None:
    """Tell the test that we are here, wait for its word, obey."""
    import socket

    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(os.environ["PSLAUNCH_TEST_SOCKET"])
        text = f"{who()} {event}".encode()
        socket.send_fds(sock, [text], fds) if fds else sock.send(text)
        told = sock.recv(100).decode().split()
    if told[:1] == ["exit"]:
        os._exit(int(told[1]))
    if told in (["oom"], ["eat"]):
        _eat(limited=told == ["eat"])


def _eat(*, limited: bool) -> None:
    """Take memory until the kernel ends us, or refuses because of a limit that we give ourselves."""
    if limited:
        import resource
        from pathlib import Path

        has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (has + (64 << 20), resource.RLIM_INFINITY))
    eaten = []
    while True:
        eaten.append(b"x" * (8 << 20))


class _Moments:
    """Counts audit events, and holds at the moments that are wanted."""

    def __init__(self, wanted: str) -> None:
        self._left = {(w, e): int(n) for w, e, n in map(str.split, wanted.splitlines())}
        self._busy = threading.local()

    def seen(self, event: str) -> None:
        key = (who(), event)
        if key in self._left:
            self._left[key] -= 1
            if self._left[key] == 0:
                hold(event)

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        """Called by Python; what we do ourselves at a moment is none."""
        if event not in ("open", "os.fork", "subprocess.Popen", "socket.bind") or hasattr(self._busy, "on"):
            return
        self._busy.on = True
        try:
            self.seen(str(args[0]).rpartition("/")[2] if event == "open" else event)
        finally:
            del self._busy.on


def moment(name: str) -> None:
    """A program says where it is."""
    if _moments:
        _moments.seen(name)


def _hand_out_line() -> None:
    """Our line goes through the test from here on."""
    from_head, to_head = os.dup(0), os.dup(1)
    in_r, in_w = os.pipe()
    out_r, out_w = os.pipe()
    os.dup2(in_r, 0)
    os.dup2(out_w, 1)
    hold("line", [from_head, in_w, out_r, to_head])
    for fd in (from_head, to_head, in_r, in_w, out_r, out_w):
        os.close(fd)


def _hand_out_dial() -> None:
    """Pass the input of our agent through the test."""
    given = os.dup(0)
    in_r, in_w = os.pipe()
    os.dup2(in_r, 0)
    hold("dial", [given, in_w])
    for fd in (given, in_r, in_w):
        os.close(fd)


_moments: _Moments | None = None
if "PSLAUNCH_TEST_SOCKET" in os.environ:
    _moments = _Moments(os.environ.get("PSLAUNCH_TEST_HOLD", ""))
    dials = sys.orig_argv[-1] == "dial"
    if who() == "keeper" and os.environ.get(f"PSLAUNCH_TEST_{'DIAL' if dials else 'LINE'}"):
        _hand_out_dial() if dials else _hand_out_line()
    if who().startswith("pserver/"):
        signal.signal(signal.SIGUSR1, lambda _number, _frame: hold("asked"))
    _moments.seen("start")
    sys.addaudithook(_moments.audit)
