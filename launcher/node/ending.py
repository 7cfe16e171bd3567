"""One ending: who is told what and when. Pure, fed with a clock value in seconds.

`supervise.py` has one for a whole job, or several; an agent whose head is gone one for what is left there.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import NamedTuple

from pslaunch.runtime.shared.env import PSERVER, TRAINER

KILL_WAIT_S = 2.0  # after KILL a node that does not report is given up, its keeper goes on
NEVER = float("inf")


class Signal(NamedTuple):
    """Send `number` to these processes; KILL means all that descends from them as well."""

    keys: tuple[str, ...]
    number: int


class Ending:
    """One ending: TERM to trainers, then to pservers, which save first, KILL after the grace.

    `alive` is role by key. Pservers are told when the trainers are gone, and after half the grace at
    the latest, so that they have time to save.
    """

    def __init__(self, roles: Mapping[str, str], grace_s: float, now_s: float) -> None:
        self._alive = dict(roles)
        self._told: set[str] = set()
        self._killed = False
        self._start_s, self._grace_s = now_s, grace_s
        self.over = False

    @property
    def keys(self) -> tuple[str, ...]:
        """What it is still ending."""
        return tuple(self._alive)

    @property
    def kill_at_s(self) -> float:
        return self._start_s + self._grace_s

    def kill_now(self, now_s: float) -> None:
        """A second request: no more waiting."""
        self._grace_s = min(self._grace_s, now_s - self._start_s)

    def gone(self, key: str) -> None:
        self._alive.pop(key, None)

    def actions(self, now_s: float) -> list[Signal]:
        """What is to be sent by now, each signal once."""
        if not self._alive:
            self.over = True
            return []
        if now_s >= self.kill_at_s:
            self.over = now_s >= self.kill_at_s + KILL_WAIT_S
            if self._killed:
                return []
            self._killed = True
            return [Signal(tuple(self._alive), signal.SIGKILL)]
        trainers = self._keys(TRAINER)
        due = list(trainers)
        if not trainers or now_s >= self._start_s + self._grace_s / 2:
            due += self._keys(PSERVER)
        new = tuple(key for key in due if key not in self._told)
        self._told.update(new)
        return [Signal(new, signal.SIGTERM)] if new else []

    def due_s(self, now_s: float) -> float:
        """When `actions` should be asked next even if nothing happens."""
        times = (self._start_s + self._grace_s / 2, self.kill_at_s, self.kill_at_s + KILL_WAIT_S)
        return min((t for t in times if t > now_s), default=NEVER)

    def _keys(self, role: str) -> list[str]:
        return [key for key, its_role in self._alive.items() if its_role == role]
