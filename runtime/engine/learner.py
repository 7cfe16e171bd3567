"""A learner computes the steps of a program with its parameters, for the trainers of v2 and of Fleet."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TypeVar

from .. import _core
from ..process.settings import get_settings
from .arrays import Ids
from .columns import Feeds
from .graph import Graph, Value
from .ops import Draw
from .parameters import Parameters
from .plan import BatchInput, Plan, StepResult
from .updater import Updater

_Item = TypeVar("_Item")


class Learner:
    """Plans of one program, with its parameters and the settings of this process. Each plan is made once.

    counts: sums of metrics over all steps so far, by the names of their values.
    """

    def __init__(self, program: Graph, parameters: Parameters) -> None:
        self._program, self._parameters, self._settings = program, parameters, get_settings()
        self._plans: dict[tuple[Value | None, ...], Plan] = {}
        self.steps = 0  # learned so far
        self.counts: dict[str, Ids] = {}

    def get_plan(self, targets: Sequence[Value], loss: Value | None = None) -> Plan:
        """Return the plan of these targets and this loss; raises ValueError if they can't be computed."""
        key = (loss, *targets)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = Plan(self._program, targets, loss, self._settings.trainer_count)
        return plan

    def prepare(self, feeds: Feeds, targets: Sequence[Value], loss: Value | None = None) -> BatchInput:
        """Return a batch for `train` or `compute`; raises ValueError naming data that does not fit."""
        return self.get_plan(targets, loss).prepare(feeds)

    def compute(self, batch: BatchInput) -> StepResult:
        """Compute a batch forward, with the current values and without dropout; nothing is learned."""
        values = {name: self._parameters.get_current(name) for name in batch.plan.dense}
        return batch.plan.compute(batch, values, self._parameters.get_rows(batch.keys), None, self.counts)

    def train(
        self, batch: BatchInput, updater: Updater, following: BatchInput | None = None, place: str = ""
    ) -> StepResult:
        """Compute a batch forward and backward, and update; `following` is the next one, if it is known.

        place: of the batch in the training, for messages. Without samples in the result it was left out.
        """
        if not self.steps:
            _core.keep_memory()
        values = {name: self._parameters.get_array(name) for name in batch.plan.dense}
        draw = Draw(seed=self._settings.seed, trainer=self._settings.trainer_id, step=self.steps)
        tables = updater.fetch(batch.keys, following.keys if following else {})
        try:
            between = functools.partial(updater.progress, batch.samples)
            result = batch.plan.compute(batch, values, tables, draw, self.counts, between)
            if updater.watch is not None:
                result = updater.watch.check(result, batch, values, f"step {self.steps + 1}{place}")
            updater.update(result.dense, result.sparse, result.samples)
        except BaseException:
            updater.abandon()
            raise
        self.steps += 1
        return result


def look_ahead(items: Iterator[_Item]) -> Iterator[tuple[_Item, _Item | None]]:
    """Yield each item with the next one, or None at the end. An error of an item is raised in its turn."""
    error: Exception | None = None
    item = next(items, None)
    while item is not None:
        try:
            following = next(items, None)
        except Exception as e:
            following, error = None, e
        yield item, following
        if error is not None:
            raise error
        item = following
