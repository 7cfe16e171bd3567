"""Agents of this machine answer `pslaunch check`: a lost agent does not hold up the others."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pslaunch.backends.local.backend import LocalBackend
from pslaunch.check.findings import Wanted
from pslaunch.check.inspection import Inspection
from pslaunch.node.agent.inspect import find_lock_holder
from pslaunch.node.job import Limits, Node
from pslaunch.node.line.wire import BEAT
from pslaunch.node.loop import Loop
from support import leaks
from support.jobs import parent_of, until_nothing_runs
from support.process import poll_until, started

LIMITS = Limits(
    grace_s=1.0, lost_after_s=20.0, stall_after_s=60.0, stall_timeout_s=None, trainer_timeout_s=60.0
)


def question(_node: int) -> Any:
    return {
        "nic": "", "paths": {"workspace": "/tmp"}, "files": [], "ports": [], "python": "", "links": [],
        "pins": [], "lock": "/none", "packages": [], "env": {}, "bind_cores": False,
        "modules": ["json", "no_such_thing"],
    }  # fmt: skip


@pytest.fixture
def here(tmp_path: Path) -> Node:
    """This machine."""
    return Node(0, "a", "", str(tmp_path), str(tmp_path), str(tmp_path), str(tmp_path))


@pytest.fixture
def inspection(here: Node) -> Iterator[Inspection]:
    """Two agents on this machine."""
    backend, loop = LocalBackend(), Loop()
    started = backend.start([here, here._replace(id=1, name="b")], LIMITS)
    one = Inspection(loop, started, Wanted(), LIMITS.lost_after_s)
    yield one
    one.close()
    backend.close()
    loop.close()


def test_an_agent_that_is_killed(inspection: Inspection) -> None:
    inspection.ask_facts(question)
    ours = leaks.processes_of_the_test()
    agent = next(pid for pid, words in ours.items() if "pslaunch.node" in words and parent_of(pid) in ours)
    os.kill(agent, signal.SIGKILL)
    inspection.try_network()
    inspection.end()
    seen = [*inspection.list_seen().values()]
    assert len([one for one in seen if "the line was closed" in one.lost]) == 1
    assert len([one for one in seen if not one.lost]) == 1


def test_an_agent_waits_for_its_first_word_as_long_as_the_launcher_beats(here: Node) -> None:
    backend, loop = LocalBackend(), Loop()
    with contextlib.closing(loop), contextlib.closing(backend):
        ((_, line),) = backend.start([here], LIMITS._replace(lost_after_s=3.0))
        said = b""
        while said.count(BEAT) < 4:  # it beats every second: nothing else was said for longer than that
            said += (piece := os.read(line.read_fd, 4096))
            assert piece, line.diagnosis()
            os.write(line.write_fd, BEAT)
        until_nothing_runs(within_s=8.0)
        os.close(line.read_fd)
        os.close(line.write_fd)


def test_process_that_waits_for_a_lock_is_not_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text("job-1\n")
    assert find_lock_holder(str(path)) == ""
    waiting = "import fcntl, sys\nwith open(sys.argv[1]) as f: fcntl.flock(f, fcntl.LOCK_EX)"
    with path.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with started([sys.executable, "-c", waiting, str(path)]) as waiter:
            poll_until(lambda: f"-> FLOCK  ADVISORY  WRITE {waiter.pid}" in locks(), describe=locks)
            assert find_lock_holder(str(path)) == "job-1"


def locks() -> str:
    return Path("/proc/locks").read_text()
