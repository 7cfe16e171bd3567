"""Metrics over all workers, for their progress reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from ...client.caller import Caller
from ...engine.arrays import Ids
from ...engine.graph import Value
from ...engine.ops import OPS
from ...engine.ops.metric import Metric

PERIOD_S = 2.0  # an exchange takes a millisecond or two


class JobMetrics:
    """The metrics of a program that learns, by their names: `auc`, then `auc_1` for a second one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_s = float("-inf")
        self._found: dict[str, float] = {}

    def measure(
        self, values: Sequence[Value], states: Mapping[str, Ids], client: Caller | None, *, last: bool = False
    ) -> dict[str, float]:
        """Return the fields of a report, newer ones after PERIOD_S or for the `last` one.

        values: those that each run computes. Workers wait for servers alone: others' samples count as of
        their own last report.
        """
        if self._clock() < self._next_s and not last:
            return self._found
        own: dict[str, Ids] = {}
        kinds: dict[str, type[Metric]] = {}
        for value in values:
            kind = OPS[value.op]
            if issubclass(kind, Metric) and value.name in states and not value.attrs.get("of_last"):
                count = sum(one is kind for one in kinds.values())
                name = f"{kind.metric}_{count}" if count else kind.metric
                own[name], kinds[name] = kind.condense(states[value.name]), kind
        sums = own if client is None or not own else client.add_up(own)
        self._found = {f"metric.{name}": kind.measure(sums[name]) for name, kind in kinds.items()}
        self._next_s = self._clock() + PERIOD_S
        return self._found
