"""The keeper: parent of the agent; ends everything on the node if the agent is killed or silent.

Small, because only the agent guards it: it never touches the line to the head.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import stat
import sys
import time
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING

from .. import codes, procs
from ..loop import Loop
from ..marked import Marked
from ..run_dir import make_run_dir_name
from .partner import Partner

if TYPE_CHECKING:
    from .loan import Loan


def end_all(grace_s: float, trainers: Container[int], spawned: Marked) -> list[int]:
    """Send TERM to all descendants and spawned ones, KILL after the grace; return the pids that survived.

    trainers: which have TERM from the kernel, unless they have another user's rights (procs.end_with_parent).
    """
    end_s = time.monotonic() + grace_s
    told: set[tuple[int, int]] = set()
    while time.monotonic() < end_s:
        for proc in procs.list_descendants(os.getpid()):
            if (proc.pid, proc.start) not in told:
                told.add((proc.pid, proc.start))
                with contextlib.suppress(OSError):  # it has ended
                    if proc.pid not in trainers or os.stat(f"/proc/{proc.pid}").st_uid != os.geteuid():
                        procs.send(proc, signal.SIGTERM)
        procs.reap()
        if not spawned.send(signal.SIGTERM) and not procs.has_children():
            return []
        time.sleep(0.02)  # no event when a process ends that is not our child
    left, end_s = procs.kill_descendants()[2], time.monotonic() + procs.KILL_LIMIT_S
    while (others := spawned.send(signal.SIGKILL)) and time.monotonic() < end_s:
        time.sleep(0.02)
    return left + others


class Keeper:
    """Guard of one agent; `wait` returns its exit code or 128+n, and the cause if it was ended."""

    def __init__(self, agent: int, line: socket.socket, lost_after_s: float) -> None:
        self._agent, self._loop, self._ended = agent, Loop(), list[tuple[int, str]]()
        self.log = ""  # its path; unknown before the log folder is locked
        self.trainers: set[int] = set()  # started by the agent
        self._loop.handle_signals(dict.fromkeys(procs.END_SIGNALS, self._pass_on))
        self._loop.handle_signals({signal.SIGCHLD: self._reap})
        Partner(self._loop, line, lost_after_s, self._lose, self._take)

    def wait(self) -> tuple[int, str]:
        self._loop.run(lambda: bool(self._ended))
        return self._ended[0]

    def _pass_on(self) -> None:
        if not self._ended:  # not reaped yet: the pid was not reused
            os.kill(self._agent, signal.SIGTERM)

    def _reap(self) -> None:
        status = procs.reap().get(self._agent)
        if status is not None:
            code, name = procs.describe_exit(status)
            self._ended.append((code, f"the agent was ended by {name}" if name else ""))

    def _lose(self, silent_s: float) -> None:
        if silent_s and not self._ended:
            os.kill(self._agent, signal.SIGKILL)
            os.waitpid(self._agent, 0)
            self._ended.append((128 + signal.SIGKILL, f"the agent was silent for {silent_s:.0f} s"))
        self._reap()  # it may have ended before we heard signals

    def _take(self, data: bytes, fds: list[int]) -> None:
        """Take pids of trainers, or our log's path with a lock, which is held until our end."""
        if fds:
            self.log = os.fsdecode(data.lstrip(b"."))  # after earlier heartbeats
        else:
            self.trainers.update(map(int, data.replace(b".", b" ").split()))


def main(argv: Sequence[str], lent: Mapping[str, Loan] = {}, asker: str = "") -> int:
    """Run `keeper LOST_AFTER GRACE [MODE [WORDS]]`: fork the agent (modes: run_agent.py) and guard it.

    `lent`: for the agent. Lenders outlive a killed agent, since their sockets stay open here until our end.
    asker: as of run_agent.py.
    """
    lost_after_s, grace_s = float(argv[0]), float(argv[1])
    mode, words = argv[2] if len(argv) > 2 else "serve", argv[3:]
    with contextlib.suppress(PermissionError):  # already the leader of a session
        os.setsid()
    procs.become_subreaper()
    run_dir = make_run_dir_name()
    # A socket pair: closed by the end of either side; bytes on it are heartbeats.
    ours, theirs = socket.socketpair()
    agent = os.fork()
    if agent == 0:
        ours.close()
        from . import run_agent

        code = 70
        try:
            code = run_agent.main(mode, run_dir, theirs, lost_after_s, grace_s, lent, words, asker)
        except codes.Refusal as e:
            code = e.code
            procs.complain(f"agent: {e}")
        except BaseException as e:  # border of a process: reports, and never runs the keeper's code
            sys.excepthook(type(e), e, e.__traceback__)
            remedy = codes.find_remedy(e) if isinstance(e, OSError) else ""
            # Last: only the end of the output is kept.
            procs.complain(f"agent: {type(e).__name__}: {e}{remedy}")
        finally:
            with contextlib.suppress(OSError):
                sys.stderr.flush()
            os._exit(code)
    procs.rename(f"keeper of {agent}")  # `pkill -f pslaunch` spares us: we end the programs
    theirs.close()
    os.close(0)
    one, spawned = Keeper(agent, ours, lost_after_s), Marked(loan.spawner for loan in lent.values())
    return _guard(one, run_dir, grace_s, spawned, ends_with_job=mode == "begin")


def _guard(keeper: Keeper, run_dir: str, grace_s: float, spawned: Marked, *, ends_with_job: bool) -> int:
    """Wait for the agent, end what it leaves and return its code. ends_with_job: that code is the job's."""
    code, why = keeper.wait()
    clean = code == 0 or (ends_with_job and not why)
    if not clean:
        procs.complain(f"keeper: {why or f'the agent ended with {code}'}")
    with contextlib.suppress(OSError):
        os.close(1)  # the head learns of the loss at once; we continue to clean up
        if stat.S_ISFIFO(os.fstat(2).st_mode):  # sshd's: a line over SSH closes when both are closed
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    procs.report_left("keeper", end_all(0.0 if clean else grace_s, keeper.trainers, spawned), keeper.log)
    if os.path.lexists(run_dir):  # an agent that ends by itself has removed it
        shutil.rmtree(run_dir, ignore_errors=True)
    return code
