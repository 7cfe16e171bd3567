"""Restarts: which failure leads to the next epoch, and how an epoch ends, without sleeping."""

from __future__ import annotations

import copy
import json
import signal
from typing import Any

import pytest

from pslaunch.node import codes
from pslaunch.node.ending import CUT, Signal
from pslaunch.node.head.restarts import SAME_MOST, Restarts
from pslaunch.node.head.supervisor import LOOK_FURTHER_S, Exit, Member, Supervisor
from pslaunch.node.link import JobFailure

TERM, KILL = signal.SIGTERM, signal.SIGKILL
GRACE_S, AFTER_S = 5.0, 60.0
FAILURE = JobFailure("trainer/0", 0, 3, "ended with 3")
KILLED = Exit(137, "SIGKILL")


def begun(most: int = 5, **report: Any) -> Restarts:
    """Restarts of a job whose programs run since 0 s; trainer/0 has reported this, if anything."""
    restarts = Restarts(most, AFTER_S)
    restarts.begin(0.0)
    if report:
        restarts.note_progress("trainer/0", report)
    return restarts


def epoch(restarts: Restarts, server: str = "bundled") -> Supervisor:
    keys = ("pserver/0", "trainer/0", "trainer/1")
    members = {key: Member(key.partition("/")[0], i % 2, "") for i, key in enumerate(keys)}
    supervisor = Supervisor(members, GRACE_S, server, restarts)
    for key in keys:
        supervisor.note_start(key)
    return supervisor


def is_restarting(s: Supervisor) -> bool:
    """Return its state; a type checker takes an attribute for the same after any call."""
    return s.restarting


def end_rest(s: Supervisor, now_s: float) -> None:
    for key in list(s.alive):
        s.note_exit(key, Exit(143, "SIGTERM", asked=True), now_s)
    s.decide(now_s)


@pytest.mark.parametrize(
    ("report", "ran_s", "refused"),
    [
        ({}, AFTER_S - 1, True),
        ({}, AFTER_S, False),
        ({"cost": 1.0, "state": "connected"}, 1.0, True),
        ({"pass": 0, "batch": 0}, 1.0, False),
        ({"cut": 100}, 1.0, False),
    ],
)
def test_a_restart_needs_a_step_or_a_while_of_running(
    report: dict[str, Any], ran_s: float, refused: bool
) -> None:
    restarts = begun(**report)
    assert bool(restarts.refuse(FAILURE, ran_s)) == refused
    restarts.begin(ran_s)  # what an epoch has reported is none of the next one's progress
    assert "no step was made" in restarts.refuse(FAILURE, ran_s + 1.0)


def test_before_the_first_start_nothing_is_restarted() -> None:
    assert Restarts(5, 0.0).refuse(FAILURE, 1000.0)


def test_restarts_are_counted_for_the_job() -> None:
    restarts = begun(1, batch=1)
    assert restarts.refuse(FAILURE, 1.0) == ""
    assert restarts.prepare(1, FAILURE, 1.0)["restart"] == 1
    assert restarts.refuse(FAILURE, 1.0) == "--max_restarts=1 is used up"


def fail_at(restarts: Restarts, *batches: int, failure: JobFailure = FAILURE, pass_id: int = 1) -> str:
    """Fail in a new epoch whose last reports are these."""
    restarts.begin(0.0)
    for batch in batches:
        restarts.note_progress(failure.what, {"pass": pass_id, "batch": batch})
    return restarts.refuse(failure, 1.0)


def test_the_same_failure_at_the_same_step_ends_the_job_the_third_time() -> None:
    restarts = begun(1000)
    assert not fail_at(restarts, 10, 50)
    assert not fail_at(restarts, 12, 60)  # reports are seldom: the end may be a whole period after the last
    assert "the same step for the 3rd time" in fail_at(restarts, 15, 55)


@pytest.mark.parametrize(
    "other",
    [
        {"batches": (150, 190)},
        {"batches": (10, 50), "pass_id": 0},
        {"batches": (10, 50), "failure": FAILURE._replace(code=137)},
        {"batches": (10, 50), "failure": FAILURE._replace(what="trainer/1")},
    ],
)
def test_another_step_or_failure_begins_a_new_count(other: dict[str, Any]) -> None:
    restarts = begun(1000)
    assert not fail_at(restarts, 10, 50) and not fail_at(restarts, 10, 50)
    assert not fail_at(restarts, *other.pop("batches"), **other)
    assert not fail_at(restarts, 10, 50)


def test_without_steps_equal_failures_are_not_at_the_same_one() -> None:
    restarts = begun()
    for _ in range(9):
        restarts.begin(0.0)
        assert not restarts.refuse(FAILURE, AFTER_S)


def test_an_epoch_ends_without_saving_and_its_supervisor_asks_for_the_next() -> None:
    """Bundled pservers save at TERM, and the cut on disk is the truth: they get KILL at once."""
    s = epoch(begun(batch=1))
    s.note_exit("trainer/0", KILLED, 1.0)
    assert s.decide(1.0) == [Signal(("pserver/0",), KILL), Signal(("trainer/1",), TERM)]
    assert is_restarting(s) and not s.why
    end_rest(s, 1.1)
    assert s.result is not None and s.result.code == 137
    script = epoch(begun(batch=1), "script")
    script.note_exit("trainer/0", KILLED, 1.0)
    assert script.decide(1.0) == [Signal(("trainer/1",), TERM)]
    assert script.decide(1.0 + GRACE_S) == [Signal(("pserver/0", "trainer/1"), KILL)]


def test_a_pserver_that_takes_trainers_along_is_the_cause_of_the_restart() -> None:
    s = epoch(begun(batch=1))
    s.note_exit("trainer/0", Exit(codes.PEER), 1.0)
    assert s.decide(1.0) == [] and not is_restarting(s)
    s.note_exit("pserver/0", KILLED, 1.2)
    s.decide(1.2)
    assert is_restarting(s) and s.failure is not None and s.failure.what == "pserver/0"


def test_a_failure_that_earns_no_restart_ends_the_job_with_its_own_code() -> None:
    s = epoch(begun())
    s.note_exit("trainer/0", Exit(3), 1.0)
    assert s.decide(1.0) == [Signal(("trainer/1",), TERM)]
    end_rest(s, 1.1)
    assert not is_restarting(s) and s.result is not None and s.result.code == 3
    assert s.why and s.why_final.startswith("no step was made")
    none = epoch(begun(0, batch=1))
    none.note_exit("trainer/0", Exit(3), 1.0)
    none.decide(1.0)
    assert none.why and not none.why_final  # nobody has asked for restarts


def test_training_that_has_ended_is_not_restarted_for_a_pserver() -> None:
    s = epoch(begun(batch=1))
    for key in ("trainer/0", "trainer/1"):
        s.note_exit(key, Exit(0), 1.0)
    s.note_exit("pserver/0", Exit(codes.IO, asked=True), 1.5)
    s.decide(1.5 + LOOK_FURTHER_S)
    assert not is_restarting(s) and s.result is not None and s.result.code == codes.IO


@pytest.mark.parametrize("when_s", [1.5, 1.05])
def test_a_further_failure_of_a_program_does_not_stop_a_restart(when_s: float) -> None:
    s = epoch(begun(batch=1))
    s.note_exit("trainer/0", KILLED, 1.0)
    s.decide(1.0)
    s.note_exit("trainer/1", Exit(5), when_s)
    end_rest(s, when_s)
    assert is_restarting(s) and s.result is not None and s.failure is not None
    assert s.failure.what == "trainer/0"


@pytest.mark.parametrize("at_s", [1.01, 3.0])
def test_a_failure_that_no_restart_mends_ends_the_job_whenever_it_comes(at_s: float) -> None:
    lost = JobFailure("node 1 (b)", 1, codes.NODE_LOST, "was lost: its line")
    early = epoch(begun(batch=1))
    early.note_exit("trainer/0", Exit(codes.PEER), 1.0)  # which a lost node explains
    early.note_lost_node(lost, 1.01)
    early.decide(1.01)
    late = epoch(begun(batch=1))
    late.note_exit("trainer/0", KILLED, 1.0)
    late.decide(1.0)
    assert is_restarting(late)
    late.note_lost_node(lost, at_s)
    late.decide(at_s)
    for s in (early, late):
        assert not is_restarting(s) and s.why == "node 1 (b) was lost: its line"
        end_rest(s, at_s + 0.1)
        assert s.result is not None and s.result.code == codes.NODE_LOST


@pytest.mark.parametrize("code", [codes.INT, codes.TIMEOUT, codes.IO])
def test_the_last_word_may_come_after_the_epoch_and_before_the_next(code: int) -> None:
    """A head waits there for a cluster that may end all nodes."""
    s = epoch(begun(batch=1))
    s.note_exit("trainer/0", KILLED, 1.0)
    s.decide(1.0)
    end_rest(s, 1.1)
    assert is_restarting(s) and s.result is not None
    if code == codes.IO:
        s.note_failure(JobFailure("node 1 (b)", 1, code, "so"), 2.5)
    else:
        s.stop(TERM if code == codes.TIMEOUT else signal.SIGINT, "so", 2.5, code)
    assert s.decide(2.5) == [] and not is_restarting(s)
    assert s.result.code == code and s.why.endswith("so")
    assert (s.result.failure is not None) == (code == codes.IO)


LOST = JobFailure("node 0 (a)", 0, codes.NODE_LOST, "was lost: its pod")


def lose_head(before: Restarts, now_s: float, most: int = 1000, **report: Any) -> Restarts:
    """Return what another head makes of what this one has told agents, after a program's report."""
    before = copy.deepcopy(before)
    if report:
        before.note_progress("trainer/1", report)
    after, told = Restarts(most, AFTER_S), before.describe(now_s)
    after.recall(json.loads(json.dumps(told)), 0.0)
    return after


def test_another_head_counts_on() -> None:
    restarts = begun(batch=1)
    for epoch in (1, 2, 3, 4, 5, 6):
        restarts.prepare(epoch, FAILURE, 1.0)
        restarts.begin(1.0)
        restarts = lose_head(restarts, 2.0, cut=epoch)
        assert restarts.used == epoch and not restarts.is_due
        assert [one["restart"] for one in restarts.told] == [*range(1, epoch + 1)]
    told = restarts.prepare(7, LOST, 3.0)
    assert told["restart"] == 7 and restarts.begin(5.0) == {**told, "step": 6, "lost_s": 2.0}
    assert lose_head(restarts, 2.0, most=7, batch=1).refuse(LOST, 0.0) == "--max_restarts=7 are used up"


@pytest.mark.parametrize(
    ("report", "refused"), [({}, True), ({"cost": 1.0}, True), ({"batch": 1}, False), ({"cut": 9}, False)]
)
def test_another_head_needs_progress_too(report: dict[str, Any], refused: bool) -> None:
    restarts = lose_head(begun(), 5.0, **report)
    assert ("no step was made" in restarts.refuse(LOST, 0.0)) == refused
    assert not restarts.refuse(LOST, AFTER_S)


def test_the_loss_of_a_head_at_the_same_step_ends_the_job_the_third_time() -> None:
    restarts = begun()
    for _ in range(SAME_MOST - 1):
        restarts = lose_head(restarts, 5.0, batch=7)
        assert not restarts.refuse(LOST, 0.0)
        restarts.prepare(restarts.used + 1, LOST, 0.0)
        restarts.begin(1.0)
    assert "the same step for the 3rd time" in lose_head(restarts, 5.0, batch=7).refuse(LOST, 0.0)
    assert not lose_head(restarts, 5.0, batch=90).refuse(LOST, 0.0)


LEAVES = JobFailure("node 1 (b)", 1, codes.NODE_LOST, "was lost: the agent was asked to end (SIGTERM)")


def leaving(most: int) -> tuple[Supervisor, Restarts]:
    """A training that takes snapshots, the node of trainer/0 leaves at 1 s."""
    restarts = begun(most, batch=1, cut=20)
    s = epoch(restarts)
    for key in s.members:
        s.note_progress(key, "connected")
    s.note_leaving(LEAVES, 1.0, returns=most > 0)
    assert s.decide(1.0) == [Signal(("trainer/0", "trainer/1"), CUT)] and not is_restarting(s)
    return s, restarts


@pytest.mark.parametrize("number", [signal.SIGINT, TERM])
def test_a_stop_is_the_last_word_while_a_node_that_leaves_waits_for_a_snapshot(number: int) -> None:
    s, _ = leaving(1)
    s.stop(number, "asked", 1.1)
    assert s.decide(1.1) == [Signal(("trainer/0", "trainer/1"), TERM)]
    end_rest(s, 1.3)
    assert not is_restarting(s)
    assert s.result is not None and s.result.code == codes.SIGNAL_BASE + number


def test_a_node_that_leaves_waits_for_a_snapshot_before_the_restart() -> None:
    s, restarts = leaving(1)
    assert s.decide(1.1) == [] and not is_restarting(s)
    restarts.note_progress("trainer/0", {"cut": 24})
    assert len(s.decide(1.2)) == 2 and is_restarting(s)
    end_rest(s, 1.3)
    assert s.result is not None and s.result.code == codes.NODE_LOST


def test_a_node_that_leaves_ends_a_job_without_restarts_after_a_snapshot() -> None:
    s, restarts = leaving(0)
    restarts.note_progress("trainer/0", {"cut": 24})
    assert s.decide(1.2) == [Signal(("trainer/0", "trainer/1"), TERM)]
    assert s.why == f"{LEAVES.why}, after a snapshot of step 24"


@pytest.mark.parametrize("code", [0, codes.TIMEOUT])
def test_a_request_to_end_is_heard_while_a_restart_goes_on(code: int) -> None:
    s = epoch(begun(batch=1))
    s.note_exit("trainer/0", KILLED, 1.0)
    assert len(s.decide(1.0)) == 2 and is_restarting(s)
    s.stop(signal.SIGINT, "Ctrl+C", 1.1, code)
    assert s.decide(1.1) == [] and not is_restarting(s)  # all have their signals, nobody gets them twice
    end_rest(s, 1.2)
    assert s.result is not None and s.result == (code or codes.INT, "Ctrl+C", None)
