"""Use by programs: of processors sent as percent of the time between two measurements, with that of GPUs."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pslaunch.node import procs
from pslaunch.node.agent.program import REST, USAGE_EVERY_S, Usage
from pslaunch.node.loop import Loop


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
    Usage(cast(Loop, hand), programs, gpus)
    for then_s in (USAGE_EVERY_S, USAGE_EVERY_S, 0.25 * REST):
        hand.now_s += USAGE_EVERY_S
        hand.look()
        assert hand.delay_s == then_s
    assert [[*used.values()] for used in told] == [
        [150.0, 60, 9.0],
        [0.0, 70, 9.0],
    ]  # the second: a child's time went with it
