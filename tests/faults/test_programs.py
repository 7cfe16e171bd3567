"""Every ending, second part: pservers and trainers of a real training, hit at every moment in every way."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pslaunch.node import codes
from pslaunch.runtime.client import dialer
from support.clock import own_s
from support.faults import Control, Fault, Held, MemoryLimit, control, memory_limit
from support.jobs import Job, Place, running
from support.trainings import TRAIN

GRACE_S = 1.0
STALL_TIMEOUT_S = 3.0  # on a slow machine more than a second lies between the first steps of two trainers
LOOK_FURTHER_S = 1.0  # of the supervisor, where a peer vanished
EXTRA_S = 2.0
EAT_S = 15.0  # until there is no memory left
OUT_OF_MEMORY = ("oom", "own limit")  # by the kernel, where it lets us; by a limit of the process itself
# A pserver opens its log when it is ready to listen; a trainer holds in its second step, others wait for it.
MOMENTS = {
    ("pserver/0", "starting"): "pserver/0 paddle_pserver2.INFO 1",
    ("trainer/1", "starting"): "trainer/1 begin 1",
}
STEP = "trainer/1 batch2 1"


class Case(Fault):
    """One cell of the matrix."""

    @property
    def moment(self) -> str:
        return MOMENTS.get((self.who, self.when), STEP)


CASES = [
    *(Case("pserver/0", "starting", how) for how in ("exit 0", "exit 3", "KILL")),
    *(Case("pserver/0", "step", how) for how in ("SEGV", "STOP", "TERM", "own limit")),
    *(Case("trainer/1", "starting", how) for how in ("exit 0", "STOP", "SEGV")),
    *(Case("trainer/1", "step", how) for how in ("KILL", "INT", "exit 0", "exit 3", "oom")),
    Case("pserver/0", "ending", "STOP"),
    Case("trainer/1", "ending", "KILL"),
]
# In a cluster pserver/0 is on the first node, trainer/1 on the second.
ELSEWHERE = [
    Case("pserver/0", "step", "KILL"),
    *(Case("trainer/1", "step", how) for how in ("STOP", "exit 0")),
]


class Hit:
    """A training that has come to its moment."""

    def __init__(self, job: Job, ctl: Control, case: Case, limit: MemoryLimit | None) -> None:
        self.job, self.control, self.case, self.limit = job, ctl, case, limit
        self._holder = ctl.held()
        if case.when != "starting":
            job.until_printed("training", ["trainer/0", "trainer/1"])
        if case.when == "ending":
            job.launcher.proc.send_signal(signal.SIGINT)
            job.until(lambda events: any(e["event"] == "ending" for e in events), "ending")

    def strike(self) -> float:
        """Do it; the time of it."""
        now_s = own_s()
        if self.case.number:
            os.kill(self.job.pid(self.case.who), self.case.number)
        else:
            by_kernel = self.limit is not None and self.limit.by_kernel
            refused = self.case.how in OUT_OF_MEMORY and not by_kernel
            self._at_its_moment().tell("eat" if refused else self.case.how)
        return now_s

    def _at_its_moment(self) -> Held:
        if self._holder.who == self.case.who:
            return self._holder
        os.kill(self.job.pid(self.case.who), signal.SIGUSR1)
        return self.control.held()

    def let_go(self) -> None:
        self._holder.tell()


@contextlib.contextmanager
def hit(place: Place, workspace: Path, case: Case, *, stall_timeout: bool = True) -> Iterator[Hit]:
    """A training at the moment of its fault; with a limit to its memory where that is the fault."""
    (workspace / "train.py").write_text(TRAIN)
    options = [f"--grace={GRACE_S}", "--lost_after=60", "--worker_num=2", "--stall_after=0.5"]
    if case.how == "STOP" and stall_timeout:
        options.append(f"--stall_timeout={STALL_TIMEOUT_S}")
    program = ["train.py", *(["--stubborn"] if case.when == "ending" else [])]
    with memory_limit() if case.how == "oom" else contextlib.nullcontext() as limit:
        moments = [case.moment, *(["launcher subprocess.Popen 1"] if limit else [])]
        with (
            control(*moments) as ctl,
            running(place, workspace, *options, program=program, env=ctl.env()) as job,
        ):
            if limit:
                held = ctl.held()
                limit.take(held.pid)
                held.tell()
            yield Hit(job, ctl, case, limit)


def expected(case: Case, *, by_kernel: bool) -> tuple[int, str, str]:
    """The exit code, who is named, and words of the reason."""
    if case.when == "ending":
        return codes.INT, "", "interrupted"
    if case.how == "STOP":
        if case.who == "trainer/1":
            return codes.PEER, "trainer/1", "waits for trainer 1"
        return codes.PEER, "trainer/0", "pserver 0 at"
    if case.how == "oom" and by_kernel:
        return 137, case.who, "killed for memory"
    if case.how in OUT_OF_MEMORY:
        return 1, case.who, "ended with 1"
    if case.how == "exit 0":
        return codes.PEER, case.who, "ended with 0"
    if case.how == "exit 3":
        return 3, case.who, "ended with 3"
    return codes.SIGNAL_BASE + case.number, case.who, f"SIG{case.how}"


def bound_s(case: Case) -> float:
    """Within this time nothing of the job may be left."""
    bound_s = GRACE_S + EXTRA_S + (EAT_S if case.how in OUT_OF_MEMORY else 0)
    if case.when == "ending":
        return bound_s
    bound_s += LOOK_FURTHER_S + (2 * STALL_TIMEOUT_S if case.how == "STOP" else 0)
    return bound_s + (dialer.ATTEMPT_S if (case.who, case.how) == ("pserver/0", "STOP") else 0)


def check(place: Place, workspace: Path, case: Case) -> None:
    """Hit it; nothing is left in time, and the first failure is reported."""
    with hit(place, workspace, case) as this:
        began_s = this.strike()
        this.control.until_gone(bound_s(case) - (own_s() - began_s))
        code, what, words = expected(case, by_kernel=this.limit is not None and this.limit.by_kernel)
        got, end = this.job.launcher.wait(), this.job.end()
        assert got == code, end
        assert words in end["reason"], end
        failure = end["failure"] or {"what": "", "tail": []}
        assert failure["what"] == what, end
        if code == 1:
            assert any("MemoryError" in line for line in failure["tail"]), end


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_first_failure_ends_the_training_and_is_named(place: Place, workspace: Path, case: Case) -> None:
    check(place, workspace, case)


@pytest.mark.parametrize("place", ["local_led_cluster"], indirect=True)
@pytest.mark.parametrize("case", ELSEWHERE, ids=str)
def test_it_is_the_same_wherever_head_and_programs_are(place: Place, workspace: Path, case: Case) -> None:
    check(place, workspace, case)


def test_stopped_pserver_is_named_by_the_waiting_trainer(place: Place, workspace: Path) -> None:
    with hit(place, workspace, Case("pserver/0", "starting", "STOP"), stall_timeout=False) as this:
        this.strike()
        this.let_go()
        said = "not ready endpoints"
        this.job.until(lambda events: any(e["event"] == "line" and said in e["text"] for e in events), said)
        this.job.launcher.proc.send_signal(signal.SIGTERM)
        this.control.until_gone(GRACE_S + EXTRA_S)
        assert this.job.launcher.wait() == codes.TERM
