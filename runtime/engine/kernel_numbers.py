"""Optimizers, schedules, modes and distributions by name, and their numbers in the compiled core.

In csrc: kernels/ps_optim.h has the optimizers, tables/ps_schedule.h the schedules, wire/ps_frame.h the modes,
tables/ps_init.h the distributions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from .. import _core


@dataclass(frozen=True, slots=True)
class Kernel:
    """A row of the table of methods in csrc/kernels/ps_optim.c."""

    number: int
    slots: int  # floats of state per value
    by_row: bool  # in place of slots one state for each row; for tables alone
    whole: bool  # for dense parameters alone, each on one shard
    numbers: Mapping[str, float]  # its own, with their usual values

    def get_state_shape(self, rows: int, cols: int) -> tuple[int, int, int]:
        """Return the shape of the state of a matrix."""
        return (1, rows, 1) if self.by_row else (self.slots, rows, cols)


KERNELS = {
    name: Kernel(number, slots, by_row, whole, {own: usual for own, usual in numbers if own is not None})
    for number, (name, slots, by_row, whole, numbers) in enumerate(_core.list_methods())
}
OF_ROWS = ("row_adagrad", "lazy_adam")  # forms of methods for tables with sparse updates
SCHEDULES = tuple(_core.list_schedules())
Mode = Literal["sync", "half_async", "async", "geo"]
MODES: dict[Mode, int] = {"sync": 0, "half_async": 1, "async": 2, "geo": 3}
InitialKind = Literal["normal", "uniform", "late normal", "late uniform"]  # late: zeros until the row is made
KINDS: dict[InitialKind, int] = {"normal": 0, "uniform": 1, "late normal": 2, "late uniform": 3}
LATE: dict[InitialKind, InitialKind] = {"normal": "late normal", "uniform": "late uniform"}

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
        return SCHEDULES.index(self.kind), self.a, self.b, self.segments


@dataclass(frozen=True, kw_only=True, slots=True)
class Optim:
    """Update rule of one parameter; `learning_rate` is the global one times the parameter's own.

    csrc/kernels/ps_optim.h has the methods. `numbers`: those of the method's own that are not the usual ones.
    """

    method: str
    learning_rate: float
    l1: float = 0.0
    decay: float = 0.0  # L2 rate
    clip: float = 0.0  # greatest magnitude of a gradient's value; 0: none
    numbers: Mapping[str, float] = field(default_factory=dict)
    schedule: Schedule = field(default_factory=Schedule)

    def pack(self) -> PackedOptim:
        own = [*(self.numbers.get(*usual) for usual in self.kernel.numbers.items()), 0.0, 0.0, 0.0]
        rates = self.learning_rate, self.l1, self.decay, self.clip
        return (self.kernel.number, *rates, own[0], own[1], own[2])

    def pack_at(self, samples: int, passes: int, factor: float) -> PackedOptim:
        """Return the rule of an update, after so many samples with its own, and complete passes.

        `factor`: of the learning rate.
        """
        packed = self.pack()
        return (packed[0], self.find_rate(samples, passes, factor), *packed[2:])

    def find_rate(self, samples: int, passes: int, factor: float) -> float:
        return _core.find_rate(self.schedule.pack(), self.learning_rate, samples, passes, factor)

    @property
    def kernel(self) -> Kernel:
        return KERNELS[self.method]
