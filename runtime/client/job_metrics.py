"""Metrics over all workers, for their progress reports."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ..engine.arrays import Ids
from ..engine.graph import Value
from ..engine.ops import OPS
from ..engine.ops.metric import Metric
from .caller import Caller

EXCHANGE_S = 2.0  # an exchange takes some milliseconds
Row = tuple[str, Ids, Callable[[Ids], Mapping[str, float]]]


def list_states(values: Sequence[Value], states: Mapping[str, Ids]) -> Iterator[Row]:
    """Yield the metrics of a program that learns, by their names: `auc`, then `auc_1` for a second one.

    values: those that each run computes.
    """
    known = Counter[str]()
    for value in values:
        kind = OPS[value.op]
        if issubclass(kind, Metric) and value.name in states and not value.attrs.get("of_last"):
            count = known[kind.metric]
            known[kind.metric] += 1
            name = f"{kind.metric}_{count}" if count else kind.metric
            yield name, kind.condense(states[value.name]), kind.measure


class JobMetrics:
    """Metrics over all workers, by name: each gives sums in whole numbers, and the measure of their total."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_s = float("-inf")
        self._found: dict[str, float] = {}

    def measure(self, rows: Iterable[Row], client: Caller | None, *, last: bool = False) -> dict[str, float]:
        """Return the fields of a report, newer ones after EXCHANGE_S or for the `last` one.

        Workers wait for servers alone: others' samples count as of their own last report.
        """
        if self._clock() < self._next_s and not last:
            return self._found
        rows = list(rows)
        own = {name: sums for name, sums, _ in rows}
        total = own if client is None or not own else client.messages.add_up(own)
        found = [(name, measure(total[name])) for name, _, measure in rows]
        self._found = {f"metric.{name}{end}": x for name, some in found for end, x in some.items()}
        self._next_s = self._clock() + EXCHANGE_S
        return self._found
