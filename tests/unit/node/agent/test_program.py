"""One program on a node: its end is reported at once, despite left-over processes; and what programs use."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pslaunch.node import procs
from pslaunch.node.agent.loan import Loan
from pslaunch.node.agent.program import (
    MAX_METRIC_CHARS,
    MAX_METRICS,
    REST,
    USAGE_EVERY_S,
    Program,
    follow_usage,
)
from pslaunch.node.line.wire import MessageLine, Output
from pslaunch.node.loop import Loop
from pslaunch.node.messages import ProgramOrder
from support.lines import open_line


@contextlib.contextmanager
def running(
    tmp_path: Path, *argv: str, loan: Loan | None = None
) -> Iterator[tuple[Program, MessageLine[Any]]]:
    """Yield a program, and its reporting line, which is not read."""
    loop = Loop()
    ours, theirs = socket.socketpair()
    line = open_line(loop, ours.detach(), lost_after_s=60)
    order: ProgramOrder = {
        "key": "trainer/0", "role": "trainer", "log": str(tmp_path / "log"), "cwd": str(tmp_path),
        "argv": list(argv), "added_env": {}, "cores": [],
        "contract": {"PSLAUNCH_PROGRESS": str(tmp_path / "socket")},
    }  # fmt: skip
    program = Program(loop, line, 0, order, loan=loan)
    try:
        yield program, line
    finally:
        program.finish()
        line.close()
        theirs.close()
        loop.close()


def wait(program: Program) -> int:
    return os.waitpid(program.process.pid, 0)[1]


def test_left_over_process_that_writes_does_not_delay_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, "echo", "last words") as (program, line):
        status = wait(program)
        left_behind = os.open(f"/proc/self/fd/{program._out}", os.O_WRONLY)
        pieces: list[Output] = []

        def write_on(piece: Output) -> bool:
            pieces.append(piece)
            if len(pieces) < 100:
                os.write(left_behind, b"more\n")
            return True

        monkeypatch.setattr(line, "send_output", write_on)
        program.handle_exit(status)
        assert [piece.data for piece in pieces] == [b"last words\n"]
        program.finish()
        os.close(left_behind)


@pytest.mark.parametrize(
    ("command", "waits", "told"),
    [("exit 3", True, [True, False]), ("exit 3", False, [False]), ("exit 0", True, [False])],
    ids=["a failure", "a failure behind no output", "a good end"],
)
def test_failure_does_not_wait_for_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, waits: bool, told: list[bool]
) -> None:
    with running(tmp_path, "sh", "-c", command) as (program, line):
        status = wait(program)
        while waits and not line.is_behind:
            line.send_output(Output(0, 0, bytes(60_000)))
        sent: list[tuple[bool, bool]] = []
        monkeypatch.setattr(
            line, "send", lambda message, *, in_order=False: sent.append((message["ahead"], in_order))
        )
        program.handle_exit(status)
        assert sent == [(ahead, not ahead) for ahead in told]


def test_a_program_may_be_in_the_home_folder_of_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "python").symlink_to("/bin/true")
    with running(tmp_path, "~/python") as (program, _):
        status = wait(program)
        program.handle_exit(status)
        assert status == 0


@pytest.mark.timeout(60)
def test_reports_that_come_faster_than_they_are_read_do_not_keep_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, "true") as (program, line):
        status = wait(program)
        taken = itertools.count()
        sender = SimpleNamespace(recv=lambda _size: f"batch={next(taken)}".encode(), close=lambda: None)
        sent: list[Any] = []
        monkeypatch.setattr(line, "send", lambda message, **_: sent.append(message))
        with monkeypatch.context() as fast:
            fast.setattr(program, "_progress", sender)
            program.read_progress()
            read = next(taken)
            assert sent[0]["batch"] == read - 1
            program.handle_exit(status)
        assert sent[1]["type"] == "progress" and sent[1]["batch"] == next(taken) - 1 > read
        assert sent[-1]["type"] == "exited"


def test_names_of_metrics_are_bounded_in_number_and_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, "true") as (program, line):
        sent: list[dict[str, Any]] = []
        monkeypatch.setattr(line, "send", lambda message, **_: sent.append(message))
        long = "x" * (MAX_METRIC_CHARS + 1)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(str(tmp_path / "socket"))
            for step in range(MAX_METRICS + 5):
                sender.send(f"metric.{step}=1 metric.{long}=1 metric.{long[1:]}=2 state=s".encode())
                program.read_progress()
        names = {name for report in sent for name in report if name.startswith("metric.")}
        assert len(names) == MAX_METRICS and "metric.0" in names
        assert sent[-1].keys() == {"type", "key", "state", f"metric.{long[1:]}"}
        program.handle_exit(wait(program))


def test_borrower_has_its_lenders_environment_and_processors_and_gives_back_its_exit_code(
    tmp_path: Path,
) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    ours, theirs = socket.socketpair()
    here = procs.read_proc(os.getpid())
    assert here
    lent = {"OMPI_COMM_WORLD_LOCAL_RANK": "3", "OMPI_COMMAND": "sh", "OMPI_ARGV": "-c SEARCH"}
    loan = Loan(ours, here, lent, cpus[:1])
    show = "env | grep OMPI | sort; grep Cpus_allowed_list /proc/self/status"
    with theirs:
        with running(tmp_path, "sh", "-c", show, loan=loan) as (program, _):
            program.process.wait()
        loan.dismiss(7)
        assert theirs.recv(99) == b'[7, false, ""]\n'
    assert (tmp_path / "log").read_text().splitlines() == [
        f"OMPI_ARGV=-c {show}",
        "OMPI_COMMAND=sh",
        "OMPI_COMM_WORLD_LOCAL_RANK=3",
        f"Cpus_allowed_list:\t{cpus[0]}",
    ]
    assert sorted(os.sched_getaffinity(0)) == cpus


def test_the_first_step_is_told_at_once_and_others_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head restarts what has made a step, also if it is killed just after that."""
    with running(tmp_path, "true") as (program, line):
        told: list[Any] = []
        monkeypatch.setattr(line, "send", lambda message, **_: told.append(message))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            for batch in range(3):
                sender.sendto(b"pass=0 batch=%d" % batch, str(tmp_path / "socket"))
                program.read_progress()
        assert [message["batch"] for message in told] == [0]
        program.handle_exit(wait(program))


class Hand:
    """A clock and a loop that a test moves by hand."""

    def __init__(self) -> None:
        self.now_s, self.delay_s = 100.0, 0.0
        self.look: Callable[[], None] = lambda: None

    def now(self) -> float:
        return self.now_s

    def call_after(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.delay_s, self.look = delay_s, callback


def test_usage_is_sent_of_running_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    hand, told = Hand(), list[dict[str, float]]()
    looks = iter([{7: (3.0, 50), 8: (0.0, 9)}, {7: (4.5, 60), 8: (0.0, 0)}, {7: (4.0, 70), 8: (0.0, 0)}])
    programs: dict[str, Any] = {
        str(pid): SimpleNamespace(process=SimpleNamespace(pid=pid), ended=pid == 9, note_usage=told.append)
        for pid in (7, 8, 9)
    }

    def measure(pids: dict[int, object]) -> dict[int, tuple[float, int]]:
        assert [*pids] == [7, 8]
        hand.now_s += 0.25 if len(told) == 1 else 0.0  # a slow one
        return next(looks)

    monkeypatch.setattr(procs, "measure_sessions", measure)
    gpus: dict[int, Any] = {7: {"gpu_percent": 9.0}, 9: {"gpu_percent": 8.0}}
    follow_usage(cast(Loop, hand), programs, gpus)
    for then_s in (USAGE_EVERY_S, USAGE_EVERY_S, 0.25 * REST):
        hand.now_s += USAGE_EVERY_S
        hand.look()
        assert hand.delay_s == then_s
    # The second: a child's time went with it.
    assert [[*used.values()] for used in told] == [[150.0, 60, 9.0], [0.0, 70, 9.0]]
