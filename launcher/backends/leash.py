"""A leash: a command that runs no longer than its launcher, however that ends.

`python -m pslaunch.backends.leash GRACE AFTER COMMAND…` leads a session of its own, apart from the
terminal's signals. Standard input is a socket to the launcher. At its word the command ends at once; its
closing ends the command after the grace, in which it may end by itself. If the leash follows the job, by its
head's address, the end of the job does that, and the launcher may go. All processes of the session end with
the command, found by its number, which no other process gets meanwhile. AFTER, a list in JSON, is a command
that runs after it. The launcher gets the command's wait status.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import posixpath
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Final

from ..errors import ServiceError
from ..node import procs
from ..node.loop import Loop
from .lines import KeptOutput

if TYPE_CHECKING:
    from ..node.line.wire import Line

TERM_S = 0.5  # from TERM to KILL
SETTLE_S = 0.5  # after the command's end, for clients that end with their daemons on other machines
KILLED_S = 0.25  # for the kernel to end what was killed
LEASH_S = TERM_S + SETTLE_S + KILLED_S + 0.25  # for a leash after `end_now`
AFTER_S = 5.0  # for the command that runs after it
LEASH_ANSWER_S = 5.0  # for a leash, beyond the limit that it was given
_MESSAGE_BYTES = 65536
# Kinds of messages: to the leash; from it; and for an end without a message.
_END: Final = "end"
_FOLLOW: Final = "follow"
_ANSWER: Final = "answer"
_ENDED: Final = "ended"
_GONE: Final = "gone"


def _tell(sock: socket.socket, kind: str, value: object = None) -> None:
    """Send a message, unless the other side is gone."""
    with contextlib.suppress(OSError):
        sock.send(json.dumps([kind, value]).encode())


def _receive(sock: socket.socket) -> tuple[str, Any]:
    """Return the next message, a kind and a value; `_GONE` stands for the end of the other side."""
    message = b""
    with contextlib.suppress(OSError):
        message = sock.recv(_MESSAGE_BYTES)
    kind, value = json.loads(message) if message else (_GONE, None)
    return kind, value


# --- The launcher's side. ---


class Leashed:
    """A command below a leash; `fd` is readable once it has ended."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        grace_s: float,
        *,
        after: Sequence[str] = (),
        stdout: int | None = None,
    ) -> None:
        """Start it. after: a command that runs after it, however it ends; stdout: in place of our file.

        Raises ServiceError.
        """
        self._after, self._name = after, posixpath.basename(argv[0])
        # On standard output, unless that is elsewhere, and on errors.
        self.printed, self.said = KeptOutput(), KeptOutput()
        self._sock, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)  # keeps messages apart
        words = [*(sys.executable, "-P", "-m", __name__), str(grace_s), json.dumps(after), *argv]
        try:
            with theirs:
                self._leash = subprocess.Popen(
                    words,
                    stdin=theirs.fileno(),
                    stdout=self.printed.file if stdout is None else stdout,
                    stderr=self.said.file,
                    env=env,
                    start_new_session=True,
                )
        except OSError as e:
            self._close_files()
            raise ServiceError(f"{self._name} can't be started: {e.strerror}") from e
        self._told: dict[str, Any] = {}  # by kind

    @property
    def fd(self) -> int:
        return self._sock.fileno()

    def wait(self, limit_s: float) -> bool:
        """Return True once the command has ended, False after the limit."""
        return self._hear({_ENDED, _GONE}, limit_s)

    def _hear(self, kinds: Set[str], limit_s: float) -> bool:
        """Wait until the leash has sent one of these kinds; return False after the limit."""
        self._leash.send_signal(signal.SIGCONT)  # a stopped leash would not answer
        end_s = time.monotonic() + limit_s
        while kinds.isdisjoint(self._told):
            if not select.select([self._sock], [], [], max(0.0, end_s - time.monotonic()))[0]:
                return False
            self._told.update([_receive(self._sock)])
        return True

    def end_now(self) -> None:
        """Ask for its end, without waiting."""
        _tell(self._sock, _END)

    def follow(self, head: Mapping[str, Any], limit_s: float) -> str:
        """Let the leash end it after the job; return why it can't, or "".

        head: addrs, port, secret, lost_after; limit_s: for the head's answer to the leash.
        """
        _tell(self._sock, _FOLLOW, {**head, "limit": limit_s})
        if not self._hear({_ANSWER, _ENDED, _GONE}, limit_s + LEASH_ANSWER_S):
            return "its leash does not answer"
        if _ANSWER in self._told:
            return str(self._told[_ANSWER])
        return f"{self._name} was lost: {self.describe()[0]}"

    def leave(self) -> None:
        """Leave it to its leash, which follows the job."""
        self._leash.returncode = 0  # no longer waited for here
        self._close_files()

    def describe(self) -> tuple[str, bool]:
        """Return the end in words, and True for one by a signal."""
        if not self.wait(0.0):
            return "it has not ended", False
        if _ENDED not in self._told:
            return "its leash was killed", True
        code, name = procs.describe_exit(self._told[_ENDED])
        return (f"it was killed by {name}", True) if name else (f"it ended with {code}", False)

    @property
    def code(self) -> int:
        """Exit code of the ended command; 128+n for a signal."""
        self.wait(0.0)
        return procs.describe_exit(self._told.get(_ENDED, signal.SIGKILL))[0]

    def read_said(self) -> str:
        return self.printed.read_end() + self.said.read_end()

    def close(self) -> None:
        """End it if it still runs. A killed leash has the kernel end its command."""
        if not self.wait(0.0):
            self.end_now()
        try:
            self._leash.wait(LEASH_S)
        except subprocess.TimeoutExpired:
            self._leash.kill()
            self._leash.wait()
        if self._leash.returncode:
            _run_after(self._after)
        self._close_files()

    def _close_files(self) -> None:
        for one in (self._sock, self.printed.file, self.said.file):
            one.close()


# --- The leash. ---


def main(argv: Sequence[str]) -> int:
    """Run the command, and send its wait status."""
    grace_s, after, command = float(argv[0]), json.loads(argv[1]), argv[2:]
    launcher = socket.socket(fileno=0)
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=procs.end_with_parent)
    except OSError as e:
        print(f"{command[0]}: {e.strerror}", file=sys.stderr)
        status = (127 if isinstance(e, FileNotFoundError) else 126) << 8
    else:
        ended = os.pidfd_open(child.pid)
        if not _Leash(launcher, ended, grace_s).wait():
            # Not by `child`, which would wait for it without telling the status.
            os.kill(child.pid, signal.SIGTERM)
            os.kill(child.pid, signal.SIGCONT)
            if not select.select([ended], [], [], TERM_S)[0]:
                os.kill(child.pid, signal.SIGKILL)
        status = os.waitpid(child.pid, 0)[1]
        _end_session()
    _run_after(after)
    _tell(launcher, _ENDED, status)
    return 0


def _run_after(after: Sequence[str]) -> None:
    """Run what has to run after the command, if anything."""
    if after:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            silent = subprocess.DEVNULL
            subprocess.run(after, stdin=silent, stdout=silent, stderr=silent, timeout=AFTER_S, check=False)


class _Leash:
    """Finds the time to end the command, from the launcher's messages and the end of the job."""

    def __init__(self, launcher: socket.socket, ended: int, grace_s: float) -> None:
        self._loop, self._launcher, self._grace_s = Loop(), launcher, grace_s
        self._left = self._following = False
        self._over: list[bool] = []
        self._loop.watch(ended, read=lambda: self._over.append(True))
        self._loop.watch(launcher.fileno(), read=self._hear)

    def wait(self) -> bool:
        """Return True once the command has ended by itself, False when it is to be ended."""
        self._loop.run(lambda: bool(self._over))
        return self._over[0]

    def _hear(self) -> None:
        kind, value = _receive(self._launcher)
        if kind == _END:
            self._over.append(False)
        elif kind == _FOLLOW:
            self._dial(value)
        else:
            self._left = True
            self._loop.watch(self._launcher.fileno())
            if not self._following:
                self._begin_grace()

    def _dial(self, head: Mapping[str, Any]) -> None:
        from ..node.line import gate

        secret = bytes.fromhex(head["secret"])
        call = functools.partial(gate.dial, head["addrs"], head["port"], secret, gate.OBSERVER, head["limit"])
        self._following = True
        self._loop.do_aside(call, functools.partial(self._follow, head["lost_after"]), self._stay)

    def _follow(self, lost_after_s: float, line: Line) -> None:
        """Watch the job by a line to its head."""
        from ..node.line.wire import MessageLine

        MessageLine[Any](
            self._loop,
            line,
            lost_after_s=lost_after_s,
            on_message=lambda _m: None,
            on_lost=self._begin_grace,
        )
        _tell(self._launcher, _ANSWER, "")

    def _stay(self, error: Exception) -> None:
        """Go on without the head, which was not reached."""
        self._following = False
        _tell(self._launcher, _ANSWER, str(error) or repr(error))
        if self._left:
            self._begin_grace()

    def _begin_grace(self, _why: str = "") -> None:
        self._loop.call_after(self._grace_s, lambda: self._over.append(False))


def _end_session() -> None:
    """Kill the other processes of this session that do not end by themselves, repeatedly until none is left.

    Daemons of Open MPI 5 end with their mpirun, but some would stay if the ssh clients were killed before.
    """
    kill_s, me = time.monotonic() + SETTLE_S, os.getpid()
    while (now_s := time.monotonic()) < kill_s + KILLED_S:
        found = [p for p in procs.list_procs() if p.session == me != p.pid and not p.is_gone]
        if not found:
            return
        for proc in found if now_s >= kill_s else ():
            procs.send(proc, signal.SIGKILL)
        time.sleep(0.01)  # no event when a process ends that is not our child


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
