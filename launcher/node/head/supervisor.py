"""Decisions of a job: ending, signals, failure and result. Pure.

Fed with events and a clock value in seconds; returns signals.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pslaunch.runtime.shared.env import PSERVER, TRAINER

from .. import codes
from ..ending import CUT, NEVER, LastCut, Shutdown, Signal
from ..job import Plan
from ..link import JobFailure
from .restarts import Restarts

LOOK_FURTHER_S = 1.0  # for a failure that explains the first one and is reported later
_NO_MODULE = r"No module named '([\w.]+)'"
_OLD_PYTHON = "Unknown option: -P"  # with which our pservers are started
_RUNTIME = ("pslaunch", "numpy")  # modules that programs with bundled pservers need


def make_lost_advice(plan: Plan) -> str:
    """Return the advice for a lost node: its keeper cleans up, or else this command."""
    if plan.lost_advice:
        return plan.lost_advice
    mark = f"PSLAUNCH_JOB_ID={plan.job_id}"
    by_hand = f"grep -lsz '^{mark}$' /proc/[0-9]*/environ | cut -d/ -f3 | xargs -r kill -9"
    return f"look at that machine; its keeper ends what ran there, or, if that was killed too: {by_hand}"


def make_loss(plan: Plan, what: str, node: int, why: str, who: str, pause: str) -> JobFailure:
    """Return the failure of a lost `what`; after a pause of this process, `who`, that `what` gave it up."""
    if pause:
        advice = "start the job again, and let this process run, or give a longer --lost_after"
        return JobFailure(who, node, codes.NODE_LOST, f"{pause}, so {what} gave it up", advice=advice)
    return JobFailure(what, node, codes.NODE_LOST, f"was lost: {why}", advice=make_lost_advice(plan))


class Exit(NamedTuple):
    """End of a process, as its agent reports it."""

    code: int  # 128+n for a signal
    signal: str = ""
    asked: bool = False  # after our own signal
    oom: bool = False
    tail: tuple[str, ...] = ()


class Member:
    def __init__(self, role: str, node: int, log: str) -> None:
        self.role, self.node, self.log = role, node, log
        self.state = ""  # reported by its runtime: connected, finished
        self.why = ""  # cause of its failure, as its runtime reports it
        self.blames = ""  # the process blamed there
        self.exit: Exit | None = None


class Result(NamedTuple):
    code: int
    reason: str
    failure: JobFailure | None = None


class Supervisor:
    """Decision maker of a job: feed it events with the time, send the signals of `decide`."""

    def __init__(
        self, members: dict[str, Member], grace_s: float, server: str, restarts: Restarts | None = None
    ) -> None:
        """`server`: bundled, script or none; `restarts`: of the job, whose epoch this is."""
        self.members, self.grace_s, self.server = members, grace_s, server
        self._restarts = restarts or Restarts(0, NEVER)
        self.restarting = False  # the epoch ends, and `result` is its result alone
        self.why_final = ""  # why there is no restart, where there could be one
        self._final = False  # a failure that no restart mends
        self.why = ""  # why the ending began
        self.failure: JobFailure | None = None
        self.result: Result | None = None
        self.failed_s = NEVER
        self._stopped_by = 0
        self._asked = False  # by a signal; then the next one is the second
        self._endings: list[Shutdown] = []
        self._ending_all = False
        self._last_cut: LastCut | None = None  # taken before the ending begins
        self._due: list[Signal] = []  # which asks for it
        self.alive: dict[str, str] = {}  # roles of processes started and not ended
        self._trainers_left = {key for key, m in members.items() if m.role == TRAINER}
        self._secondary: list[JobFailure] = []  # which a program's failure may explain
        self._absent: list[str] = []  # trainers that ended with 0 and never connected
        self._retire_s = NEVER  # limit for pservers to end by themselves after training

    # --- events ---

    def note_start(self, key: str) -> None:
        self.alive[key] = self.members[key].role

    def note_progress(self, key: str, state: str) -> None:
        """Note the state that a process's runtime reports; a guess before it is void."""
        self.members[key].state, self.members[key].why = state, ""
        if key in self._absent:
            self._absent.remove(key)

    def stop(self, number: int, reason: str, now_s: float, code: int = 0) -> None:
        """End the job as if by signal `number`: in order the first time, at once the second.

        TERM, which is no person at a terminal, lets the training take a snapshot before.
        code: the job's code instead of the signal's, for a reason that is ignored once the job ends anyway.
        """
        ends = self._ending_all or self._stopped_by or self.failure or self._retire_s < NEVER
        restarts = self.restarting or (self._last_cut and self.failure and not self._final)
        if code and ends and not restarts:
            return
        if restarts:  # the last word, in the place of the failure
            self._call_off_restart()
        second = self._stopped_by and self._asked
        if second or number != signal.SIGTERM or restarts or self.failure:
            self._last_cut = None
        elif not self._stopped_by:
            self._ask_for_cut(reason, now_s)
        self._asked = self._asked or not code
        self._stopped_by = self._stopped_by or code or codes.SIGNAL_BASE + number
        if not self._last_cut:
            self._end_all(reason, now_s)
        for ending in self._endings if second else ():
            ending.kill_now(now_s)

    def _ask_for_cut(self, reason: str, now_s: float) -> None:
        step = self._restarts.sealed
        if step is not None and self._connected and not (self.failure or self._endings):
            self._last_cut = LastCut(reason, step, len(self.alive), now_s, now_s + self.grace_s / 2)
            self._due = [Signal(tuple(self._connected), CUT)]

    def _end_after_cut(self, cut: LastCut, step: int, now_s: float) -> None:
        """Begin the ending that has waited, in what is left of the grace."""
        self._last_cut, self.grace_s = None, self.grace_s - (now_s - cut.asked_s)
        taken = (
            f", after a snapshot of step {step}" if step > cut.before else "; no snapshot was taken in time"
        )
        if self.failure:  # of a node that leaves
            self.failure = self.failure._replace(text=self.failure.text + taken)
        else:
            self._end_all(cut.reason + taken, now_s)

    def note_exit(self, key: str, how: Exit, now_s: float) -> None:
        if how.asked and not self._endings:
            how = how._replace(asked=False)  # nobody has: its node is mistaken, or hostile
        member = self.members[key]
        member.exit = how
        self.remove(key)
        if member.role == TRAINER and not (member.state or how.code or how.asked):
            self._absent.append(key)
        blame = self._describe_failure(member, how)
        if blame:
            self.note_failure(self._make_failure(key, blame), now_s, returns=True)
        elif not self._trainers_left and not self.failure and self._retire_s == NEVER:
            # All trainers gave 0: pservers that reported no trainer will never end by themselves.
            self._retire_s = now_s + self.grace_s
            lonely = {k: role for k, role in self.alive.items() if not self.members[k].state}
            self._begin_ending(lonely, now_s)

    def note_lost_node(self, failure: JobFailure, now_s: float, *, returns: bool = False) -> None:
        """Note that a node's agent or line is gone; its keeper ends its processes."""
        for key, member in self.members.items():
            if member.node == failure.node:
                self.remove(key)
        self.note_failure(failure, now_s, returns=returns)

    def note_leaving(self, failure: JobFailure, now_s: float, *, returns: bool) -> None:
        """Note that a node will be lost soon: its programs go on until a snapshot is taken."""
        self._ask_for_cut(failure.why, now_s)
        self.note_failure(failure, now_s, returns=returns)

    def note_explanation(self, key: str, why: str, blames: str = "") -> None:
        """Note the cause of a failure that a process's runtime reports, and the process it blames."""
        self.members[key].why, self.members[key].blames = why, blames

    @property
    def has_unreached_pservers(self) -> bool:
        """True where no trainer ever connected to the bundled pservers."""
        pservers = [m for m in self.members.values() if m.role == PSERVER]
        return self.server == "bundled" and bool(pservers) and not any(m.state for m in pservers)

    def is_retired(self, key: str) -> bool:
        """Return True for a script's pserver that gets signals only because the job succeeded."""
        ended_well = self._retire_s < NEVER and not self.failure and not self._stopped_by
        return ended_well and self.server == "script" and self.members[key].role == PSERVER

    def note_loss(self, failure: JobFailure, now_s: float, *, secondary: bool, returns: bool = False) -> None:
        """Note the loss of a process that brought agents or a trainer; after training nobody needs it.

        secondary: any other failure within a second explains it.
        """
        if self._retire_s < NEVER:
            return
        if secondary:
            self._secondary.append(failure)
        self.note_failure(failure, now_s, returns=returns)

    @property
    def _connected(self) -> list[str]:
        """The trainers connected to the pservers."""
        return [key for key in sorted(self._trainers_left) if self.members[key].state == "connected"]

    # --- decisions ---

    def decide(self, now_s: float) -> list[Signal]:
        """Return the signals due by now; after the last ones `result` is set."""
        if self.result:
            return []
        step = self._restarts.sealed or 0
        if self._last_cut and self._last_cut.is_over(step, len(self.alive), now_s):
            self._end_after_cut(self._last_cut, step, now_s)
        self._look_for_absent(now_s)
        looked = now_s >= self.failed_s + LOOK_FURTHER_S
        waits = self._ending_all or self._last_cut
        if self.failure and not waits and (self._rank(self.failure) < 2 or looked):
            self._look_for_leaving()
            self._end_for(self.failure, now_s)
        elif now_s >= self._retire_s:
            self._end_all("the trainers have ended", now_s)
        found, self._due = self._due, []
        found += [due for ending in self._endings for due in ending.decide(now_s)]
        ended = self._ending_all and all(ending.over for ending in self._endings)
        done = self.failure is not None or self._stopped_by or self._retire_s < NEVER
        if ended or (done and not self.alive):  # the former also after a failed kill, which its node reports
            self.result = self._make_result()
        return found

    def find_due_s(self, now_s: float) -> float:
        """Return the time of the next `decide` if nothing happens before."""
        times = [self._retire_s, self.failed_s + LOOK_FURTHER_S]
        times += [self._last_cut.limit_s] if self._last_cut else []
        times += [ending.find_due_s(now_s) for ending in self._endings]
        return min((t for t in times if t > now_s), default=NEVER)

    def _make_result(self) -> Result:
        if self.failure:
            member = self.members.get(self.failure.what)
            if member and member.exit:  # the blamed process has ended since
                self.failure = self.failure._replace(tail=member.exit.tail)
            guesses = [f"{k}: {m.why}" for k, m in self.members.items() if m.role == PSERVER and m.why]
            if guesses and member and member.role == TRAINER and self.has_unreached_pservers:
                self.failure = self.failure._replace(advice=guesses[0])
            return Result(self.failure.code, self.failure.why, self.failure)
        if self._stopped_by:
            return Result(self._stopped_by, self.why)
        return Result(0, "all trainers ended with 0")

    def _end_for(self, failure: JobFailure, now_s: float) -> None:
        """End the job for a failure, or only the epoch if a restart follows."""
        can_restart = self._restarts.most and self._retire_s == NEVER and not self._final
        self.why_final = self._restarts.refuse(failure, now_s) if can_restart else ""
        if not can_restart or self.why_final:
            self._end_all(failure.why, now_s)
            return
        self.restarting = self._ending_all = True
        if self.server == "bundled":  # what they hold is of no use any more, and must not be saved
            pservers = {key: role for key, role in self.alive.items() if role == PSERVER}
            self._begin_ending(pservers, now_s, 0.0)
        self._begin_ending(self.alive, now_s)

    def _end_all(self, why: str, now_s: float) -> None:
        if not self._ending_all:
            self._ending_all, self.why = True, why
            self._begin_ending(self.alive, now_s)

    def _begin_ending(self, roles: Mapping[str, str], now_s: float, grace_s: float | None = None) -> None:
        """End these except those in another ending: a program that saves at TERM must not get it twice."""
        in_hand = {key for ending in self._endings for key in ending.alive}
        rest = {key: role for key, role in roles.items() if key not in in_hand}
        if rest:
            self._endings.append(Shutdown(rest, self.grace_s if grace_s is None else grace_s, now_s))

    def remove(self, key: str) -> None:
        """Note that a process runs no more, or could not be started."""
        self.alive.pop(key, None)
        self._trainers_left.discard(key)
        for ending in self._endings:
            ending.remove(key)

    def note_failure(self, failure: JobFailure, now_s: float, *, returns: bool = False) -> None:
        """Note a failure: the first counts, or its explanation within a second.

        returns: what failed can be started again. A failure that no restart mends takes the place of others.
        """
        if not returns:
            self._final = True
            if self.restarting:
                self._call_off_restart()
        if self._stopped_by and not self.failure:
            return  # failures after a user's request are not the reason of the end
        if self.failure is None:
            self.failure, self.failed_s = failure, now_s
        elif self._rank(failure) < self._rank(self.failure) and now_s <= self.failed_s + LOOK_FURTHER_S:
            self.failure = failure

    def _call_off_restart(self) -> None:
        self.restarting, self.failure, self._ending_all = False, None, False
        self.result = None  # of the epoch alone: a restart may wait after it

    def _rank(self, failure: JobFailure) -> int:
        """Return 0 for a lost node, which explains a failed process (1); both explain a vanished peer (2, 3).

        They explain a secondary loss too (2). A pserver, or a trainer blamed by it (2), explains trainers
        that miss the pserver (3). A pserver that lacks the runtime explains trainers that lack it too (2).
        """
        if failure.code == codes.NODE_LOST:
            return 2 if failure in self._secondary else 0
        if failure.code != codes.PEER:
            is_trainer = failure.what.startswith(f"{TRAINER}/")
            return 2 if is_trainer and self.has_unreached_pservers and _lacks_runtime(failure.tail) else 1
        blamed = any(member.blames == failure.what for member in self.members.values())
        return 3 if failure.what.startswith(f"{TRAINER}/") and not blamed else 2

    def _describe_failure(self, member: Member, how: Exit) -> str:
        """Return the failure of an exit in words that follow the process's name; "" for none."""
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
            # A bundled pserver reports that all trainers have finished; they need it no more.
            return "" if member.state == "finished" else "ended with 0 before the trainers did"
        if member.state == "connected" and self._trainers_left:
            return "ended with 0 before it had finished, while others wait for it"
        return ""

    def _look_for_absent(self, now_s: float) -> None:
        """Fail for a trainer that ended without connecting: the others would wait for it for ever."""
        if self.server == "bundled" and self._absent and self._connected:
            text = "ended with 0 before it had connected to the pservers, while others wait for it"
            self.note_failure(self._make_failure(self._absent[0], text), now_s, returns=True)

    def _look_for_leaving(self) -> None:
        """Blame a pserver that still saves after reporting its failure, not the trainers that miss it."""
        if not (self.failure and self._rank(self.failure) == 3) or self._ending_all:
            return
        for key in self.alive:
            m = self.members[key]
            # Before a trainer came, it may only guess.
            if m.role == PSERVER and m.why and (m.state or m.blames):
                self.failure = self._make_failure(key, f"is ending: {m.why}")
                return

    def _make_failure(self, key: str, text: str) -> JobFailure:
        member = self.members[key]
        end = member.exit or Exit(0)
        advice = _find_advice(end)
        if member.role == PSERVER and self.server == "script" and end.code == 0:
            advice = "start a program that does not serve in role PSERVER with --server bundled"
        code = end.code or codes.PEER
        can_not_run = _lacks_runtime(end.tail) or _OLD_PYTHON in end.tail
        if self.server == "bundled" and can_not_run and not member.state:
            code, text = codes.PREFLIGHT, "can't run there"
        if code == codes.PEER and member.blames in self.members:
            other, text = self.members[member.blames], f"keeps others waiting: {member.why}"
            advice = "see its log; if it is only slow, give a longer --stall_timeout"
            return JobFailure(member.blames, other.node, code, text, log=other.log, advice=advice)
        return JobFailure(key, member.node, code, text, end.signal, member.log, end.tail, advice)


def _find_advice(end: Exit) -> str:
    """Return a remedy for a program's own failure, "" if its last lines give no hint."""
    if end.oom:
        return "reduce its use of memory, or choose a machine with more"
    if end.signal == "SIGKILL":
        return "if nobody sent it, see the kernel's log (dmesg): it kills processes when memory is short"
    missing = _find_missing(end.tail)
    if missing.partition(".")[0] == "paddle":
        return (
            "import pslaunch.runtime as paddle, the bundled runtime (docs/from_paddle.md), or install "
            "PaddlePaddle there"
        )
    if missing:
        return (
            f"its Python has no {missing}: install it there, give another --python or --image, "
            f"{'in pods a --wheel for their processor, ' if missing == 'pslaunch' else ''}"
            "or on hosts --install, which brings pslaunch, numpy and the package's requirements.txt"
        )
    if _OLD_PYTHON in end.tail:
        return "pslaunch's own runtime needs Python 3.11 or later: give such a --python, or another --image"
    return ""


def _lacks_runtime(tail: Sequence[str]) -> bool:
    """Return True if a program ended at the import of the runtime or of a module that it needs."""
    return _find_missing(tail).partition(".")[0] in _RUNTIME


def _find_missing(tail: Sequence[str]) -> str:
    """Return the module at whose import a program ended, by its last lines, "" for none."""
    missing = re.search(_NO_MODULE, tail[-1]) if tail else None
    return missing[1] if missing else ""
