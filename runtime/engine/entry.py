"""Entry rules of tables: the keys that get a row, by the names of `paddle.distributed`.

csrc/tables/ps_entry.h has the rules, docs/training.md their use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["CountFilterEntry", "EntryAttr", "ProbabilityEntry", "ShowClickEntry"]

_MOST = 2**24  # numbers are exact as float32 up to it

PackedEntry = tuple[int, float, float]


@dataclass(frozen=True, slots=True)
class EntryAttr:
    """Rule by which a key of a table gets a row; this one admits each key with its first gradient."""

    def pack(self) -> PackedEntry:
        """Return the rule as the compiled core takes it."""
        return 0, 0.0, 0.0


@dataclass(frozen=True, slots=True)
class CountFilterEntry(EntryAttr):
    """Admits a key with its `count_filter`-th push: a trainer pushes a key once a batch.

    With 0 or 1 each key gets a row, and pushes are counted for `shrink`.
    """

    count_filter: int

    def __post_init__(self) -> None:
        count: object = self.count_filter
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= _MOST:
            raise ValueError(f"CountFilterEntry({count!r}): expected a whole number from 0 to {_MOST}")

    def pack(self) -> PackedEntry:
        return 1, float(max(self.count_filter, 1)), 0.0


@dataclass(frozen=True, slots=True)
class ProbabilityEntry(EntryAttr):
    """Admits a key with this probability in each step that pushes it."""

    probability: float

    def __post_init__(self) -> None:
        p: object = self.probability
        if not isinstance(p, float) or not 2**-24 <= p < 1:
            raise ValueError(f"ProbabilityEntry({p!r}): expected a number above 0 and below 1")

    def pack(self) -> PackedEntry:
        return 2, self.probability, 0.0


@dataclass(frozen=True, slots=True)
class ShowClickEntry(EntryAttr):
    """Admits a key with a score of `threshold`: (shows - clicks) * `show_weight` + clicks.

    Rows of other keys are zeros if `zeros`, else initial values. So a table of vectors with it, beside one of
    weights that admits all keys, makes rows of two stages, as PaddlePaddle's ctr accessor has them.

    show_name, click_name: the data with the shows and clicks of each sample, which count for each key of the
    sample. A push of such a table has rows [n, 2 + dim]: the key's shows and clicks in the batch come before
    its gradient. The defaults are those of PaddlePaddle's accessor (embedx_threshold, nonclk_coeff; its
    click_coeff is 1).
    """

    show_name: str
    click_name: str
    threshold: float = 10.0
    show_weight: float = 0.1
    zeros: bool = False

    def __post_init__(self) -> None:
        for name in ("show_name", "click_name"):
            text: object = getattr(self, name)
            if not isinstance(text, str) or not text:
                raise ValueError(f"ShowClickEntry({name}={text!r}): expected the name of data")
        for name in ("threshold", "show_weight"):
            number: object = getattr(self, name)
            if not isinstance(number, int | float) or not 0 <= number <= _MOST or math.isnan(number):
                raise ValueError(f"ShowClickEntry({name}={number!r}): expected a number from 0 to {_MOST}")

    def pack(self) -> PackedEntry:
        return 3, float(self.threshold), float(self.show_weight)


ANY = EntryAttr()
