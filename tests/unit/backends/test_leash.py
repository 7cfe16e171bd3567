"""The leash: its command ends with the launcher, at its request, or by itself, and leaves nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pslaunch.backends.leash import Leashed
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
def leashed(script: str) -> Iterator[tuple[Leashed, list[int]]]:
    """Yield a leash with this script, and the pids that the script has printed."""
    read_fd, write_fd = os.pipe()
    one = Leashed(["sh", "-c", script], os.environ, 60.0, stdout=write_fd)
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


def test_running_command_is_described_at_once() -> None:
    with leashed("echo; exec sleep 1000") as (one, _):
        assert one.describe() == ("it has not ended", False)


def test_leash_that_does_not_start_leaves_no_descriptor() -> None:
    folder = Path("/proc/self/fd")
    before = len([*folder.iterdir()])
    with pytest.raises(OSError, match="too long"):
        Leashed(["true", "x" * 10_000_000], os.environ, 1.0)
    assert len([*folder.iterdir()]) == before


def test_left_over_processes_of_the_session_end_with_the_command() -> None:
    with leashed("sleep 1000 & echo $!; kill -KILL $$") as (one, pids):
        assert one.wait(10)
        until_gone(pids[0], within_s=5)


def test_files_and_folders_end_with_the_command(tmp_path: Path) -> None:
    (folder := tmp_path / "folder").mkdir()
    (folder / "hosts").touch()
    (file := tmp_path / "file").touch()
    one = Leashed(["sleep", "1000"], os.environ, 0.1, removed=[str(folder), str(file)])
    one._sock.close()  # as by the launcher's end
    assert one._leash.wait(45) == 0
    one._said.close()
    assert [*tmp_path.iterdir()] == []


def test_absent_command_is_reported_as_by_a_shell(tmp_path: Path) -> None:
    one = Leashed([str(tmp_path / "mpirun")], os.environ, 1.0)
    try:
        assert one.wait(10)
        assert one.code == 127 and "No such file" in one.read_said()
    finally:
        one.close()


def test_closing_a_leash_leaves_no_descriptor() -> None:
    folder = Path("/proc/self/fd")
    before = len([*folder.iterdir()])
    with leashed(TWO):
        pass
    poll_until(lambda: len([*folder.iterdir()]) == before, describe="descriptors are left")


def test_command_follows_no_job_whose_head_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        head = {"addrs": ["127.0.0.1"], "port": gone.getsockname()[1], "secret": "00" * 32, "lost_after": 3.0}
    with leashed(TWO) as (one, _):
        assert "Connection refused" in one.follow(head, 3.0)
        assert one.describe() == ("it has not ended", False)
        one.end_now()
        assert one.wait(10)
        assert one.describe() == ("it was killed by SIGTERM", True)
