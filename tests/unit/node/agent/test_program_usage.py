"""Processors, memory and GPUs of programs: sent as percent of the time between two measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pslaunch.node import procs
from pslaunch.node.agent import program
from pslaunch.node.agent.program import GPUS_EVERY_S, GPUS_REST, REST, USAGE_EVERY_S, Usage
from pslaunch.node.loop import Loop


class Hand:
    """A clock and a loop that a test moves by hand."""

    def __init__(self) -> None:
        self.now_s, self.delay_s = 100.0, 0.0
        self.look: Callable[[], None] = lambda: None

    def now(self) -> float:
        return self.now_s

    def do(self, work: Callable[[], Any], then: Callable[[Any], None], fail: Any) -> None:
        try:
            found = work()
        except (ValueError, OSError) as e:
            fail(e)
        else:
            then(found)

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
    Usage(cast(Loop, hand), programs, with_gpus=False)
    for then_s in (USAGE_EVERY_S, USAGE_EVERY_S, 0.25 * REST):
        hand.now_s += USAGE_EVERY_S
        hand.look()
        assert hand.delay_s == then_s
    assert [[*used.values()] for used in told] == [
        [150.0, 60],
        [0.0, 70],
    ]  # the second: a child's time went with it


def test_use_of_gpus_is_sent_until_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    hand, told = Hand(), list[tuple[int, dict[str, float]]]()
    programs: dict[str, Any] = {
        str(pid): SimpleNamespace(
            process=SimpleNamespace(pid=pid),
            ended=pid == 9,
            note_usage=lambda used, pid=pid: told.append((pid, used)),
        )
        for pid in (7, 8, 9)
    }
    used = {"gpu_percent": 50.0, "gpu_bytes": 4}
    looks: Iterator[Any] = iter([{7: used, 9: used, 10: used}, ValueError("no answer"), {}, {}])

    def measure() -> Any:
        hand.now_s += 2.0 if told else 0.0  # a slow one
        if isinstance(found := next(looks), ValueError):
            raise found
        return found

    monkeypatch.setattr(program, "measure_gpus", measure)
    monkeypatch.setattr(program, "Aside", lambda _loop: hand)
    Usage(cast(Loop, hand), programs, with_gpus=True)
    for then_s in (GPUS_EVERY_S, 2.0 * GPUS_REST, 2.0 * GPUS_REST, 2.0 * GPUS_REST):
        hand.look()
        assert hand.delay_s == then_s
    assert told == [(7, used), (7, {"gpu_percent": 0.0, "gpu_bytes": 0})]
    for one in programs.values():
        one.ended = True
    hand.look()
    assert hand.delay_s == GPUS_EVERY_S, "nobody asks while nothing runs"
