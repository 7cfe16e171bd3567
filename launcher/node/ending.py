"""Order and times of the signals that end processes. Pure, fed with a clock value in seconds.

`supervisor.py` has one ending or several for a job; an agent without a head ends its own processes with one.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import NamedTuple

from pslaunch.runtime.shared.env import TRAINER

KILL_WAIT_S = 2.0  # for reports after KILL; then a node is given up, and its keeper continues
NEVER = float("inf")
CUT = 0  # no signal: a snapshot of its training is wanted


class Signal(NamedTuple):
    """Signal `number` for these processes; KILL also for all their descendants."""

    keys: tuple[str, ...]
    number: int


class LastCut(NamedTuple):
    """Wait for a snapshot before an ending: for half of its grace, and no longer if a program ends."""

    reason: str  # of the ending
    before: int  # step of the newest one when it was asked for
    alive: int  # programs then
    asked_s: float
    limit_s: float

    def is_over(self, step: int, alive: int, now_s: float) -> bool:
        return step != self.before or alive != self.alive or now_s >= self.limit_s


class Shutdown:
    """TERM to trainers, then to pservers, KILL to both after the grace.

    `roles`: role by key. Pservers get TERM when the trainers have ended, after half the grace at the
    latest, so that they have time to save.
    """

    def __init__(self, roles: Mapping[str, str], grace_s: float, now_s: float) -> None:
        self.alive = dict(roles)
        self._told: set[str] = set()
        self._killed = False
        self._half_s, self._kill_s = now_s + grace_s / 2, now_s + grace_s
        self.over = False

    def kill_now(self, now_s: float) -> None:
        self._kill_s = min(self._kill_s, now_s)

    def remove(self, key: str) -> None:
        self.alive.pop(key, None)

    def decide(self, now_s: float) -> list[Signal]:
        """Return the signals due by now, each once."""
        if not self.alive:
            self.over = True
            return []
        if now_s >= self._kill_s:
            self.over = now_s >= self._kill_s + KILL_WAIT_S
            if self._killed:
                return []
            self._killed = True
            return [Signal(tuple(self.alive), signal.SIGKILL)]
        all_due = now_s >= self._half_s or TRAINER not in self.alive.values()
        due = [key for key, role in self.alive.items() if all_due or role == TRAINER]
        new = tuple(key for key in due if key not in self._told)
        self._told.update(new)
        return [Signal(new, signal.SIGTERM)] if new else []

    def find_due_s(self, now_s: float) -> float:
        """Return the time of the next `decide` if nothing happens before."""
        times = (self._half_s, self._kill_s, self._kill_s + KILL_WAIT_S)
        return min((t for t in times if t > now_s), default=NEVER)
