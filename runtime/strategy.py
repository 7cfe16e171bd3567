"""Modes of a training with pservers, and the rule by which late gradients are dropped. Pure.

docs/training.md says what each mode guarantees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from .kernel_numbers import Mode

DISCARD_RATIO = 1.5  # v2's, where is_async gives none above 1
RATIO = "async_lagged_grad_discard_ratio"


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """Mode of all objects of a training. Trainers that differ in it are refused."""

    mode: Mode = "sync"
    discard_ratio: float | None = None  # None: no gradient is dropped
    pending: int = 1  # async: pushes on their way while the trainer goes on
    k_steps: int = 0  # geo: steps between two exchanges

    def __post_init__(self) -> None:
        if self.pending < 1 or (self.pending > 1 and self.mode != "async"):
            raise ValueError(
                f"Strategy(pending={self.pending}): expected at least 1, and 1 unless mode is async"
            )
        if self.k_steps < (self.mode == "geo") or (self.k_steps and self.mode != "geo"):
            raise ValueError(f"Strategy(k_steps={self.k_steps}): expected at least 1 in geo, else 0")
        if self.discard_ratio is not None and self.mode not in ("half_async", "async"):
            raise ValueError(
                f"Strategy(discard_ratio={self.discard_ratio}) has no effect in mode {self.mode}"
            )

    def count_discard(self, trainers: int) -> int:
        """Return the updates since its values were read that make a push late; 0: none do."""
        if self.discard_ratio is None:
            return 0
        return math.floor(Fraction(repr(self.discard_ratio)) * trainers)  # 2.3 * 10 is 22.99... as floats


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
