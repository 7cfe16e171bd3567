"""What `pslaunch check` asks of agents of this machine: one that is lost does not hold up the others."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pslaunch.backends.local import LocalBackend
from pslaunch.check import Looking, StoppedError
from pslaunch.findings import Seen
from pslaunch.node.job import Limits, Node
from pslaunch.node.loop import Loop
from pslaunch.node.wire import Message
from support import leaks
from support.jobs import parent_of

LIMITS = Limits(
    grace_s=1.0, lost_after_s=20.0, stall_after_s=60.0, stall_timeout_s=None, trainer_timeout_s=60.0
)


def question(_node: int) -> Message:
    nothing: Message = {"type": "look", "nic": "", "paths": {}, "files": [], "ports": [], "python": ""}
    return {**nothing, "lock": "/none", "modules": ["json", "no_such_thing"], "packages": [], "env": {}}


@pytest.fixture
def looking(tmp_path: Path) -> Iterator[Looking]:
    """Two agents on this machine."""
    node = Node(0, "a", "", str(tmp_path), str(tmp_path), str(tmp_path), str(tmp_path))
    backend, loop = LocalBackend(), Loop()
    one = Looking(loop)
    one.attach(backend.start([node, replace(node, id=1, name="b")], LIMITS), LIMITS.lost_after_s)
    yield one
    one.close()
    backend.close()
    loop.close()


def test_two_nodes_that_reach_each_other(looking: Looking) -> None:
    looking.look(question)
    looking.try_network()
    looking.end()
    for node, name in enumerate("ab"):
        seen = looking.seen(Seen(host=name), node)
        assert seen.facts is not None and not seen.lost and not seen.cut_off and seen.addr
        assert seen.facts["programs"]["missing"] == ["no_such_thing"]
        assert abs(seen.clock_off_s) < 1


def test_an_agent_that_is_killed(looking: Looking) -> None:
    looking.look(question)
    ours = leaks.processes_of_the_test()
    agent = next(pid for pid, words in ours.items() if "pslaunch.node" in words and parent_of(pid) in ours)
    os.kill(agent, signal.SIGKILL)
    looking.try_network()
    looking.end()
    seen = [looking.seen(Seen(host=name), node) for node, name in enumerate("ab")]
    assert len([one for one in seen if "the line was closed" in one.lost]) == 1
    assert len([one for one in seen if not one.lost]) == 1


def test_a_signal_ends_it(looking: Looking) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(StoppedError, match=str(int(signal.SIGTERM))):
        looking.look(question)
