"""Optimizers, schedules, modes and distributions by name, and their numbers in the compiled core.

In csrc: kernels/ps_optim.h has the optimizers, tables/ps_schedule.h the schedules, wire/ps_frame.h the modes,
tables/ps_init.h the distributions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .. import _core

Method = Literal["sgd", "momentum", "adagrad", "fleet_adagrad", "adam", "fleet_momentum"]
METHODS: dict[str, int] = {name: number for number, (name, *_) in enumerate(_core.list_methods())}
SLOTS = tuple(slots for _, slots, _ in _core.list_methods())  # floats of state per value, by method
OWN = tuple(own for *_, own in _core.list_methods())  # names of a method's own numbers
SCHEDULES = tuple(_core.list_schedules())
Mode = Literal["sync", "half_async", "async", "geo"]
MODES: dict[Mode, int] = {"sync": 0, "half_async": 1, "async": 2, "geo": 3}
InitialKind = Literal["normal", "uniform"]
KINDS: dict[InitialKind, int] = {"normal": 0, "uniform": 1}

EPSILON = 1e-6  # v2's ada_epsilon

PackedSchedule = tuple[int, float, float, tuple[tuple[int, float], ...]]
PackedOptim = tuple[int, float, float, float, float, float, float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """Schedule of the learning rate: csrc/tables/ps_schedule.h has the formulas."""

    kind: str = "constant"
    a: float = 0.0
    b: float = 0.0
    segments: tuple[tuple[int, float], ...] = ()  # ends, ascending, and factors

    def pack(self) -> PackedSchedule:
        """Return the schedule as the compiled core takes it."""
        return SCHEDULES.index(self.kind), self.a, self.b, self.segments


@dataclass(frozen=True, kw_only=True, slots=True)
class Optim:
    """Update rule of one parameter; `learning_rate` is the global one times the parameter's own.

    A method uses those of momentum, epsilon, beta1 and beta2 that its row in csrc/kernels/ps_optim.c names.
    """

    method: Method
    learning_rate: float
    l1: float = 0.0
    decay: float = 0.0  # L2 rate
    clip: float = 0.0  # greatest magnitude of a gradient's value; 0: none
    momentum: float = 0.0
    epsilon: float = EPSILON
    beta1: float = 0.9
    beta2: float = 0.999
    schedule: Schedule = field(default_factory=Schedule)

    def pack(self) -> PackedOptim:
        """Return the rule as the compiled core takes it."""
        number = METHODS[self.method]
        own = [getattr(self, name) if name else 0.0 for name in OWN[number]]
        return (number, self.learning_rate, self.l1, self.decay, self.clip, own[0], own[1], own[2])

    def pack_at(self, samples: int, passes: int, factor: float) -> PackedOptim:
        """Return the rule of an update, after so many samples with its own, and complete passes.

        `factor`: of the learning rate.
        """
        rate = _core.find_rate(self.schedule.pack(), self.learning_rate, samples, passes, factor)
        packed = self.pack()
        return (packed[0], rate, *packed[2:])

    @property
    def state_floats(self) -> int:
        """Number of state floats per value."""
        return SLOTS[METHODS[self.method]]
