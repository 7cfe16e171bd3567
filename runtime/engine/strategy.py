"""Modes of a training with pservers, and the rule by which late gradients are dropped. Pure.

docs/training.md says what each mode guarantees.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import get_args

from .kernel_numbers import Mode

DISCARD_RATIO = 1.5  # v2's, where is_async gives none above 1
RATIO = "async_lagged_grad_discard_ratio"
MOST_UPDATES = 2**32 - 1  # the core counts in 32 bits
_NUMBERS: Mapping[str, tuple[object, ...]] = {  # the default of each, and the modes that have it
    "pending": (1, "async"),
    "k_steps": (0, "geo"),
    "discard_ratio": (None, "half_async", "async"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """Mode of all objects of a training. Trainers that differ in it are refused."""

    mode: Mode = "sync"
    discard_ratio: float | None = None  # None: no gradient is dropped
    pending: int = 1  # async: pushes on their way while the trainer continues
    k_steps: int = 0  # geo: steps between two exchanges

    def __post_init__(self) -> None:
        mode = self.mode
        ratio: object = self.discard_ratio
        if mode not in get_args(Mode):
            raise ValueError(f"Strategy(mode={mode!r}): expected sync, half_async, async or geo")
        for name in ("pending", "k_steps"):
            value: object = getattr(self, name)
            if not isinstance(value, int):
                raise TypeError(f"Strategy({name}={value!r}): expected a whole number")
        if self.pending < 1:
            raise ValueError(f"Strategy(pending={self.pending}): expected at least 1")
        if mode == "geo" and self.k_steps < 1:
            raise ValueError(f'Strategy(k_steps={self.k_steps}): mode="geo" needs k_steps of at least 1')
        if ratio is not None and (not isinstance(ratio, int | float) or not 0.0 < ratio < math.inf):
            raise ValueError(f"Strategy(discard_ratio={ratio!r}): expected a finite number above 0")
        for name, (default, *modes) in _NUMBERS.items():
            if (given := getattr(self, name)) != default and mode not in modes:
                raise ValueError(f"Strategy({name}={given}): {name} has no effect in mode {mode}")

    def __str__(self) -> str:
        """Return the mode and the numbers of a training, for its log."""
        numbers = {name: getattr(self, name) for name, (_, *modes) in _NUMBERS.items() if self.mode in modes}
        shown = (f"{name} {value}" for name, value in numbers.items() if value is not None)
        return ", ".join([f"mode {self.mode}", *shown])

    def count_discard(self, trainers: int) -> int:
        """Return the updates since its values were read that make a push late; 0: none do."""
        if self.discard_ratio is None:
            return 0
        # As floats 2.3 * 10 is 22.99...
        exact = math.floor(Fraction(repr(float(self.discard_ratio))) * trainers)
        return min(max(exact, 1), MOST_UPDATES)


def make_v2_strategy(is_async: object, ratio: object, where: str) -> tuple[Strategy, str]:
    """Return the strategy of v2's options, and a warning or ""; raises ValueError beginning with `where`."""
    if ratio is not None and not is_async:
        raise ValueError(f"{where}: {RATIO}={ratio!r} has no effect without is_async=True")
    if not is_async:
        return Strategy(), ""
    if ratio is None:
        given = "is not given"
    elif not isinstance(ratio, int | float) or not 0.0 <= ratio < math.inf:
        raise ValueError(f"{where}: {RATIO}={ratio!r}, expected a finite number, not negative")
    elif ratio > 1.0:
        return Strategy(mode="half_async", discard_ratio=float(ratio)), ""
    else:
        given = f"{ratio!r} is not above 1"
    note = f"{where}: {RATIO} {given}; {DISCARD_RATIO} is used, as in v2"
    return Strategy(mode="half_async", discard_ratio=DISCARD_RATIO), note
