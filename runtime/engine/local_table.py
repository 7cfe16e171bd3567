"""A table in this process: its rows come into being when they learn or are set, as on a pserver's port."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .. import _core
from ..files.joined import find_items, read_rows
from ..files.objects import Whole
from ..files.sets import Set, count_before
from .arrays import CHUNK_BYTES, F32, U64, split_rows
from .entry import ANY
from .keeping import NO_RULE, State, get_bytes, make_create, read_array, read_state
from .kernel_numbers import KINDS, Optim
from .param_config import ParamConfig

NONE = np.empty((0, 3), np.float32)


class LocalTable:
    """Rows by 64-bit key with the optimizer's state; one that is not there reads as its initial values."""

    def __init__(
        self, config: ParamConfig, rule: Optim = NO_RULE, seed: int = 0, *, beside: bool = False
    ) -> None:
        """`beside`: a row has as many further floats as values."""
        self.config, self.rule, self.seed = config, rule, seed
        init = seed, _core.hash_name(config.name), KINDS[config.start], config.mean, config.std
        self.before = State()  # steps, samples and passes of the set that it comes from
        self.core = _core.Table(config.cols, rule.pack(), init, config.entry.pack(), beside)
        slots, _, width = rule.kernel.get_state_shape(1, config.cols)
        self._rest = slots * width + beside * config.cols

    def read(self, keys: U64) -> F32:
        """Return the values of rows, [n, cols]."""
        out = np.empty((len(keys), self.config.cols), np.float32)
        self.core.read(keys, out)
        return out

    def learn(self, rate: float, step: int, keys: U64, grads: F32) -> None:
        """Apply a step; grads: [n, cols], with a ShowClickEntry after shows and clicks."""
        self.core.learn(rate, step, keys, grads)

    def set_whole(self, values: F32) -> None:
        """Take the values of all rows, [rows, cols]; those that differ are made."""
        for at, keys in split_rows(*values.shape):
            used = (values[at].view(np.uint32) != self.read(keys).view(np.uint32)).any(axis=1)
            self.core.load(keys[used], values[at][used], NONE)

    def take(self, other: LocalTable) -> None:
        """Take the values of another one's rows."""
        for keys, rows, _ in other.split():
            self.core.load(keys, np.ascontiguousarray(rows[:, : self.config.cols]), NONE)

    def load(self, found: Set) -> None:
        """Take the rows of a set, with state and counts if they are those of this rule. Raises SetError."""
        shape, cols = found.shapes[self.config.name], self.config.cols
        kept = shape.method == self.rule.method and not shape.fixed
        if kept:
            self.before = State(slots=None, **count_before(find_items(found, shape.name)))
        if not shape.table:
            self._load_dense(found)
            return
        width, counted = cols + self._rest * kept, self.config.entry != ANY
        for waiting in (False, True) if counted else (False,):
            for keys, rows, counts in read_rows(found, shape.name, waiting=waiting):
                self.core.load(keys, np.ascontiguousarray(rows[:, :width]), counts if counted else NONE)

    def _load_dense(self, found: Set) -> None:
        state = read_state(found, self.config, self.rule)
        parts = read_array(found, self.config), *(() if state is None or state.slots is None else state.slots)
        for at, keys in split_rows(*self.config.shape):
            self.core.load(keys, np.concatenate([one[at] for one in parts], axis=1), NONE)

    def split(self, *, waiting: bool = False) -> Iterator[tuple[U64, F32, F32]]:
        """Yield keys [n], rows with state [n, ..] and counts [n, 3] in pieces; of waiting keys no rows."""
        left, number = self.core.count()[waiting], 0
        step = max(1, CHUNK_BYTES // (4 * (self.config.cols + self._rest)))
        while left > 0:
            n = min(step, left)
            rows, counted = 0 if waiting else n, n if self.config.entry != ANY else 0
            keys, counts = np.empty(n, np.uint64), np.empty((counted, 3), np.float32)
            values, rest = (np.empty((rows, width), np.float32) for width in (self.config.cols, self._rest))
            number = self.core.copy(number, keys, values, rest, counts)
            left -= n
            yield keys, np.concatenate([values, rest], axis=1), counts

    def make_whole(self, state: State) -> Whole:
        """Return the table for a set."""
        count, waiting = self.core.count()
        parts = (part[i] for i in range(3) for own in (False, True) for part in self.split(waiting=own))
        return Whole(
            shape=self.config.shape,
            create=make_create(self.config, self.rule, self.seed, table=True),
            count=count,
            waiting=waiting,
            pieces=map(get_bytes, parts),
            steps=state.steps,
            samples=state.samples,
            passes=state.passes,
        )
