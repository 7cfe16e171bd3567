"""Updater of a trainer that continues while its pushes are on their way."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import _core
from ..engine.arrays import F32, U64, find_rows, sum_rows
from ..engine.updater import Keys, Sparse
from .remote import RemoteUpdater

Dense = dict[str, F32]  # by parameter


class AsyncUpdater(RemoteUpdater):
    """Has up to `pending` pushes on their way, each of up to `pending` batches; waits only if there are more.

    Dense values and rows are as old as these pushes; they change only between two batches.
    """

    def __init__(self, *args: Any, pending: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self._pending = pending
        self._calls: deque[tuple[int, Dense, Dense]] = deque()  # with gradients, and arrays for values
        self._spare: list[Dense] = []  # arrays for further ones: fresh memory costs more than a copy
        self._dense: Dense = {}  # the sum of gradients that no push has taken yet
        self._sparse: dict[str, tuple[U64, F32]] = {}
        self._summed = self._samples = 0
        self._pushes: Counter[int] = Counter()  # by their batches, since the last line of the log

    def fetch(self, keys: Keys, ahead: Keys) -> Mapping[str, F32]:
        rows = super().fetch(keys, ahead)
        self._ask_rows(ahead)
        return rows

    def _mark(self) -> None:
        if not self._summed:
            self._take_values()
        self.client.mark(more=self._summed > 0)  # a sum is as old as its first gradient

    def update(self, dense: Mapping[str, F32], sparse: Sparse, samples: int) -> None:
        """Add gradients to the sum, and push it unless too many pushes are on their way."""
        self.client.progress()
        self._take_values()
        self._note_step()
        self._add(*self._params.collect_grads(dense, sparse))
        self._samples += samples
        if self._summed >= self._pending and len(self._calls) >= self._pending:
            self.client.wait(self._calls[0][0])
            self._take_values()
        if len(self._calls) < self._pending:
            self._push()

    def _add(self, dense: Mapping[str, F32], sparse: Sparse) -> None:
        self._dense = self._dense or self._take_spare()
        for name, grad in dense.items():
            if self._summed:
                _core.add(self._dense[name], grad)
            else:
                np.copyto(self._dense[name], grad)
        for name in self._params.sparse:
            self._sparse[name] = _merge(self._sparse[name], sparse[name]) if self._summed else sparse[name]
        self._summed += 1

    def _take_spare(self) -> Dense:
        """Return an array of any content for each dense parameter."""
        shapes = {name: self._parameters.get_shape(name) for name in self._params.dense}
        return self._spare.pop() if self._spare else {name: np.empty(s, "f4") for name, s in shapes.items()}

    def _push(self) -> None:
        fresh = self._take_spare()
        call = self.client.push_pull(
            self._dense, fresh, self._sparse, samples=self._samples, factor=self._params.factor, wait=False
        )
        self._calls.append((call, self._dense, fresh))
        self._pushes[self._summed] += 1
        self._dense, self._sparse, self._summed, self._samples = {}, {}, 0, 0

    def _take_values(self) -> None:
        """Take the values that came with complete pushes."""
        while self._calls and self.client.is_done(self._calls[0][0]):
            _, grads, fresh = self._calls.popleft()
            self._spare += grads, fresh
            for name, values in fresh.items():
                np.copyto(self._parameters.get_array(name), values)

    def start(self) -> None:
        self._push_rest()  # of a training that was interrupted
        super().start()

    def end_pass(self) -> None:
        self._push_rest()
        if (most := max(self._pushes, default=1)) > 1:
            batches, pushes = sum(n * count for n, count in self._pushes.items()), self._pushes.total()
            self.client.log(f"async: {batches} batches in {pushes} pushes, at most {most} in one")
        self._pushes.clear()
        super().end_pass()

    def finish(self) -> None:
        if not self.client.is_closed:
            self._push_rest()
        super().finish()

    def _push_rest(self) -> None:
        if self._summed:
            self._push()
        while self._calls:
            self.client.wait(self._calls[0][0])
            self._take_values()


def _merge(first: tuple[U64, F32], second: tuple[U64, F32]) -> tuple[U64, F32]:
    """Return the keys of both with the sums of their rows."""
    keys = np.concatenate([first[0], second[0]]).view(np.int64)
    rows = find_rows({"": (2**63, keys)})[""]
    return rows.keys, sum_rows(len(rows.keys), rows.index, [first[1], second[1]])
