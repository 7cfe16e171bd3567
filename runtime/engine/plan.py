"""A plan computes targets of a program: all that they need, in order, with arrays kept between steps.

The ids of all lookups come first, so that the table rows of a batch can be fetched at once, and early. Then
all operations run forward, and those between the loss and a parameter backward. Gradients of a value are
added in the order of its users.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import _core
from .arrays import F32, U64, Ids, Rows, Sequences, find_rows, sum_rows
from .columns import Feeds, take_columns
from .graph import Graph, Value
from .ops import OPS, Draw, Op, Step
from .ops.base import Array
from .ops.dense import Concat
from .ops.lookup import Lookup, find_tables

Lookups = dict[str, list[Lookup]]  # of each table
Choice = Mapping[Value, tuple[type[Op], tuple[Value, ...]]]
Between = Callable[[Mapping[str, F32]], object]


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchInput:
    """A batch for a plan: its data among the results, and the table rows that it needs."""

    plan: Plan
    offsets: Mapping[str, Ids]
    samples: int
    results: list[Array]
    rows: Mapping[str, Rows]

    @property
    def keys(self) -> dict[str, U64]:
        return {name: found.keys for name, found in self.rows.items()}

    def find_broken_data(self) -> list[str]:
        """Return the names of data that have NaN or infinity."""
        data = [(op.value, self.results[op.place]) for op in self.plan.data]
        return [value.name for value, own in data if value.kind == "float" and not _core.is_finite(own)]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """Values of the targets in new arrays, and the gradients of the loss, without training none.

    errors: samples that costs found to be classified wrongly. sparse: unique keys of each table, and their
    gradients [k, dim]; with a ShowClickEntry after shows and clicks: [k, 2 + dim].
    """

    samples: int
    values: list[Array]
    errors: int
    dense: Mapping[str, F32]
    sparse: Mapping[str, tuple[U64, F32]]

    def leave_out(self) -> StepResult:
        """Return it as an empty push: gradients of 0, no rows, no samples."""
        dense = {name: np.zeros_like(grad) for name, grad in self.dense.items()}
        sparse = {name: (keys[:0], rows[:0]) for name, (keys, rows) in self.sparse.items()}
        return replace(self, samples=0, dense=dense, sparse=sparse)


class Plan:
    """The computation of `targets`, and of the gradients of `loss`, summed over its items.

    `threads`: most that compute one operation; the results do not depend on their number.
    params: all parameters that it reads; tables: those that are looked up, dense: the others; trained: those
    with a gradient.
    """

    def __init__(
        self, program: Graph, targets: Sequence[Value], loss: Value | None = None, threads: int = 1
    ) -> None:
        ends = [*targets] if loss is None else [*targets, loss]
        for one in ends:
            if one not in program:
                raise ValueError(f"{one.name} is not a value of this program")
        if loss is not None and loss.kind != "float":
            raise ValueError(f"{loss.name} has {loss.kind} values, so it can't be the loss")
        self._program = program
        self._threads = threads
        choice = _choose_ops(program, ends, trains=loss is not None)
        places = {value: i for i, value in enumerate(choice)}
        users = [places[one] for one in (*(one for _, inputs in choice.values() for one in inputs), *ends)]
        self._targets = [places[one] for one in targets]
        self._loss = -1 if loss is None else places[loss]
        self._ops: list[Op] = []
        self._lookups: Lookups = {}
        self._settled: set[int] = set()  # places of lookups with nothing left to compute, and their views
        self._paired: dict[tuple[str, str], str] = {}  # sequences that a value takes item by item
        learning: set[int] = set()  # places of values that depend on a parameter
        for i, (value, (cls, inputs)) in enumerate(choice.items()):
            own = tuple(places[one] for one in inputs)
            op = cls(value, [place in learning for place in own])
            op.place, op.places = i, own
            if value.kind == "float" and (op.value.params or any(op.needs)):
                learning.add(i)
            op.is_loss = value is loss
            items = [self._ops[places[one]].sequence for one in inputs if one.is_sequence]
            op.sequence = value.name if value.op == "data" else "".join(items[:1])
            if op.keeps_items:
                self._paired.update(((one, items[0]), value.name) for one in items if one != items[0])
            if op.overwrites and users.count(own[0]) == 1:
                before = self._ops[own[0]]
                op.in_place = not (before.reads_result or before.is_view or before.value.op == "data")
            if isinstance(op, Lookup):
                self._lookups.setdefault(op.value.params[0].name, []).append(op)
            self._ops.append(op)
            # Sequences may differ in length, which only their arrays tell.
            if isinstance(op, Concat) and len(value.shape) == 2 and value.has_batch and not value.is_sequence:
                for k, place in enumerate(own):
                    self._settle(self._ops[place], op, k, users)
        for found in self._lookups.values():
            found.sort(key=lambda op: op.number)
        values = [op.value for op in self._ops]
        self.tables = find_tables(values)
        self.params = {config.name: config for value in values for config in value.params}
        self.dense = [name for name in self.params if name not in self.tables]
        self._order_steps()

    def _order_steps(self) -> None:
        """Set the operations of data, those before and after the lookups, and those of the way back."""
        self.data = [op for op in self._ops if op.value.op == "data"]
        early = {op.places[0] for found in self._lookups.values() for op in found}
        reached = {self._loss}  # between the loss and a parameter
        backward: list[Op] = []
        for op in reversed(self._ops):
            if op.place in early:
                if op.value.params:
                    raise ValueError(f"{op.value.name}: ids of a lookup can't depend on a parameter")
                early.update(op.places)
            if op.place in reached:
                backward.append(op)
                reached.update(itertools.compress(op.places, op.needs))
        self._early = [op for op in self._ops if op.place in early and op not in self.data]
        self.trained = {c.name: c for op in reversed(backward) for c in op.value.params}
        self._backward = [op for op in backward if op.place not in self._settled]
        last = {config.name: op.place for op in self._backward for config in op.value.params}
        self._completes: dict[int, list[str]] = {}  # parameters whose gradients are complete after one
        for name in self.dense:
            if name in last:
                self._completes.setdefault(last[name], []).append(name)
        left_out = early | self._settled
        self._late = [op for op in self._ops if op.place not in left_out and op not in self.data]

    def _settle(self, op: Op, concat: Concat, i: int, users: Sequence[int]) -> None:
        """Let a lookup of one row for each sample, which only `concat` reads, write to its part there.

        Then most have nothing else to compute: `concat` hands out their gradients.
        """
        chain: list[int] = []
        while op.value.op in ("reshape", "single") and users.count(op.place) == 1:
            if op.value.op == "reshape":  # the other checks lengths
                chain.append(op.place)
            op = self._ops[op.places[0]]
        value = op.value
        if isinstance(op, Lookup) and users.count(op.place) == 1 and value.size == value.shape[-1]:
            op.home = concat, i
            concat.filled.add(i)
            if op.only_copies and len(op.places) == 1:
                concat.learning[i] = value.name
                self._settled.update([*chain, op.place])

    def prepare(self, feeds: Feeds) -> BatchInput:
        """Return the input of a batch; raises ValueError naming data that is missing or does not fit."""
        if len(feeds) != len(self.data):
            for name in feeds:
                self._program.get(name)
        offsets: dict[str, Ids] = {}
        results: list[Any] = [None] * len(self._ops)
        samples = 0
        columns = take_columns([op.value for op in self.data], feeds)
        for op in self.data:
            value = op.value
            column = columns[value.name]
            own = column.offsets if isinstance(column, Sequences) else None
            results[op.place] = column.items if isinstance(column, Sequences) else column
            if own is not None:
                offsets[value.name] = own
            if value.has_batch:
                size = len(results[op.place]) if own is None else len(own) - 1
                samples = samples or size
                if size != samples or size == 0:
                    raise ValueError(f"{value.name} has {size} samples, expected {samples or 'at least one'}")
        for pair, name in self._paired.items():
            lengths, others = (np.diff(offsets[one]) for one in pair)
            if len(wrong := np.flatnonzero(lengths != others)):
                at = wrong[0]
                found = f"sample {at} of {pair[0]} has {lengths[at]} items, of {pair[1]} {others[at]}"
                raise ValueError(f"{name}: {found}, but it takes both item by item")
        step = Step(params={}, offsets=offsets, counts={}, draw=None, threads=self._threads)
        for op in self._early:
            result = op.forward(step, *[results[i] for i in op.places])
            # A copy: the next batch may be prepared before this one is computed.
            results[op.place] = result if op.is_view else result.copy()
        rows = self._find_rows(self._lookups, results)
        return BatchInput(plan=self, offsets=offsets, samples=samples or 1, results=results, rows=rows)

    def compute(
        self,
        batch: BatchInput,
        params: Mapping[str, F32],
        tables: Mapping[str, F32],
        draw: Draw | None,
        counts: dict[str, Ids],
        between: Between = lambda _: None,
    ) -> StepResult:
        """Compute forward, and with `draw` backward, over a batch.

        between: called after each operation, with the gradients of dense parameters that it has completed;
        from then on nothing reads these values. params: the dense values by name. tables: rows of the
        batch's keys. counts: sums of metrics so far.
        """
        step = Step(params=params, offsets=batch.offsets, counts=counts, draw=draw, threads=self._threads)
        before = _core.set_floats()  # a library may have set this thread's floats for its own speed
        try:
            for table, found in self._lookups.items():
                parts = [op.make_part(step, *[batch.results[i] for i in op.places]) for op in found]
                _core.gather_rows(tables[table], batch.rows[table].index, parts, self._threads)
            self._run_forward(step, batch.results, between)
            values = [np.array(batch.results[i], order="C") for i in self._targets]
            if draw is not None and self._loss >= 0:
                self._run_backward(step, batch.results, between)
            sparse = self._sum_rows(step, batch)
        finally:
            _core.set_floats(before)
        return StepResult(
            samples=batch.samples, values=values, errors=step.errors, dense=step.param_grads, sparse=sparse
        )

    def _find_rows(self, lookups: Lookups, results: Sequence[Array]) -> dict[str, Rows]:
        """Return the rows that lookups need; raises ValueError naming an id out of range."""
        wanted = {}
        for table, found in lookups.items():
            joined = np.concatenate([results[op.places[0]].reshape(-1) for op in found])
            wanted[table] = self.params[table].rows, joined
        try:
            return find_rows(wanted, self._threads) if wanted else {}
        except ValueError:
            for table, found in lookups.items():
                for op in found:
                    op.check_ids(results[op.places[0]], self.params[table].rows, 0, "id")
            raise

    def _sum_rows(self, step: Step, batch: BatchInput) -> dict[str, tuple[U64, F32]]:
        """Return the gradients of table rows, from those of the lookups that the loss depends on."""
        learned: Lookups = {}
        for table, found in self._lookups.items():
            if own := [op for op in found if op.value.name in step.row_grads]:
                learned[table] = own
        rows = batch.rows if learned == self._lookups else self._find_rows(learned, batch.results)
        sums = {}
        for table, found in learned.items():
            parts = [step.row_grads[op.value.name] for op in found]
            keys = rows[table].keys
            sums[table] = keys, sum_rows(len(keys), rows[table].index, parts, self._threads)
        return sums

    def _run_forward(self, step: Step, results: list[Array], between: Between) -> None:
        for op in self._late:
            try:
                found = op.forward(step, *[results[i] for i in op.places])
            except (ValueError, IndexError) as e:
                raise ValueError(f"{op.value.name}: {e}") from None
            results[op.place] = np.asarray(found)  # numpy makes scalars of arrays without axes
            between({})

    def _run_backward(self, step: Step, results: list[Array], between: Between) -> None:
        # Of each value the gradients from its users, the last user's first.
        grads = {self._loss: [np.ones(results[self._loss].shape, dtype=np.float32)]}
        for op in self._backward:
            parts = grads.pop(op.place, None)
            if parts is None:
                continue
            grad = np.asarray(parts[0] if len(parts) == 1 else functools.reduce(np.add, reversed(parts)))
            found = op.backward(step, grad, results[op.place], *[results[i] for i in op.places])
            for k in reversed(range(len(op.places))):
                if op.needs[k] and (own := found[k]) is not None:
                    grads.setdefault(op.places[k], []).append(own)
            names = self._completes.get(op.place)
            between({name: step.param_grads[name] for name in names} if names else {})


def _choose_ops(program: Graph, ends: Iterable[Value], *, trains: bool) -> Choice:
    """Return what `ends` need, data first, in the program's order, with class and inputs that compute it."""
    needed = set(ends)
    found: dict[Value, tuple[type[Op], tuple[Value, ...]]] = {}
    data_first = sorted(program, key=lambda value: value.op != "data")
    for value in reversed(data_first):
        if value in needed:
            found[value] = OPS[value.op].choose(value, program, trains=trains)
            needed.update(found[value][1])
    return dict(reversed(found.items()))
