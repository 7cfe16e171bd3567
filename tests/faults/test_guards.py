"""Every ending, first part: the launcher, its line, the keeper, the agent; hit at every moment in every way.

The programs are as bad as they can be: they ignore TERM and hide their children from everyone.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pslaunch.node import codes
from support.clock import own_s
from support.faults import Control, Fault, LineProxy, control
from support.jobs import Job, Place, parent_of, running
from support.trainings import STUBBORN

SLACK_S = 1.5  # for noticing it: these tests run four at a time, on few cores
GRACE_S = 1.0
LOST_AFTER_S = 3.0
EXTRA_S = 2.0  # above the grace: design, "On a node"
WHENS = ("before", "starting", "step", "ending")
# Moments of a job before any of its programs runs, and after the first one was started.
BEFORE = (
    "launcher subprocess.Popen 1",
    "keeper os.fork 1",
    "agent nodefile 1",
    "agent socket.bind 1",
    "agent subprocess.Popen 1",
)
STARTING = ("agent train.log 1", "agent subprocess.Popen 2", "agent subprocess.Popen 3")
EXISTS_FROM = {"launcher": 0, "keeper": 1, "agent": 2, "line": 2}  # number of the moment in BEFORE


class Case(Fault):
    """One cell of the matrix. node: while programs run; before that it is the first at its moment."""

    def moment(self, place: Place, rng: random.Random) -> str:
        """Return the moment at which the job is held while it is hit; "" if its programs run."""
        if self.when == "before":
            # A launcher that is stopped before there is anybody else is a launcher that takes its time.
            return rng.choice(BEFORE[max(EXISTS_FROM[self.who], self.how == "STOP") :])
        # With several nodes, no one starts three programs.
        return rng.choice(STARTING[: 3 if place.nodes == 1 else 2]) if self.when == "starting" else ""

    @property
    def silent(self) -> bool:
        return self.how in ("STOP", "silent")

    def missed(self, place: Place) -> bool:
        """Return True if an agent may never have come to the head: only the time shows it."""
        return self.when == "before" and self.who in ("keeper", "agent") and place.led and place.nodes > 1

    def bound_s(self, place: Place) -> float:
        """Within this time nothing may be left."""
        lost_after_s = LOST_AFTER_S if self.silent or self.missed(place) else 0.0
        return lost_after_s + GRACE_S + EXTRA_S


WHO = ("launcher", "keeper", "agent")
CASES = [
    *(Case(who, when, "KILL") for who in WHO for when in WHENS),
    *(Case(who, when, "STOP") for who in WHO for when in ("before", "step")),
    *(Case(who, "step", "TERM") for who in WHO),
    Case("launcher", "before", "TERM"),
    Case("launcher", "step", "INT"),
    Case("agent", "step", "SEGV"),
    *(Case(who, "ending", "STOP") for who in ("launcher", "keeper")),
    *(Case("line", when, "closed") for when in ("before", "step")),
    *(Case("line", when, "silent") for when in ("starting", "ending")),
]
LED = [
    *(Case(who, "step", how) for who in WHO for how in ("KILL", "STOP", "TERM")),
    Case("agent", "ending", "KILL"),
    Case("line", "step", "silent"),
]
PLACED = [*(("local", case) for case in CASES), *(("local_led", case) for case in LED)]
# Further cases of several nodes: one of them is hit, the head's or another.
CLUSTER_CASES = [
    Case("launcher", "before", "TERM"),
    Case("launcher", "starting", "KILL"),
    Case("launcher", "step", "STOP"),
    Case("line", "starting", "silent"),
    Case("keeper", "before", "KILL"),
    Case("agent", "starting", "KILL"),
    Case("keeper", "step", "KILL", 1),
    Case("agent", "step", "KILL"),
    Case("agent", "step", "TERM", 2),
    Case("keeper", "step", "STOP", 2),
    Case("agent", "ending", "KILL", 1),
]


def programs(place: Place) -> list[str]:
    """One pserver on node 0, two trainers on one node, or one on each."""
    return ["pserver/0", *(f"trainer/{i}" for i in range(max(2, place.nodes)))]


class Hit:
    """A job that has come to its moment: who is who, and when it was hit."""

    def __init__(self, place: Place, job: Job, ctl: Control, case: Case, moment: str) -> None:
        self.job, self.control, self.case = job, ctl, case
        self._line: LineProxy | None = None
        if case.who == "line":
            self._line = LineProxy.of(ctl)
        self.held = ctl.held() if moment else None
        if not moment:
            job.until_printed("ready", programs(place))
            job.until_printed("hidden", programs(place))
        if case.when == "ending":
            job.launcher.proc.send_signal(signal.SIGINT)
            job.until_printed("told", ["trainer/0", "trainer/1"])

    def pid(self) -> int:
        """Of the process to be hit."""
        if self.case.who == "launcher":
            return self.job.launcher.pid
        agent = keeper = 0
        if self.held is None:
            keeper, agent = self.job.guards(f"trainer/{self.case.node}")
        elif self.held.who == "agent":
            keeper, agent = parent_of(self.held.pid), self.held.pid
        elif self.held.who == "keeper":
            keeper = self.held.pid
        return keeper if self.case.who == "keeper" else agent

    def strike(self) -> float:
        """Do it, and let who was held go on; the time of it."""
        now_s = own_s()
        if self._line:
            self._line.swallow() if self.case.how == "silent" else self._line.close()
        else:
            os.kill(self.pid(), self.case.number)
        if self.held:
            self.held.tell()
        return now_s

    def close(self) -> None:
        if self._line:
            self._line.close()


@contextlib.contextmanager
def hit(place: Place, workspace: Path, case: Case, rng: random.Random) -> Iterator[Hit]:
    """A job at the moment of its fault."""
    moment = case.moment(place, rng)
    # If nobody falls silent, silence must not end the job.
    lost_after_s = LOST_AFTER_S if case.silent or case.missed(place) else 60
    options = [f"--grace={GRACE_S}", f"--lost_after={lost_after_s}", "--server=script", "--server_num=1"]
    options.append(f"--worker_num={max(2, place.nodes)}")
    with control(*([moment] if moment else [])) as ctl:
        environ = ctl.env(line=case.who == "line")
        with running(place, workspace, *options, env=environ, text=STUBBORN) as job:
            found = Hit(place, job, ctl, case, moment)
            try:
                yield found
            finally:
                found.close()


def expected_codes(case: Case) -> set[int]:
    """The launcher's exit code is one of these."""
    if case.who == "launcher" and case.how in ("KILL", "SEGV"):
        return {codes.SIGNAL_BASE + case.number}
    if case.when == "ending":
        return {codes.INT}  # as it was asked to end before
    if case.how in ("TERM", "INT") and case.who == "launcher":
        return {codes.SIGNAL_BASE + case.number}
    return {codes.NODE_LOST}


def expected_words(case: Case, place: Place) -> tuple[str, ...]:
    """One of these is in the reason: which of them depends on who notices it first."""
    if case.silent:
        # The keeper may be quicker; the head hears only of its own node what that has to say.
        dialed = ("the line was closed",) if place.led and place.nodes > 1 else ()
        return "silent", "no message for", *dialed
    if case.missed(place):
        return "never came", "was killed", "the line was closed"
    if case.how in ("TERM", "INT"):
        return "was asked to end", f"SIG{case.how}", "the line was closed"
    return "was killed", f"SIG{case.how}", "the line was closed"


def check(place: Place, workspace: Path, case: Case, rng: random.Random) -> None:
    """Hit it; nothing is left in time, and what is said of it is right."""
    with hit(place, workspace, case, rng) as this:
        began_s = this.strike()
        stopped = [this.job.launcher.pid] if (case.who, case.how) == ("launcher", "STOP") else []
        this.control.until_gone(case.bound_s(place) + SLACK_S - (own_s() - began_s), but=stopped)
        if stopped:
            os.kill(stopped[0], signal.SIGCONT)
        code = this.job.launcher.wait()
        assert code in expected_codes(case), this.job.launcher.output()
        if stopped and code == codes.NODE_LOST:
            end = this.job.end()
            assert re.match(r"the launcher did not run for \d+ s .*, so .* gave it up$", end["reason"]), end
            assert "let this process run" in end["failure"]["advice"], end
            assert "look at that machine" not in this.job.launcher.output()
        if case.who != "launcher" and code == codes.NODE_LOST:
            end = this.job.end()
            # Before programs run, and at a line, it is whichever node came first.
            node = "node " if place.nodes > 1 and (this.held or case.who == "line") else f"node {case.node}"
            assert node in end["failure"]["what"], end
            assert end["failure"]["advice"] and "was lost" in end["reason"], end
            assert any(words in end["reason"] for words in expected_words(case, place)), end


@pytest.mark.parametrize(("place", "case"), PLACED, indirect=["place"], ids=str)
def test_nothing_is_left_whoever_is_hit(
    place: Place, workspace: Path, case: Case, rng: random.Random
) -> None:
    check(place, workspace, case, rng)


FROZEN = """
import signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})
print("ready", flush=True)
signal.sigwait({signal.SIGCONT})
time.sleep(2.5)  # for whoever judges others to do so
"""


@pytest.mark.parametrize("place", ["local_led_cluster"], indirect=True)
def test_a_pause_of_the_whole_machine_ends_nothing(place: Place, workspace: Path) -> None:
    (workspace / "train.py").write_text(FROZEN)
    trainers = [f"trainer/{i}" for i in range(place.nodes)]
    limits = (f"--grace={GRACE_S}", f"--lost_after={LOST_AFTER_S}")
    with running(place, workspace, *limits, "--server_num=0", f"--worker_num={place.nodes}") as job:
        job.until_printed("ready", trainers)
        guards = [pid for trainer in trainers for pid in job.guards(trainer)]
        everybody = [job.launcher.pid, *guards, *map(job.pid, trainers)]
        for pid in everybody:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(LOST_AFTER_S + 1)
        for pid in everybody:
            os.kill(pid, signal.SIGCONT)
        assert job.launcher.wait() == 0, job.launcher.output()


@pytest.mark.parametrize("place", ["local_led_cluster"], indirect=True)
@pytest.mark.parametrize("case", CLUSTER_CASES, ids=str)
def test_nothing_is_left_on_any_node(place: Place, workspace: Path, case: Case, rng: random.Random) -> None:
    check(place, workspace, case, rng)
