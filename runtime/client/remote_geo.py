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
from ..engine.arrays import F32, U64
from ..engine.entry import ANY
from ..engine.keeping import NO_SLOTS, NONE, LocalTable
from ..engine.kernel_numbers import Optim
from ..engine.updater import Keys, Sparse
from .remote import RemoteUpdater

ADDS = Optim(method="sgd", learning_rate=1.0)


class _Rows(LocalTable):
    """Rows of a table that were used since the last exchange. The base of a row lies beside it."""

    def sort_out(self, keys: U64) -> tuple[U64, U64]:
        """Return the keys that are not here, in order, and the others."""
        found = np.empty_like(keys)
        missing = self.core.find_missing(keys, found)
        return found[:missing], found[missing:]

    def take_changes(self, trainers: int) -> tuple[U64, F32]:
        """Return what is pushed of all rows, and forget them."""
        count, _ = self.core.count()
        keys, changes = np.empty(count, np.uint64), np.empty((count, self.config.cols), np.float32)
        self.core.read_changes(trainers, keys, changes)
        self.core.clear()
        return keys, changes


@dataclass(kw_only=True, slots=True)
class _Exchange:
    """A push on its way: the own values at the push, and places for those of the pservers."""

    call: int
    dense: dict[str, tuple[F32, F32]]
    rows: dict[str, tuple[U64, F32, F32]]  # with the keys, of rows that the next step uses too


class GeoUpdater(RemoteUpdater):
    """Applies gradients to its own copy, and exchanges it every `k_steps` steps and at the end of a pass."""

    def __init__(self, *args: Any, k_steps: int, trainers: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self._k_steps, self._trainers = k_steps, trainers
        self._steps = self._samples = self._passes = self._pushed = 0  # _pushed: steps before an exchange
        self._base: dict[str, F32] = {}  # dense values of the last exchange
        self._rows: dict[str, _Rows] = {}
        self._exchange: _Exchange | None = None
        self._here: Keys = {}  # the keys of the next step, if all its rows are here or come
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
        self._pushed = self._steps
        self._base = {name: own.copy() for name, own in self._get_dense().items()}
        configs, rules = self._params.configs, self._params.rules
        for name in self._params.sparse:
            self._rows.setdefault(name, _Rows(configs[name], rules[name], beside=True)).core.clear()
        self._here = {}

    def fetch(self, keys: Keys, ahead: Keys) -> Mapping[str, F32]:
        self._coming, here, self._here = ahead, self._here, {}
        for name, (own, values) in self._take_asked().items():
            self._rows[name].core.load(own, values, NONE)
        wanted = {
            name: self._rows[name].sort_out(own)[0] if name in self._rows else own
            for name, own in keys.items()
            if own is not here.get(name)
        }
        found = self._parameters.get_rows({name: own for name, own in wanted.items() if len(own)})
        for name, rows in self._rows.items():
            if name in found:
                rows.core.load(wanted[name], found[name], NONE)
        absent = {
            name: missing
            for name, own in ahead.items()
            if name in self._rows and len(missing := self._rows[name].sort_out(own)[0])
        }
        self._ask_rows(absent)
        if self._asked or not absent:
            self._here = ahead
        return {**found, **{name: rows.read(keys[name]) for name, rows in self._rows.items() if name in keys}}

    def update(self, dense: Mapping[str, F32], sparse: Sparse, samples: int) -> None:
        """Apply one step to the own copy; begin an exchange if it is time."""
        self._note_step()
        self._steps += 1
        self._samples += samples * self._trainers  # schedules count all trainers' samples: about as many
        factor = self._params.factor
        grads, sparse = self._params.collect_grads(dense, sparse)
        for name, grad in grads.items():
            rule = self._params.rules[name].pack_at(self._samples, self._passes, factor)
            _core.apply_optim(rule, self._steps, self._parameters.get_array(name), NO_SLOTS, grad)
        for name, rows in self._rows.items():
            keys, grad = sparse[name]
            rate = self._params.rules[name].find_rate(self._samples, self._passes, factor)
            rows.core.learn(rate, self._steps, keys, grad)
        self.client.progress()
        if self._exchange is not None and self.client.is_done(self._exchange.call):
            self._end_exchange()
        if self._steps % self._k_steps == 0:
            self._begin_exchange()

    def _begin_exchange(self) -> None:
        """Push all changes, and forget all rows but those of the next step."""
        self._end_exchange()
        self._pushed = self._steps
        dense = {name: (own.copy(), np.empty_like(own)) for name, own in self._get_dense().items()}
        changes = {
            name: (self._base[name] - own) / np.float32(self._trainers) for name, (own, _) in dense.items()
        }
        row_changes: dict[str, tuple[U64, F32]] = {}
        kept: dict[str, tuple[U64, F32, F32]] = {}
        for name, rows in self._rows.items():
            _, again = rows.sort_out(self._coming.get(name, np.empty(0, np.uint64)))
            own = rows.read(again)
            row_changes[name] = rows.take_changes(self._trainers)
            rows.core.load(again, own, NONE)
            kept[name] = again, own, np.empty_like(own)
        call = self.client.push_pull(
            changes,
            {name: values for name, (_, values) in dense.items()},
            row_changes,
            {name: (keys, values) for name, (keys, _, values) in kept.items()},
            wait=False,
        )
        self._exchange = _Exchange(call=call, dense=dense, rows=kept)

    def _end_exchange(self) -> None:
        """Wait for the exchange on its way, if any, and take its values."""
        if self._exchange is None:
            return
        self.client.wait(self._exchange.call)
        for name, (pushed, values) in self._exchange.dense.items():
            own = self._parameters.get_array(name)
            own += values - pushed
            self._base[name] = values
        for name, (keys, pushed, values) in self._exchange.rows.items():
            rows = self._rows[name]
            own = rows.read(keys) + (values - pushed)
            rows.core.load(keys, np.concatenate([own, values], axis=1), NONE)
        self._exchange = None

    def finish(self) -> None:
        if not self.client.is_closed:
            self._exchange_rest()
        super().finish()

    def _exchange_rest(self) -> None:
        self._coming = {}
        if self._steps > self._pushed:
            self._begin_exchange()
        self._end_exchange()

    def end_pass(self) -> None:
        """Exchange the rest; all trainers read the values anew."""
        self._exchange_rest()
        super().end_pass()
        self._passes += 1
        self._begin_pass()
