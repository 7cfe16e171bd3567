"""Updater of a trainer that trains its own copy and exchanges changes with the others every few steps.

With b what it had at the last exchange, x what it has and n trainers, it pushes (b - x) / n to objects whose
rule is value -= push, takes their values s, and then x += s - (x at the push) and b = s: the mean of models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _core
from ..engine.arrays import F32, U64, Index
from ..engine.entry import ANY
from ..engine.kernel_numbers import Optim
from ..engine.updater import Keys, Sparse
from .remote import RemoteUpdater

ADDS = Optim(method="sgd", learning_rate=1.0)


@dataclass(kw_only=True, slots=True)
class _Copy:
    """A trainer's copy of values, and those of the last exchange."""

    own: F32
    base: F32

    def make_change(self, trainers: int) -> F32:
        """Return what is pushed."""
        return (self.base - self.own) / np.float32(trainers)

    def take(self, place: slice, pushed: F32, values: F32) -> None:
        """Take the pservers' values after a push, for which `pushed` was the own copy."""
        self.own[place] += values - pushed
        self.base[place] = values


class _Rows:
    """Rows of a table that were used since the last exchange. A row keeps its place until keep_used()."""

    def __init__(self, cols: int) -> None:
        self.count = 0
        self._keys = np.empty(0, np.uint64)  # by place, as the next three; the first `count` are in use
        self._used = np.empty(0, np.bool_)  # since the last push
        self._own, self._base = (np.empty((0, cols), np.float32) for _ in range(2))
        self._sorted = np.empty(0, np.uint64)  # all keys in order, and their places
        self._places = np.empty(0, np.intp)
        self._found: tuple[U64, Index] | None = None  # the last keys of find()

    @property
    def keys(self) -> U64:
        """The keys by place."""
        return self._keys[: self.count]

    @property
    def copy(self) -> _Copy:
        """The values by place."""
        return _Copy(own=self._own[: self.count], base=self._base[: self.count])

    def find(self, keys: U64) -> Index:
        """Return the places of these keys, which must be here."""
        if self._found is None or self._found[0] is not keys:
            self._found = keys, self._places[np.searchsorted(self._sorted, keys)]
        return self._found[1]

    def find_missing(self, keys: U64) -> U64:
        """Return those of the keys that are not here."""
        if not self.count:
            return keys
        near = np.searchsorted(self._sorted, keys)
        near[near == self.count] = 0
        new = self._sorted[near] != keys
        if not new.any():
            self._found = keys, self._places[near]
        missing: U64 = keys[new]
        return missing

    def insert(self, keys: U64, values: F32) -> None:
        """Add missing rows."""
        begin, self.count = self.count, self.count + len(keys)
        if self.count > len(self._keys):
            room = 2 * self.count  # where np.resize() repeats what there is
            self._keys, self._used = np.resize(self._keys, room), np.resize(self._used, room)
            shape = room, self._own.shape[1]
            self._own, self._base = np.resize(self._own, shape), np.resize(self._base, shape)
        self._keys[begin : self.count] = keys
        self._used[begin : self.count] = False
        self._own[begin : self.count] = self._base[begin : self.count] = values
        order = np.argsort(keys)
        at = np.searchsorted(self._sorted, keys[order])
        self._sorted = np.insert(self._sorted, at, keys[order])
        self._places = np.insert(self._places, at, begin + order)

    def note_used(self, places: Index) -> None:
        """Note that a step has used these rows."""
        self._used[places] = True

    def note_pushed(self) -> None:
        """Note that all rows are on their way: none is used since."""
        self._used[: self.count] = False

    def keep_used(self) -> None:
        """Forget rows that no step has used since the last push."""
        used = self._used[: self.count]
        kept = used[self._places]
        self._sorted, self._places = self._sorted[kept], (np.cumsum(used) - 1)[self._places[kept]]
        self._keys = self.keys[used]
        self._own, self._base = self.copy.own[used], self.copy.base[used]
        self._used = used[used]
        self.count, self._found = len(self._keys), None


@dataclass(kw_only=True, slots=True)
class _Exchange:
    """A push on its way: the own values at the push, and places for those of the pservers."""

    call: int
    dense: dict[str, tuple[F32, F32]]
    rows: dict[str, tuple[F32, F32]]


class GeoUpdater(RemoteUpdater):
    """Applies gradients to its own copy, and exchanges it every `k_steps` steps and at the end of a pass."""

    reads_ahead = False

    def __init__(self, *args: Any, k_steps: int, trainers: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self._k_steps, self._trainers = k_steps, trainers
        self._steps = self._samples = self._passes = 0
        self._dense: dict[str, _Copy] = {}
        self._rows: dict[str, _Rows] = {}
        self._exchange: _Exchange | None = None
        for name in self._params.sparse:
            if self._params.configs[name].entry != ANY:
                raise ValueError(
                    f"parameter {name}: geo has no entry rules, but it has {self._params.configs[name].entry}"
                )
        for name, rule in self._params.rules.items():
            if rule.kernel.slots or rule.kernel.by_row:
                remedy = ": use Momentum(momentum=0)" if rule.method.endswith("momentum") else ""
                raise ValueError(f"parameter {name}: geo trains with SGD, not with {rule.method}{remedy}")

    def _get_server_rule(self, name: str) -> Optim:
        return ADDS

    def start(self) -> None:
        if self._exchange is not None:  # of a training that was interrupted
            self.client.wait(self._exchange.call)
            self._exchange = None
        super().start()
        self._begin_pass()

    def _begin_pass(self) -> None:
        self._dense = {name: _Copy(own=own, base=own.copy()) for name, own in self._get_dense().items()}
        self._rows = {name: _Rows(self._parameters.get_shape(name)[1]) for name in self._params.sparse}

    def fetch(self, keys: Keys, ahead: Keys) -> Mapping[str, F32]:
        own = {name: used for name, used in keys.items() if name in self._rows}
        missing = {
            name: new for name, used in own.items() if (new := self._rows[name].find_missing(used)).size
        }
        for name, values in self._parameters.get_rows(missing).items():
            self._rows[name].insert(missing[name], values)
        rest = self._parameters.get_rows({name: used for name, used in keys.items() if name not in own})
        found = {
            name: rows.copy.own[rows.find(own[name])] for name, rows in self._rows.items() if name in own
        }
        return {**rest, **found}

    def progress(self) -> None:
        if self._exchange is not None:
            self.client.progress()

    def update(self, dense: Mapping[str, F32], sparse: Sparse, samples: int) -> None:
        """Apply one step to the own copy; begin an exchange if it is time."""
        self._note_step()
        self._steps += 1
        self._samples += samples * self._trainers  # schedules count all trainers' samples: about as many
        factor = self._params.factor
        grads, sparse = self._params.collect_grads(dense, sparse)
        for name, grad in grads.items():
            rule = self._params.rules[name].pack_at(self._samples, self._passes, factor)
            _core.apply_optim(rule, self._steps, self._dense[name].own, None, grad)
        for name, rows in self._rows.items():
            keys, grad = sparse[name]
            places = rows.find(keys)
            rows.note_used(places)
            rule = self._params.rules[name].pack_at(self._samples, self._passes, factor)
            _core.apply_sparse(rule, self._steps, rows.copy.own, None, places.astype(np.uint64), grad)
        self.progress()
        if self._exchange is not None and self.client.is_done(self._exchange.call):
            self._end_exchange()
        if self._steps % self._k_steps == 0:
            self._begin_exchange()

    def _begin_exchange(self) -> None:
        self._end_exchange()
        changes = {name: copy.make_change(self._trainers) for name, copy in self._dense.items()}
        row_changes = {
            name: (rows.keys, rows.copy.make_change(self._trainers)) for name, rows in self._rows.items()
        }
        dense = {name: (copy.own.copy(), np.empty_like(copy.own)) for name, copy in self._dense.items()}
        rows = {
            name: (rows.copy.own.copy(), np.empty_like(rows.copy.own)) for name, rows in self._rows.items()
        }
        for one in self._rows.values():
            one.note_pushed()
        call = self.client.push_pull(
            changes,
            {name: values for name, (_, values) in dense.items()},
            row_changes,
            {name: (self._rows[name].keys, values) for name, (_, values) in rows.items()},
            wait=False,
        )
        self._exchange = _Exchange(call=call, dense=dense, rows=rows)
        self.client.progress()

    def _end_exchange(self) -> None:
        """Wait for the exchange on its way, if any, and take its values."""
        if self._exchange is None:
            return
        self.client.wait(self._exchange.call)
        for name, (pushed, values) in self._exchange.dense.items():
            self._dense[name].take(slice(None), pushed, values)
        for name, (pushed, values) in self._exchange.rows.items():
            rows = self._rows[name]
            rows.copy.take(slice(len(values)), pushed, values)
            rows.keep_used()
        self._exchange = None

    def finish(self) -> None:
        if not self.client.is_closed:
            self._exchange_rest()
        super().finish()

    def _exchange_rest(self) -> None:
        self._begin_exchange()
        self._end_exchange()

    def end_pass(self) -> None:
        """Exchange the rest; all trainers read the values anew."""
        self._exchange_rest()
        super().end_pass()
        self._passes += 1
        self._begin_pass()
