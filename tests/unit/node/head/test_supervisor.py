"""Decisions about the end of a job: the whole section "The end", without sleeping."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslaunch.node import codes
from pslaunch.node.ending import CUT, NEVER, Signal
from pslaunch.node.head.restarts import Restarts
from pslaunch.node.head.supervisor import LOOK_FURTHER_S, Exit, Member, Supervisor, make_lost_advice
from pslaunch.node.job import Plan
from pslaunch.node.link import JobFailure

TERM, KILL = signal.SIGTERM, signal.SIGKILL
GRACE_S = 5.0
TRAINERS = ("trainer/0", "trainer/1")
TERMED = Exit(143, "SIGTERM", asked=True)  # after our own signal


def job(
    pservers: int = 1,
    trainers: int = 2,
    server: str = "bundled",
    nodes: int = 1,
    restarts: Restarts | None = None,
) -> Supervisor:
    members = {f"pserver/{i}": Member("pserver", i % nodes, f"/log/server.{i}.log") for i in range(pservers)}
    members |= {f"trainer/{i}": Member("trainer", i % nodes, f"/log/train.{i}.log") for i in range(trainers)}
    supervisor = Supervisor(members, GRACE_S, server, restarts)
    for key in members:
        supervisor.note_start(key)
    return supervisor


def find_code(supervisor: Supervisor, at_s: float) -> int:
    """Let the job end at this time, and return its code."""
    supervisor.decide(at_s)
    assert supervisor.result is not None
    return supervisor.result.code


def train(supervisor: Supervisor, at_s: float) -> None:
    """All trainers come to their end with 0."""
    connect(supervisor)
    for key in [key for key in supervisor.members if key.startswith("trainer/")]:
        supervisor.note_progress(key, "finished")
        supervisor.note_exit(key, Exit(0), at_s)


def end_rest(supervisor: Supervisor, at_s: float, how: Exit = TERMED) -> None:
    for key in list(supervisor.alive):
        supervisor.note_exit(key, how, at_s)


def connect(supervisor: Supervisor) -> None:
    for key in supervisor.members:
        supervisor.note_progress(key, "connected")


def test_exit_after_a_signal_that_nobody_sent_is_a_failure() -> None:
    s = job()
    s.note_exit("trainer/1", Exit(1, asked=True), 0.0)
    end_rest(s, 0.1)
    assert find_code(s, 0.1) == 1


def test_all_trainers_give_0_and_reached_pservers_end_by_themselves() -> None:
    s = job()
    connect(s)
    s.note_exit("trainer/0", Exit(0), 10.0)  # after the others: it counts only while they wait
    assert s.failure is not None
    s = job()
    train(s, 10.0)
    assert s.decide(10.0) == []
    assert s.find_due_s(10.0) == 10.0 + GRACE_S
    s.note_exit("pserver/0", Exit(0), 10.5)
    assert find_code(s, 10.5) == 0 and s.failure is None


def test_a_trainer_that_never_connected_is_missed_by_those_that_did_in_either_order() -> None:
    for early in (True, False):
        s = job()
        if early:
            s.note_exit("trainer/1", Exit(0), 1.0)
            assert s.decide(1.0) == [] and s.failure is None  # trainer/0 may train alone, too
        s.note_progress("trainer/0", "connected")
        if not early:
            assert s.decide(1.0) == []
            s.note_exit("trainer/1", Exit(0), 1.0)
        s.decide(2.0)
        assert s.failure is not None and s.failure.what == "trainer/1" and s.failure.code == codes.PEER
    script = job(server="script")
    script.note_progress("trainer/0", "connected")
    script.note_exit("trainer/1", Exit(0), 1.0)
    script.decide(1.0)
    assert script.failure is None


@pytest.mark.parametrize("server", ["script", "bundled"])
def test_a_reached_pserver_that_stays_gets_term_after_grace_and_kill_after_another(server: str) -> None:
    s = job(trainers=1, server=server)
    train(s, 0.0)
    assert s.decide(GRACE_S - 0.1) == []
    assert s.decide(GRACE_S) == [Signal(("pserver/0",), TERM)]
    assert s.decide(2 * GRACE_S) == [Signal(("pserver/0",), KILL)]
    s.note_exit("pserver/0", Exit(137, "SIGKILL", asked=True), 2 * GRACE_S + 0.1)
    assert find_code(s, 2 * GRACE_S + 0.1) == 0


def test_pservers_that_nobody_reached_get_term_at_once() -> None:
    for server in ("bundled", "script"):
        s = job(pservers=2, trainers=1, server=server)
        s.note_exit("trainer/0", Exit(0), 3.0)
        assert s.decide(3.0) == [Signal(("pserver/0", "pserver/1"), TERM)]
        end_rest(s, 3.1)
        assert find_code(s, 3.1) == 0


def test_only_the_unreached_of_several_pservers_get_term_at_once() -> None:
    s = job(pservers=2, trainers=1)
    s.note_progress("pserver/0", "connected")
    s.note_exit("trainer/0", Exit(0), 0.0)
    assert s.decide(0.0) == [Signal(("pserver/1",), TERM)]
    assert s.decide(GRACE_S) == [Signal(("pserver/1",), KILL), Signal(("pserver/0",), TERM)]


@pytest.mark.parametrize("server", ["script", "bundled"])
def test_pservers_that_end_with_the_job_hear_it_once(server: str) -> None:
    s = job(server=server)
    s.stop(2, "interrupted", 1.0)
    assert s.decide(1.0) == [Signal(TRAINERS, TERM)]
    for key in TRAINERS:
        s.note_exit(key, Exit(0, asked=True), 1.1)
    assert s.decide(1.1) == [Signal(("pserver/0",), TERM)]


def test_pservers_get_term_after_half_the_grace_even_if_trainers_stay() -> None:
    s = job()
    s.stop(signal.SIGINT, "interrupted", 0.0)
    assert s.decide(0.0) == [Signal(TRAINERS, TERM)]
    assert s.decide(GRACE_S / 2) == [Signal(("pserver/0",), TERM)]
    assert s.decide(GRACE_S) == [Signal(("pserver/0", *TRAINERS), KILL)]
    assert s.decide(GRACE_S + 1.0) == []
    assert find_code(s, GRACE_S + 2.0) == codes.INT  # nobody reported: the nodes clean up, the job is over


def test_a_request_before_anything_was_started_ends_the_job() -> None:
    s = Supervisor({"trainer/0": Member("trainer", 0, "")}, GRACE_S, "none")
    s.stop(signal.SIGTERM, "asked", 0.0)
    assert find_code(s, 0.0) == codes.TERM


@pytest.mark.parametrize("scheduled", [False, True])
def test_second_request_kills_at_once_but_a_scheduler_is_no_first(scheduled: bool) -> None:
    """A scheduler asks agents and launcher for the end of the job at once."""
    s = job()
    if scheduled:
        s.stop(signal.SIGTERM, "Slurm asked for the end of the job", 0.0, codes.TERM)
        assert s.decide(0.0) == [Signal(TRAINERS, TERM)]
    s.stop(signal.SIGTERM, "asked", 0.1)
    assert s.decide(0.1) == ([] if scheduled else [Signal(TRAINERS, TERM)])
    s.stop(signal.SIGTERM, "asked", 0.2)
    assert s.decide(0.2) == [Signal(("pserver/0", *TRAINERS), KILL)]


def test_request_may_set_the_code_of_the_job() -> None:
    s = job()
    s.stop(signal.SIGHUP, "the output can't be written", 0.0, codes.IO)
    assert s.decide(0.0) == [Signal(TRAINERS, TERM)]
    s.stop(signal.SIGINT, "interrupted", 0.5)
    assert find_code(s, GRACE_S + 2.0) == codes.IO


def taking_cuts(newest: int = 20) -> tuple[Supervisor, Restarts]:
    """A job whose training takes snapshots, the newest at this step."""
    restarts = Restarts(0, NEVER)
    s = job(restarts=restarts)
    connect(s)
    restarts.note_progress("trainer/0", {"cut": newest})
    return s, restarts


def end_of(s: Supervisor) -> str:
    """The reason of the end; the grace began at 1 s, and the trainers have TERM."""
    assert s.decide(1.0 + GRACE_S) == [Signal(("pserver/0", *TRAINERS), KILL)]
    s.decide(1.0 + GRACE_S + 2.0)
    assert s.result is not None and s.result.code == codes.TERM
    return s.result.reason


@pytest.mark.parametrize("newest", [0, 20])
@pytest.mark.parametrize("code", [0, codes.TERM])
def test_a_request_by_term_waits_for_a_snapshot(newest: int, code: int) -> None:
    s, restarts = taking_cuts(newest)
    s.stop(TERM, "asked", 1.0, code)
    for more in (codes.TERM, *[0] * bool(code)):  # a scheduler tells all agents, and the launcher
        s.stop(TERM, "asked again", 1.0, more)
    assert s.decide(1.0) == [Signal(TRAINERS, CUT)]
    restarts.note_progress("trainer/1", {"batch": 3})
    assert s.decide(1.1) == [] and s.find_due_s(1.1) == 1.0 + GRACE_S / 2
    restarts.note_progress("trainer/0", {"cut": 24})
    assert s.decide(1.2) == [Signal(TRAINERS, TERM)]
    assert end_of(s) == "asked, after a snapshot of step 24"


@pytest.mark.parametrize("why", ["late", "trainer/1", "pserver/0"])
def test_a_snapshot_that_does_not_come_is_not_waited_for(why: str) -> None:
    s, _ = taking_cuts()
    s.stop(TERM, "asked", 1.0)
    assert s.decide(1.0) == [Signal(TRAINERS, CUT)] and s.decide(3.4) == []
    at_s = 3.5 if why == "late" else 3.4
    if why != "late":
        s.note_exit(why, Exit(3), at_s)
    left = tuple(key for key in TRAINERS if key in s.alive)
    assert s.decide(at_s) == [Signal(left, TERM)]
    end_rest(s, at_s)
    s.decide(at_s)
    assert s.result is not None and s.failure is None
    assert s.result.reason == "asked; no snapshot was taken in time"


def test_only_the_first_request_and_only_term_wait_for_a_snapshot() -> None:
    s, _ = taking_cuts()
    s.stop(signal.SIGINT, "Ctrl+C", 1.0)
    assert s.decide(1.0) == [Signal(TRAINERS, TERM)]
    s, _ = taking_cuts()
    s.stop(TERM, "Slurm asked for the end of the job", 1.0, codes.TERM)
    s.stop(signal.SIGINT, "Ctrl+C", 1.0)
    assert s.decide(1.0)[-1] == Signal(TRAINERS, TERM)
    s, _ = taking_cuts()
    s.stop(TERM, "asked", 1.0)
    s.stop(TERM, "asked", 1.0)
    assert s.decide(1.0)[-1] == Signal(("pserver/0", *TRAINERS), KILL)


def test_a_training_without_snapshots_or_in_an_ending_is_asked_for_none() -> None:
    s = job()
    connect(s)
    s.stop(TERM, "asked", 1.0)
    assert s.decide(1.0) == [Signal(TRAINERS, TERM)]
    s, _ = taking_cuts()
    s.note_exit("trainer/1", Exit(3), 1.0)
    s.stop(TERM, "asked", 1.0)
    assert s.decide(1.0) == [Signal(("trainer/0",), TERM)]
    s, _ = taking_cuts()
    train(s, 1.0)
    s.stop(TERM, "asked", 1.0)
    assert s.decide(1.0) == [Signal(("pserver/0",), TERM)]


def test_vanished_peer_is_secondary_to_failures_of_the_next_second() -> None:
    s = job()
    s.note_exit("trainer/0", Exit(codes.PEER), 1.0)
    assert s.decide(1.0) == []  # looks one second further
    assert s.find_due_s(1.0) == 2.0
    s.note_exit("pserver/0", Exit(139, "SIGSEGV"), 1.4)
    assert s.decide(1.4) == [Signal(("trainer/1",), TERM)]
    s.note_exit("trainer/1", Exit(codes.PEER, asked=True), 1.5)
    assert find_code(s, 1.5) == 139
    assert s.failure is not None and s.failure.what == "pserver/0"


def test_a_pserver_that_ends_because_of_a_trainer_explains_the_trainers_that_miss_it() -> None:
    why = "step 1 waits for trainer 1 for 9 s (option --stall_timeout)"
    s = job(nodes=2)
    s.note_explanation("pserver/0", why, "trainer/1")
    s.note_exit("trainer/0", Exit(codes.PEER, tail=("missed",)), 1.0)  # the pserver takes longer to its end
    s.note_exit("pserver/0", Exit(codes.PEER, tail=("waited",)), 1.9)
    assert s.decide(2.0) == [Signal(("trainer/1",), TERM)]
    s.note_exit("trainer/1", Exit(143, "SIGTERM", asked=True, tail=("asleep",)), 3.0)
    s.decide(3.0)
    assert s.result is not None and s.result.reason == f"trainer/1 keeps others waiting: {why}"
    failure = s.result.failure
    assert failure is not None and (failure.what, failure.node, failure.code) == ("trainer/1", 1, codes.PEER)
    assert (failure.log, failure.tail) == ("/log/train.1.log", ("asleep",))
    saving = job()
    saving.note_explanation("pserver/0", why, "trainer/1")
    saving.note_exit("trainer/0", Exit(codes.PEER), 1.0)
    assert saving.decide(1.9) == []
    assert saving.decide(2.0) == [Signal(("trainer/1",), TERM)]
    end_rest(saving, 4.0, Exit(codes.PEER, asked=True))
    assert find_code(saving, 4.0) == codes.PEER and saving.result is not None
    assert saving.result.reason == f"trainer/1 keeps others waiting: {why}"


def test_a_job_that_ends_already_needs_no_other_reason_to_end() -> None:
    """The carrier of agents ends with them: no failure of a job whose pservers still save."""
    trained = job(trainers=1)
    train(trained, 1.0)
    stopped, failed = job(), job()
    stopped.stop(signal.SIGINT, "interrupted", 1.0)
    failed.note_exit("trainer/0", Exit(3), 1.0)
    for s, code in ((trained, codes.OK), (stopped, codes.INT), (failed, 3)):
        before = s.decide(2.0)
        s.stop(TERM, "mpirun is gone", 2.0, codes.NODE_LOST)
        assert s.decide(2.0) == [] and KILL not in [a.number for a in before]
        end_rest(s, 2.5, Exit(0, asked=True))
        assert find_code(s, 2.5) == code
    running = job()
    running.stop(TERM, "mpirun is gone", 2.0, codes.NODE_LOST)
    assert [a.number for a in running.decide(2.0)] == [TERM]


def test_guess_of_a_pserver_explains_trainers_that_never_reached_it() -> None:
    guess = "10.0.0.2:4711 speaks brpc; start the job with --server script"
    for reached, advice in ((False, f"pserver/0: {guess}"), (True, "")):
        for code in (1, codes.SERVICE, codes.PEER):
            s = job()
            s.note_explanation("pserver/0", guess)
            if reached:
                s.note_progress("pserver/0", "connected")
            s.note_exit("trainer/1", Exit(code), 1.0)
            s.decide(2.5)
            end_rest(s, 2.5)
            s.decide(2.5)
            assert s.failure is not None and (s.failure.what, s.failure.advice) == ("trainer/1", advice)


def make_loss(node: int) -> JobFailure:
    return JobFailure(f"node {node} (n)", node, codes.NODE_LOST, "was lost: the line was closed")


def test_advice_for_a_lost_node_is_a_command_unless_its_backend_has_its_own() -> None:
    assert "xargs -r kill -9" in make_lost_advice(Plan(job_id="j-1"))
    assert make_lost_advice(Plan(job_id="j-1", lost_advice="ask the cluster")) == "ask the cluster"


def test_lost_node_outranks_a_failure_just_before() -> None:
    s = job(nodes=3, trainers=3)
    s.note_exit("trainer/0", Exit(1), 1.0)
    s.decide(1.0)
    s.note_lost_node(make_loss(1), 1.5)
    end_rest(s, 1.7)
    assert find_code(s, 1.7) == codes.NODE_LOST
    late = job(nodes=3, trainers=3)
    late.note_exit("trainer/0", Exit(1), 1.0)
    late.note_lost_node(make_loss(1), 2.5)
    assert late.failure is not None and late.failure.code == 1


def test_a_pserver_may_end_once_all_trainers_have_finished_with_it() -> None:
    s = job(trainers=1)
    connect(s)
    s.note_progress("pserver/0", "finished")
    s.note_exit("pserver/0", Exit(0), 1.0)
    assert s.failure is None and s.decide(1.0) == []
    s.note_exit("trainer/0", Exit(0), 2.0)
    assert s.decide(2.0) == [] and s.result


def test_a_connected_trainer_that_leaves_with_0_while_others_wait_is_a_failure() -> None:
    s = job()
    connect(s)
    s.note_exit("trainer/1", Exit(0), 1.0)
    assert s.failure is not None and s.failure.what == "trainer/1" and s.failure.code == codes.PEER
    s = job()
    connect(s)
    s.note_progress("trainer/0", "finished")
    s.note_exit("trainer/0", Exit(0), 1.0)
    s.note_exit("trainer/1", Exit(0), 2.0)  # nobody waits any more
    assert s.failure is None


def test_a_failed_save_counts_even_after_the_training() -> None:
    s = job(trainers=1)
    train(s, 1.0)
    s.note_exit("pserver/0", Exit(codes.IO), 1.5)
    assert find_code(s, 1.5) == codes.IO
    s = job(trainers=1)
    connect(s)
    s.note_exit("trainer/0", Exit(0), 1.0)
    s.note_exit("pserver/0", Exit(1), 1.5)  # other codes don't
    assert find_code(s, 1.5) == 0


def test_trouble_with_a_start_ends_the_job() -> None:
    s = job()
    s.remove("trainer/1")
    s.note_failure(JobFailure("trainer/1", 0, 127, "can't be started"), 0.0)
    assert s.decide(0.0) == [Signal(("trainer/0",), TERM)]


events = st.lists(
    st.tuples(
        st.sampled_from(["exit", "stop", "term", "lost", "progress", "cut", "wait"]),
        st.integers(0, 5),
        st.sampled_from([Exit(0), Exit(3), Exit(75), Exit(137, "SIGKILL"), TERMED]),
        st.floats(0, 3),
    ),
    max_size=25,
)


@given(events)
def test_every_history_ends_and_no_signal_goes_to_ended_processes(
    history: list[tuple[str, int, Exit, float]],
) -> None:
    restarts = Restarts(0, NEVER)
    s = job(pservers=3, trainers=3, nodes=2, restarts=restarts)
    keys = list(s.members)
    now = 0.0
    for kind, i, how, wait_s in history:
        now += wait_s
        if kind == "exit" and keys[i] in s.alive:
            s.note_exit(keys[i], how, now)
        elif kind == "stop":
            s.stop(2, "asked", now)
        elif kind == "term":
            s.stop(15, "asked", now)
        elif kind == "cut":
            restarts.note_progress(keys[i], {"cut": i})
        elif kind == "lost":
            s.note_lost_node(make_loss(i % 2), now)
        elif kind == "progress":
            s.note_progress(keys[i], "connected")
        for action in s.decide(now):
            assert all(key in s.alive for key in action.keys)
    s.stop(2, "asked", now)
    for _ in range(20):  # nobody reports anything any more: still it ends, within the bound
        if s.result:
            break
        s.decide(now)
        now = min(s.find_due_s(now), now + 60)
    assert s.result is not None
    assert s.find_due_s(now) >= now


LOSS = JobFailure("mpirun", 0, codes.NODE_LOST, "was lost: it ended with 1")


def test_secondary_loss_waits_a_second_for_a_program_that_explains_it() -> None:
    s = job()
    s.note_loss(LOSS, 1.0, secondary=True)
    assert s.decide(1.0) == [] and s.find_due_s(1.0) == 2.0
    s.note_exit("trainer/1", Exit(3), 1.5)
    assert s.failure and s.failure.what == "trainer/1"
    s = job()
    s.note_loss(LOSS, 1.0, secondary=True)
    assert s.decide(2.0) and s.why == "mpirun was lost: it ended with 1"
    s.note_exit("trainer/1", Exit(3), 2.5)
    assert s.failure == LOSS
    s = job()
    s.note_exit("trainer/1", Exit(3), 1.0)
    s.note_loss(LOSS, 1.5, secondary=False)  # explains the failure just before
    assert s.failure == LOSS


def test_loss_after_training_is_no_failure() -> None:
    for secondary in (True, False):
        s = job()
        train(s, 10.0)
        s.note_loss(LOSS, 10.5, secondary=secondary)
        s.note_exit("pserver/0", Exit(0), 11.0)
        assert find_code(s, 11.0) == 0


LACKS = "ModuleNotFoundError: No module named '{}'"
OLD_PYTHON = ("Unknown option: -P", "usage: python3 [option] ... [-c cmd | -m mod | file | -] [arg] ...")


@pytest.mark.parametrize(
    ("key", "server", "how", "remedy", "code"),
    [
        ("trainer/0", "bundled", Exit(1, tail=(LACKS.format("paddle"),)), "import pslaunch.runtime as", 1),
        ("trainer/0", "bundled", Exit(1, tail=(LACKS.format("paddle.v2"),)), "pslaunch.runtime", 1),
        ("trainer/0", "bundled", Exit(1, tail=(LACKS.format("torch"),)), "no torch", 1),
        ("trainer/0", "bundled", Exit(137, "SIGKILL", oom=True), "reduce its use of memory", 137),
        ("pserver/0", "bundled", Exit(2, tail=OLD_PYTHON), "needs Python 3.11 or later", codes.PREFLIGHT),
        ("pserver/0", "script", Exit(1, tail=(LACKS.format("numpy"),)), "", 1),
        ("pserver/0", "script", Exit(0), "--server bundled", codes.PEER),
        ("pserver/0", "bundled", Exit(0), "", codes.PEER),  # before the trainers
    ],
)
def test_failure_has_its_code_and_a_remedy(key: str, server: str, how: Exit, remedy: str, code: int) -> None:
    s = job(server=server)
    s.note_exit(key, how, 1.0)
    assert s.failure is not None and s.failure.code == code and remedy in s.failure.advice


@pytest.mark.parametrize("first", ["pserver/0", "trainer/1"])
def test_host_without_the_runtime_ends_the_job_with_78_whoever_lacks_it_first(first: str) -> None:
    s = job()
    second = "pserver/0" if first == "trainer/1" else "trainer/1"
    for key in (first, second):
        s.note_exit(key, Exit(1, tail=(LACKS.format("numpy"),)), 1.0)
    assert s.decide(1.0)
    assert s.failure is not None and "--install, which brings pslaunch, numpy" in s.failure.advice
    assert (s.failure.what, s.failure.code) == ("pserver/0", codes.PREFLIGHT)


@pytest.mark.parametrize(
    ("module", "wait_s", "code"), [("torch", 0.0, 1), ("numpy", LOOK_FURTHER_S, codes.PREFLIGHT)]
)
def test_trainer_that_lacks_a_module_of_its_own_keeps_its_code(module: str, wait_s: float, code: int) -> None:
    s = job()
    s.note_exit("trainer/0", Exit(1, tail=(LACKS.format(module),)), 1.0)
    if wait_s:  # a pserver may lack it too
        assert s.decide(1.0) == [] and s.find_due_s(1.0) == 1.0 + wait_s
    assert s.decide(1.0 + wait_s)
    assert s.failure is not None and (s.failure.what, s.failure.code) == ("trainer/0", code)
