"""When a snapshot is due: a count of steps, minutes on a clock, an agent's file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pslaunch.runtime.client import snapshots
from pslaunch.runtime.client.snapshots import ALL, EXPORT, Snapshots
from pslaunch.runtime.process.settings import SnapshotSettings


class Clock:
    """Stands where it is set."""

    now_s = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(snapshots, "time", SimpleNamespace(monotonic=lambda: found.now_s))
    return found


class Steps:
    """Steps of one trainer, none of which needs a pserver."""

    def __init__(
        self,
        *,
        steps: int = 0,
        minutes: float = 0.0,
        trainer: int = 0,
        progress: str = "",
        exports: int = 0,
    ) -> None:
        client: Any = SimpleNamespace(incarnation=1, cuts_next=None)
        self.client = client
        given: Any = SimpleNamespace(
            trainer_id=trainer,
            endpoints=[],
            snapshots=SnapshotSettings(steps=steps, minutes=minutes, export_steps=exports),
            job=SimpleNamespace(job_id="", epoch=0, progress=progress),
        )
        self._snapshots = Snapshots(given, client, sync=True, log=print, on_sealed=lambda: None)

    def ask(self) -> bool:
        """Make a step; return True if its push asks for a cut."""
        return self.ask_flags() is not None

    def ask_flags(self) -> int | None:
        """Make a step; return the flags with which its push asks for a cut."""
        self._snapshots.note_step()
        asks: int | None = self.client.cuts_next
        self.client.cuts_next = None
        return asks


def test_minutes_are_those_since_the_last_snapshot(clock: Clock) -> None:
    training = Steps(minutes=0.5)
    found = []
    for now_s in (1000.0, 1029.9, 1030.0, 1030.1, 1059.9, 1075.0, 1104.9, 1105.0):
        clock.now_s = now_s
        found.append(training.ask())
    assert found == [False, False, True, False, False, True, False, True]


def test_steps_and_minutes_count_from_the_same_snapshot(clock: Clock) -> None:
    training = Steps(steps=3, minutes=1.0)
    assert [training.ask() for _ in range(3)] == [False, False, True]
    clock.now_s += 59.0
    assert not training.ask()
    clock.now_s += 1.0
    assert training.ask()
    assert [training.ask() for _ in range(3)] == [False, False, True]


def test_trainer_0_alone_asks_in_step(clock: Clock) -> None:
    training = Steps(steps=1, trainer=1)
    assert not training.ask()


def test_an_export_waits_for_the_step_after_a_snapshot(clock: Clock) -> None:
    training = Steps(steps=4, exports=2)
    asked = [training.ask_flags() for _ in range(7)]
    assert asked == [None, EXPORT | ALL, None, 0, EXPORT | ALL, None, EXPORT | ALL]
    assert [Steps(exports=1, trainer=1).ask_flags() for _ in range(2)] == [None, None]


def test_an_agents_file_asks_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.cut").touch()
    (tmp_path / ".cut").touch()  # of the user
    training = Steps(steps=100, progress=str(tmp_path / "p"))
    assert training.ask() and not training.ask()
    assert not Steps(steps=100).ask() and (tmp_path / ".cut").exists()
