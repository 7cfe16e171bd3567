"""Who ends whom, when and with what: the decisions of a job, without I/O.

Fed with events and a clock value in seconds; answers with actions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple, Union

from pslaunch.runtime.shared.env import PSERVER, TRAINER

from .. import codes
from ..ending import NEVER, Ending, Signal

LOOK_FURTHER_S = 1.0  # a failure that explains the first one may be heard of a moment later
_NO_MODULE = r"No module named '([\w.]+)'"


def lost_advice(job_id: str) -> str:
    """Return the advice for a node that was lost: who ends what ran there, and the command if nobody does."""
    by_hand = f"grep -lsz '^PSLAUNCH_JOB_ID={job_id}$' /proc/[0-9]*/environ | cut -d/ -f3 | xargs -r kill -9"
    return f"look at that machine; its keeper ends what ran there, or, if that was killed too: {by_hand}"


class Finish(NamedTuple):
    """Nothing is left to wait for: have every node clean up, and end the job."""


Action = Union[Signal, Finish]


class Failure(NamedTuple):
    """What failed first, for the exit code and the last block that a person reads."""

    what: str  # "trainer/1", "node 2", ...
    node: int
    code: int
    text: str  # in words: "ended with 3", "was killed by SIGSEGV", ...
    signal: str = ""
    log: str = ""
    tail: tuple[str, ...] = ()
    advice: str = ""

    @property
    def why(self) -> str:
        """A sentence: what a process did, or what was said of something else."""
        of_process = "/" in self.what or self.text.startswith("was lost")
        return f"{self.what} {self.text}" if of_process else f"{self.what}: {self.text}"


class Exit(NamedTuple):
    """How a process ended, as its agent saw it."""

    code: int  # 128+n for a signal
    signal: str = ""
    asked: bool = False  # our own signal was on its way before
    oom: bool = False
    tail: tuple[str, ...] = ()


class Member:
    """What is known of one process."""

    def __init__(self, role: str, node: int, log: str) -> None:
        self.role, self.node, self.log = role, node, log
        self.state = ""  # as its runtime reports it: connected, finished
        self.why = ""  # what its runtime says of its failure
        self.blames = ""  # the process that this is about
        self.exit: Exit | None = None


class Result(NamedTuple):
    """How the job ended."""

    code: int
    reason: str
    failure: Failure | None = None


class Supervisor:
    """Decides for a job. Feed it events with the time, carry out what `actions` returns."""

    def __init__(self, members: dict[str, Member], grace_s: float, server: str) -> None:
        """`server`: bundled, script or none."""
        self.members, self.grace_s, self.server = members, grace_s, server
        self.why = ""  # why the ending began
        self.failure: Failure | None = None
        self.result: Result | None = None
        self._failed_s = NEVER
        self._stopped_by = 0
        self._endings: list[Ending] = []
        self._ending_all = False
        self.alive: dict[str, str] = {}  # role of what was started and has not ended
        self._trainers_left = {key for key, m in members.items() if m.role == TRAINER}
        self._connected: set[str] = set()  # of these, and with the pservers
        self._absent: list[str] = []  # trainers that ended with 0 and never were
        self._retire_s = NEVER  # until then the pservers of a trained job may end by themselves

    # --- events ---

    def starting(self, key: str) -> None:
        """The order to start this process is on its way."""
        self.alive[key] = self.members[key].role

    def progress(self, key: str, state: str) -> None:
        """What the process's runtime says of itself."""
        self.members[key].state = state
        if key in self._trainers_left and state == "connected":
            self._connected.add(key)
        else:
            self._connected.discard(key)
        if key in self._absent:
            self._absent.remove(key)

    def stop(self, number: int, reason: str, now_s: float, code: int = 0) -> None:
        """A request to end: the first in order, the second at once. `number` is the signal it stands for.

        code: the job's, where that of the signal would tell another story: why the job can't go on, which
        does not matter to one that ends already.
        """
        if code and (self._ending_all or self.failure or self._retire_s < NEVER):
            return
        if self._stopped_by:
            for ending in self._endings:
                ending.kill_now(now_s)
        self._stopped_by = self._stopped_by or code or codes.SIGNAL_BASE + number
        self._end_all(reason, now_s)

    def exited(self, key: str, how: Exit, now_s: float) -> None:
        """A process has ended."""
        member = self.members[key]
        member.exit = how
        self._gone(key)
        if member.role == TRAINER and not (member.state or how.code or how.asked):
            self._absent.append(key)
        blame = self._blame(member, how)
        if blame:
            self._fail(self._failure(key, blame), now_s)
        elif not self._trainers_left and not self.failure and self._retire_s == NEVER:
            self._retire(now_s)

    def node_lost(self, node: int, name: str, reason: str, now_s: float, advice: str = "") -> None:
        """A node's agent or its line is gone; its processes are being ended by its keeper."""
        for key, member in self.members.items():
            if member.node == node:
                self._gone(key)
        self._fail(
            Failure(
                f"node {node} ({name})",
                node,
                codes.NODE_LOST,
                f"was lost: {reason}",
                advice=advice,
            ),
            now_s,
        )

    def not_started(self, key: str) -> None:
        """The order to start it was not carried out."""
        self._gone(key)

    def explained(self, key: str, why: str, blames: str = "") -> None:
        """What the process's runtime says of its failure before it ends, and which process it blames."""
        self.members[key].why, self.members[key].blames = why, blames

    @property
    def unreached(self) -> bool:
        """Whether there are bundled pservers, and no trainer ever connected to any."""
        pservers = [m for m in self.members.values() if m.role == PSERVER]
        return self.server == "bundled" and bool(pservers) and not any(m.state for m in pservers)

    def has_had_its_say(self, key: str) -> bool:
        """Return whether a process is a script's pserver that was told to end, since the job went well."""
        ended_well = self._retire_s < NEVER and not self.failure and not self._stopped_by
        return ended_well and self.server == "script" and self.members[key].role == PSERVER

    def trouble(self, failure: Failure, now_s: float) -> None:
        """Something other than an exit failed: a port, a log that can't be written, a start."""
        self._fail(failure, now_s)

    # --- decisions ---

    def actions(self, now_s: float) -> list[Action]:
        """What to do by now: signals, then at last Finish, after which `result` is set."""
        if self.result:
            return []
        self._look_for_absent(now_s)
        looked = now_s >= self._failed_s + LOOK_FURTHER_S
        if self.failure and (self._rank(self.failure) < 2 or looked):
            self._look_for_leaving()
            self._end_all(self.failure.why, now_s)
        elif now_s >= self._retire_s:
            self._end_all("the trainers have ended", now_s)
        found: list[Action] = []
        for ending in self._endings:
            found += ending.actions(now_s)
        if self._over():
            self.result = self._verdict()
            found.append(Finish())
        return found

    def due_s(self, now_s: float) -> float:
        """When `actions` should be asked next even if nothing happens."""
        times = [self._retire_s, self._failed_s + LOOK_FURTHER_S]
        times += [ending.due_s(now_s) for ending in self._endings]
        return min((t for t in times if t > now_s), default=NEVER)

    def _over(self) -> bool:
        if self._ending_all and all(ending.over for ending in self._endings):
            return True  # also where something could not be killed: its node says so
        done = self.failure is not None or self._stopped_by or self._retire_s < NEVER
        return bool(done) and not self.alive

    def _verdict(self) -> Result:
        if self.failure:
            member = self.members.get(self.failure.what)
            if member and member.exit:  # who was blamed has ended since
                self.failure = self.failure._replace(tail=member.exit.tail)
            return Result(self.failure.code, self.failure.why, self.failure)
        if self._stopped_by:
            return Result(self._stopped_by, self.why)
        return Result(0, "all trainers ended with 0")

    def _end_all(self, why: str, now_s: float) -> None:
        if not self._ending_all:
            self._ending_all, self.why = True, why
            self._begin_ending(self.alive, now_s)

    def _retire(self, now_s: float) -> None:
        """All trainers gave 0: pservers that no trainer reached will never end by themselves."""
        self._retire_s = now_s + self.grace_s
        reached = self.server == "bundled"
        lonely = {k: role for k, role in self.alive.items() if not (reached and self.members[k].state)}
        self._begin_ending(lonely, now_s)

    def _begin_ending(self, roles: Mapping[str, str], now_s: float) -> None:
        """End these, but for whom another ending has in hand: who saves at TERM must not hear it twice."""
        in_hand = {key for ending in self._endings for key in ending.keys}
        rest = {key: role for key, role in roles.items() if key not in in_hand}
        if rest:
            self._endings.append(Ending(rest, self.grace_s, now_s))

    def _gone(self, key: str) -> None:
        self.alive.pop(key, None)
        self._trainers_left.discard(key)
        self._connected.discard(key)
        for ending in self._endings:
            ending.gone(key)

    def _fail(self, failure: Failure, now_s: float) -> None:
        if self._stopped_by and not self.failure:
            return  # what goes wrong while a user's request is carried out is not the reason of the end
        if self.failure is None:
            self.failure, self._failed_s = failure, now_s
        elif self._rank(failure) < self._rank(self.failure) and now_s <= self._failed_s + LOOK_FURTHER_S:
            self.failure = failure

    def _rank(self, failure: Failure) -> int:
        """Return 0 for a lost node, which explains a failed process (1); both explain a vanished peer (2, 3).

        Trainers that miss a pserver (3) are explained by it, and by the trainer that it blames (2).
        """
        if failure.code == codes.NODE_LOST:
            return 0
        if failure.code != codes.PEER:
            return 1
        blamed = any(member.blames == failure.what for member in self.members.values())
        return 3 if failure.what.startswith(f"{TRAINER}/") and not blamed else 2

    def _blame(self, member: Member, how: Exit) -> str:
        """Why this exit is a failure, in words that follow the process's name; "" where it is none."""
        if how.asked or (member.role == PSERVER and self._retire_s < NEVER):
            return "could not save" if member.role == PSERVER and how.code == codes.IO else ""
        if how.oom:
            return "was killed for memory (SIGKILL by the kernel)"
        if how.signal:
            return f"was killed by {how.signal}"
        if how.code and member.why:
            return f"ended with {how.code}: {member.why}"
        if how.code == codes.PEER:
            return f"ended with {how.code}: a process it works with vanished"
        if how.code:
            return f"ended with {how.code}"
        if member.role == PSERVER:
            # A bundled one says that all trainers have finished; what they do after that needs it no more.
            return "" if member.state == "finished" else "ended with 0 before the trainers did"
        if member.state == "connected" and self._trainers_left:
            return "ended with 0 without having finished, while others wait for it"
        return ""

    def _look_for_absent(self, now_s: float) -> None:
        """A trainer that ended without having come to the pservers: those that did would wait for ever."""
        if self.server == "bundled" and self._connected and self._absent:
            text = "ended with 0 without having connected to the pservers, where others wait for it"
            self._fail(self._failure(self._absent[0], text), now_s)

    def _look_for_leaving(self) -> None:
        """A pserver that has said why it ends and still saves explains trainers that miss it."""
        leaving = [k for k, role in self.alive.items() if role == PSERVER and self.members[k].why]
        if self.failure and self._rank(self.failure) == 3 and not self._ending_all and leaving:
            self.failure = self._failure(leaving[0], f"is ending: {self.members[leaving[0]].why}")

    def _failure(self, key: str, text: str) -> Failure:
        member = self.members[key]
        how = member.exit or Exit(0)
        advice = _advice(how)
        if member.role == PSERVER and self.server == "script" and how.code == 0:
            advice = (
                "a program that does not serve by itself in role PSERVER is started with --server bundled"
            )
        code = how.code or codes.PEER
        if code == codes.PEER and member.blames in self.members:
            other, text = self.members[member.blames], f"keeps others waiting: {member.why}"
            advice = "its log may tell what it does; where it is only slow, give a longer --stall_timeout"
            return Failure(member.blames, other.node, code, text, log=other.log, advice=advice)
        return Failure(key, member.node, code, text, how.signal, member.log, how.tail, advice)


def _advice(how: Exit) -> str:
    """What to do about a program's own end, where its last lines tell."""
    if how.oom:
        return "give it less to hold, or the machine more memory"
    if how.signal == "SIGKILL":
        return "where nobody sent it, the kernel's log may tell (dmesg): a machine short of memory kills so"
    missing = re.search(_NO_MODULE, how.tail[-1]) if how.tail else None
    if missing and missing[1].startswith("paddle.v2"):
        return "a v2 program imports pslaunch.runtime as paddle"
    if missing:
        return (
            f"its Python has no {missing[1]}: install it there, give another --python, "
            "or on hosts --install, which brings pslaunch, numpy and the package's requirements.txt"
        )
    return ""
