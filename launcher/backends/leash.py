"""A leash: a command that runs no longer than its launcher, however that ends.

`python -m pslaunch.backends.leash GRACE REMOVED COMMAND…` leads a session of its own, apart from the
terminal's signals. Standard input is a socket to the launcher. A byte from it ends the command at once; its
closing ends it after the grace, in which the command may end by itself. After a line with the address of
the job's head, the end of the job does that, and the launcher may go. All processes of the session end with
the command, found by its number, which no stranger can take on; the removed ones, a list in JSON, are folders
and files that end with it. The launcher gets the command's wait status.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..node import procs

TERM_S = 0.5  # from TERM to KILL
SETTLE_S = 0.5  # after the command's end, for clients that end with their daemons on other machines
KILLED_S = 0.25  # for the kernel to end what was killed
LEASH_S = TERM_S + SETTLE_S + KILLED_S + 0.25  # for a leash after `end_now`
ANSWER_S = 5.0  # for a leash, beyond the limit that it was given
_SHOWN_BYTES = 4000
_MAX_HEAD_BYTES = 64 * 1024


# --- The launcher's side. ---


class Leashed:
    """A command below a leash; `fd` is readable once it has ended."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        grace_s: float,
        *,
        removed: Sequence[str] = (),
        stdout: int | None = None,
    ) -> None:
        """Start it. removed: paths that end with it; stdout: in place of our file. Raises OSError."""
        self._said = os.fdopen(os.memfd_create("said"), "w+b")
        self._sock, theirs = socket.socketpair()
        words = [sys.executable, "-P", "-m", __name__, str(grace_s), json.dumps(removed), *argv]
        with contextlib.ExitStack() as on_error, theirs:
            on_error.enter_context(self._said)
            on_error.enter_context(self._sock)
            self._leash = subprocess.Popen(
                words,
                stdin=theirs.fileno(),
                stdout=self._said if stdout is None else stdout,
                stderr=self._said,
                env=env,
                start_new_session=True,
            )
            on_error.pop_all()
        self._status: int | None = None

    @property
    def fd(self) -> int:
        return self._sock.fileno()

    def wait(self, limit_s: float) -> bool:
        """Return True once the command has ended, False after the limit."""
        self._leash.send_signal(signal.SIGCONT)  # a stopped leash would not report
        return bool(select.select([self._sock], [], [], max(0.0, limit_s))[0])

    def end_now(self) -> None:
        """Ask for its end, without waiting."""
        with contextlib.suppress(OSError):
            self._sock.send(b"!")

    def follow(self, head: Mapping[str, Any], limit_s: float) -> str:
        """Let the leash end it after the job; return why it can't, or "".

        head: addrs, port, secret, lost_after; limit_s: for the head's answer to the leash.
        """
        with contextlib.suppress(OSError):
            self._sock.send(json.dumps({**head, "limit": limit_s}).encode() + b"\n")
            if not self.wait(limit_s + ANSWER_S):
                return "its leash does not answer"
            said = self._sock.recv(_SHOWN_BYTES, socket.MSG_PEEK).decode()
            if said.endswith("\n"):
                self._sock.recv(_SHOWN_BYTES)
                return said[:-1]
        return f"mpirun was lost: {self.describe()[0]}"

    def leave(self) -> None:
        """Leave it to its leash, which follows the job."""
        self._leash.returncode = 0  # no longer waited for here
        self._sock.close()
        self._said.close()

    def describe(self) -> tuple[str, bool]:
        """Return the end in words, and True for one by a signal."""
        if self._status is None:
            try:
                said = self._sock.recv(16, socket.MSG_DONTWAIT)
                self._status = int(said) if said else None
            except BlockingIOError:
                return "it has not ended", False
            except OSError:
                pass
        if self._status is None:
            return "its leash was killed", True
        code, name = procs.describe_exit(self._status)
        return (f"it was killed by {name}", True) if name else (f"it ended with {code}", False)

    @property
    def code(self) -> int:
        """Exit code of the ended command; 128+n for a signal."""
        self.describe()
        return procs.describe_exit(9 if self._status is None else self._status)[0]

    def read_said(self) -> str:
        """Return the end of its output."""
        size = os.fstat(self._said.fileno()).st_size
        return os.pread(self._said.fileno(), _SHOWN_BYTES, max(0, size - _SHOWN_BYTES)).decode(
            "utf-8", "replace"
        )

    def close(self) -> None:
        """End it if it still runs. A killed leash has the kernel end its command."""
        if not self.wait(0.0):
            self.end_now()
        try:
            self._leash.wait(LEASH_S)
        except subprocess.TimeoutExpired:
            self._leash.kill()
            self._leash.wait()
        self._sock.close()
        self._said.close()


# --- The leash. ---


def main(argv: Sequence[str]) -> int:
    """Run the command, and send its wait status."""
    grace_s, removed, command = float(argv[0]), json.loads(argv[1]), argv[2:]
    launcher = socket.socket(fileno=0)
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=procs.end_with_parent)
    except OSError as e:
        print(f"{command[0]}: {e.strerror}", file=sys.stderr)
        status = (127 if isinstance(e, FileNotFoundError) else 126) << 8
    else:
        ended = os.pidfd_open(child.pid)
        if not _wait(launcher, ended, grace_s):
            # Not by `child`, which would wait for it without telling the status.
            _send(ended, signal.SIGTERM)
            _send(ended, signal.SIGCONT)
            if not select.select([ended], [], [], TERM_S)[0]:
                _send(ended, signal.SIGKILL)
        status = os.waitpid(child.pid, 0)[1]
        _end_session()
    for path in removed:
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(path)  # noqa: PTH108 - a file
    with contextlib.suppress(OSError):
        launcher.send(b"%d" % status)
    return 0


def _wait(launcher: socket.socket, ended: int, grace_s: float) -> bool:
    """Return True once the command has ended by itself, False when it is to be ended."""
    while 0 in select.select([0, ended], [], [])[0]:
        said = b""
        with contextlib.suppress(OSError):
            said = launcher.recv(_MAX_HEAD_BYTES)
        if said and not said.endswith(b"\n"):
            return False
        if not said or _follow(launcher, json.loads(said), ended):
            return bool(select.select([ended], [], [], grace_s)[0])
    return True


def _follow(launcher: socket.socket, head: Mapping[str, Any], ended: int) -> bool:
    """Wait until the head has ended its job, or the command has ended; return False if no head is reached.

    The launcher gets a line with the reason, an empty one once the head is reached.
    """
    from pslaunch.runtime.shared import prove

    from ..node.line import gate
    from ..node.line.wire import MessageLine
    from ..node.loop import Loop

    over: list[str] = []
    secret = bytes.fromhex(head["secret"])
    try:
        fd, seals = gate.dial(head["addrs"], head["port"], secret, gate.OBSERVER, head["limit"])
    except (OSError, prove.ProofError) as e:
        _tell(launcher, str(e))
        return False
    _tell(launcher, "")
    with contextlib.closing(Loop()) as loop:
        line = MessageLine[Any](
            loop,
            fd,
            fd,
            lost_after_s=head["lost_after"],
            on_message=lambda _m: None,
            on_lost=over.append,
            seals=seals,
        )
        loop.watch(ended, read=lambda: over.append("ended"))
        loop.run(lambda: bool(over))
        line.close()
    return True


def _tell(launcher: socket.socket, text: str) -> None:
    with contextlib.suppress(OSError):
        launcher.send(f"{' '.join(text.split())}\n".encode())


def _send(pidfd: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, number)


def _end_session() -> None:
    """Kill the other processes of this session that do not end by themselves, repeatedly until none is left.

    Daemons of Open MPI 5 end with their mpirun, but some would stay if the ssh clients were killed before.
    """
    kill_s = time.monotonic() + SETTLE_S
    while (found := _list_session()) and (now_s := time.monotonic()) < kill_s + KILLED_S:
        for proc in found if now_s >= kill_s else ():
            procs.send(proc, signal.SIGKILL)
        time.sleep(0.01)  # no event when a process ends that is not our child


def _list_session() -> list[procs.Proc]:
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):  # noqa: PTH208 - names alone
        with contextlib.suppress(OSError):
            proc = procs.read_proc(pid)
            if proc and pid != os.getpid() and os.getsid(pid) == os.getpid() and not proc.is_gone:
                found.append(proc)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
