"""The leash: its command ends with the launcher, at its request, or by itself, and leaves nothing."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pslaunch.backends.leash import LEASH_ANSWER_S, Leashed
from pslaunch.errors import ServiceError
from pslaunch.node.line.gate import Gate
from pslaunch.node.line.wire import Line
from pslaunch.node.loop import Loop
from support.jobs import parent_of
from support.process import poll_until, until_gone

# Leaves a process in the background, which survives its parent, and says who is who.
TWO = "sleep 1000 & echo $! $$; wait"
# Ignores TERM, so that only KILL ends it.
STUBBORN = "trap '' TERM; sleep 1000 & echo $! $$; while :; do wait; done"
LAUNCHER = """
import os, signal, sys
from pslaunch.backends.leash import Leashed
leashed = Leashed(["sh", "-c", sys.argv[1]], os.environ, 0.1, stdout=1)
signal.pause()
"""


@contextlib.contextmanager
def leashed(script: str, after: Sequence[str] = ()) -> Iterator[tuple[Leashed, list[int]]]:
    """Yield a leash with this script, and the pids that the script has printed."""
    read_fd, write_fd = os.pipe()
    one = Leashed(["sh", "-c", script], os.environ, 60.0, after=after, stdout=write_fd)
    os.close(write_fd)
    try:
        with os.fdopen(read_fd) as f:
            yield one, [int(word) for word in f.readline().split()]
    finally:
        one.close()


@pytest.mark.parametrize("script", [TWO, STUBBORN])
def test_asked_to_end_a_leash_ends_the_command_and_all_of_its_session(script: str) -> None:
    with leashed(script) as (one, pids):
        one.end_now()
        assert one.wait(10)
        for pid in pids:
            until_gone(pid, within_s=5)
        assert one.describe() == (f"it was killed by {'SIGTERM' if script == TWO else 'SIGKILL'}", True)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_command_ends_with_a_killed_leash(number: signal.Signals) -> None:
    with leashed("echo $$; exec sleep 1000") as (one, pids):
        os.kill(parent_of(pids[0]), number)
        assert one.wait(10)
        until_gone(pids[0], within_s=5)
        assert one.describe() == ("its leash was killed", True)


def test_stopped_leash_goes_on_when_it_is_waited_for() -> None:
    with leashed("echo $$; exec sleep 1000") as (one, pids):
        os.kill(parent_of(pids[0]), signal.SIGSTOP)
        os.kill(pids[0], signal.SIGKILL)
        assert one.wait(10)
        assert one.describe() == ("it was killed by SIGKILL", True)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_command_ends_with_a_killed_launcher(number: signal.Signals) -> None:
    argv = [sys.executable, "-c", LAUNCHER, TWO]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout
        pids = [int(word) for word in launcher.stdout.readline().split()]
        leash = parent_of(pids[1])
        launcher.send_signal(number)
    for pid in (*pids, leash):
        until_gone(pid, within_s=5)


@pytest.mark.parametrize(
    ("script", "end"),
    [
        ("echo; exit 7", ("it ended with 7", False)),
        ("echo; exit 137", ("it ended with 137", False)),
        ("echo; kill -SEGV $$", ("it was killed by SIGSEGV", True)),
    ],
)
def test_end_of_the_command_is_described(script: str, end: tuple[str, bool]) -> None:
    with leashed(script) as (one, _):
        assert one.wait(10)
        assert one.describe() == end == one.describe()


def test_leash_leaves_no_descriptor() -> None:
    folder = Path("/proc/self/fd")
    before = len([*folder.iterdir()])
    with pytest.raises(ServiceError, match="true can't be started: Argument list too long"):
        Leashed(["true", "x" * 10_000_000], os.environ, 1.0)
    with leashed(TWO):
        pass
    poll_until(lambda: len([*folder.iterdir()]) == before, describe="descriptors are left")


def test_left_over_processes_of_the_session_end_with_the_command() -> None:
    with leashed("sleep 1000 & echo $!; kill -KILL $$") as (one, pids):
        assert one.wait(10)
        until_gone(pids[0], within_s=5)


def test_command_after_it_runs_when_the_launcher_is_gone(tmp_path: Path) -> None:
    one = Leashed(["sleep", "1000"], os.environ, 0.1, after=["touch", str(tmp_path / "after")])
    one._sock.close()  # as by the launcher's end
    assert one._leash.wait(45) == 0
    one.said.file.close()
    one.printed.file.close()
    assert (tmp_path / "after").exists()


def test_absent_command_is_reported_as_by_a_shell(tmp_path: Path) -> None:
    one = Leashed([str(tmp_path / "mpirun")], os.environ, 1.0)
    try:
        assert one.wait(10)
        assert one.code == 127 and "No such file" in one.read_said()
    finally:
        one.close()


SECRET = bytes(32)


def make_head(port: int) -> dict[str, Any]:
    return {"addrs": ["127.0.0.1"], "port": port, "secret": SECRET.hex(), "lost_after": 60.0}


@pytest.fixture
def gone_head() -> Iterator[dict[str, Any]]:
    """The address of a head that is no longer there; its port is held, so that nobody else listens there."""
    with socket.socket() as gone:
        gone.bind(("127.0.0.1", 0))
        yield make_head(gone.getsockname()[1])


@pytest.fixture
def silent_head() -> Iterator[socket.socket]:
    """A head that takes connections and says nothing: the leash answers once it is closed, or later."""
    with socket.create_server(("127.0.0.1", 0)) as head:
        yield head


def test_command_follows_no_job_whose_head_is_gone(gone_head: dict[str, Any]) -> None:
    with leashed(TWO) as (one, _):
        assert "Connection refused" in one.follow(gone_head, 3.0)
        assert one.describe() == ("it has not ended", False)
        one.end_now()
        assert one.wait(10)
        assert one.describe() == ("it was killed by SIGTERM", True)


def test_late_answer_of_a_leash_is_no_end(silent_head: socket.socket) -> None:
    with leashed("echo $$; exec sleep 1000") as (one, pids):
        head = make_head(silent_head.getsockname()[1])
        assert one.follow(head, -LEASH_ANSWER_S) == "its leash does not answer"
        silent_head.close()
        assert select.select([one.fd], [], [], 45)[0]
        assert not one.wait(0)
        assert one.describe() == ("it has not ended", False)
        os.kill(pids[0], signal.SIGKILL)
        assert one.wait(45)
        assert one.describe() == ("it was killed by SIGKILL", True)


def test_end_is_understood_behind_an_answer_that_nobody_has_read(silent_head: socket.socket) -> None:
    with leashed("echo $$; exec sleep 1000") as (one, pids):
        one.follow(make_head(silent_head.getsockname()[1]), -LEASH_ANSWER_S)
        silent_head.close()
        assert select.select([one.fd], [], [], 45)[0]
        os.kill(pids[0], signal.SIGKILL)
        assert one._leash.wait(45) == 0
        assert one.describe() == ("it was killed by SIGKILL", True)


def test_asked_to_end_a_leash_that_follows_a_job_leaves_nothing(tmp_path: Path) -> None:
    admitted: list[Line] = []
    with (
        contextlib.closing(Loop()) as loop,
        contextlib.closing(
            Gate(
                loop,
                "127.0.0.1",
                SECRET,
                check=lambda _text: "",
                admit=lambda _text, line: admitted.append(line),
                note_refusal=pytest.fail,
            )
        ) as gate,
        leashed(TWO, ["touch", str(tmp_path / "after")]) as (one, pids),
        ThreadPoolExecutor(1) as pool,
    ):
        following = pool.submit(one.follow, make_head(gate.port), 45.0)
        loop.run(lambda: bool(admitted))
        try:
            assert following.result(45) == ""
            one.end_now()
            assert one.wait(45)
        finally:
            admitted[0].close()
    for pid in pids:
        until_gone(pid, within_s=45)
    assert (tmp_path / "after").exists()


def test_asked_to_end_a_leash_does_not_wait_for_the_head_that_it_dials() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        leashed(TWO) as (one, _),
        ThreadPoolExecutor(1) as pool,
    ):
        silent.settimeout(45)
        following = pool.submit(one.follow, make_head(silent.getsockname()[1]), 45.0)
        with silent.accept()[0]:
            one.end_now()
            assert following.result(60) == "sh was lost: it was killed by SIGTERM"
