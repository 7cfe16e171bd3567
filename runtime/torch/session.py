"""The tables of this process and its connection to the pservers: one push for each backward pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pslaunch.runtime.client.caller import PULL_BYTES, Caller, Init
from pslaunch.runtime.client.remote import make_client
from pslaunch.runtime.client.run import Run
from pslaunch.runtime.engine.arrays import F32, U64, Ids, Part, Rows, find_rows, sum_rows
from pslaunch.runtime.engine.entry import EntryAttr
from pslaunch.runtime.engine.kernel_numbers import Mode, Optim
from pslaunch.runtime.engine.param_config import ANY_ID
from pslaunch.runtime.engine.strategy import Strategy
from pslaunch.runtime.process.settings import get_settings


@dataclass(frozen=True, kw_only=True, slots=True)
class TableSpec:
    """A table on the pservers. mean: gradients are averaged over trainers, not summed."""

    name: str
    dim: int
    rule: Optim
    init: Init
    entry: EntryAttr
    mean: bool


def get_array(tensor: torch.Tensor, dtype: torch.dtype) -> Any:
    """Return the values of a tensor as an array on this machine."""
    return tensor.detach().to("cpu", dtype).contiguous().numpy()


class LookedUp:
    """Ids of one lookup in a table, and the rows of the unique ones once they are here."""

    __slots__ = ("rows", "spec", "values")

    def __init__(self, spec: TableSpec, rows: Rows) -> None:
        self.spec, self.rows = spec, rows
        self.values: F32 = np.empty((len(rows.keys), spec.dim), np.float32)

    @property
    def ids(self) -> Ids:
        return self.rows.keys[self.rows.index].view(np.int64)

    def is_of(self, spec: TableSpec, ids: Ids) -> bool:
        """Return True for the same ids of the same table."""
        return self.spec.name == spec.name and np.array_equal(self.ids, ids)


def find_lookups(asked: Iterable[tuple[TableSpec, Ids]]) -> list[LookedUp]:
    """Return lookups without values yet."""
    specs, ids = zip(*asked, strict=True)
    found = find_rows({str(i): (ANY_ID, own) for i, own in enumerate(ids)}, torch.get_num_threads())
    return [LookedUp(spec, found[str(i)]) for i, spec in enumerate(specs)]


class Session:
    """One trainer's tables: rows are pulled for lookups, gradients gathered and pushed, a step at a time.

    dense_steps: an optimizer of dense parameters makes the steps, not the end of each backward pass.
    """

    def __init__(self, client: Caller, trainers: int, run: Run) -> None:
        self.client, self.trainers, self._run = client, trainers, run
        self.dense_steps = False
        self._made: dict[str, TableSpec] = {}
        self._wanted: list[LookedUp] = []  # for the next step
        self._ready: list[LookedUp] = []  # with the values since the last push
        self._pending: dict[str, list[tuple[LookedUp, Part]]] = {}  # gradients of this step
        self._call = 0  # the push on its way

    def make_tables(self) -> None:
        """Make the tables of this process that are not made yet, in the order of their modules."""
        for spec in SPECS.values():
            if spec.name not in self._made:
                self.client.create_sparse(spec.name, 0, spec.dim, spec.rule, spec.init, spec.entry)
                self._made[spec.name] = spec

    def add_dense(self, made: Mapping[str, tuple[F32, Optim]]) -> None:
        """Make dense parameters, which have trainer 0's values then; they are stored in place."""
        if self.dense_steps:
            raise RuntimeError("a program has one DistributedOptimizer: give it all parameters")
        self.dense_steps, values = True, {name: values for name, (values, _) in made.items()}
        with self._run.guard():
            self.make_tables()
            for name, (own, rule) in made.items():
                self.client.create_dense(name, own.size, rule)
            self.client.init_dense(values)
            self.client.barrier()
            self.client.pull(values)

    def settle(self) -> None:
        """Wait until the push on its way has been answered."""
        if self._call:
            with self._run.guard():
                self.client.wait(self._call)
            self._call = 0

    def look_up(self, spec: TableSpec, ids: Ids) -> LookedUp:
        """Return a lookup with the values of its rows."""
        self.settle()
        found = next((one for one in self._ready if one.is_of(spec, ids)), None)
        if found is None:
            found = next((one for one in self._wanted if one.is_of(spec, ids)), None)
            if found is None:
                (found,) = pulled = find_lookups([(spec, ids)])
            else:
                self._ready += (pulled := self._take_wanted())
                if found not in pulled:
                    pulled = [found]
            self.pull(pulled)
        return found

    def pull(self, lookups: Iterable[LookedUp]) -> None:
        """Read the rows of lookups, of each table one."""
        with self._run.guard():
            self.make_tables()
            keys = {one.spec.name: one.rows.keys for one in lookups}
            self.client.pull_tables(keys, {one.spec.name: one.values for one in lookups})

    def prefetch(self, asked: Iterable[tuple[TableSpec, Ids]]) -> None:
        """Let the next push, or else the first of these lookups, bring the rows of all of them."""
        self._wanted += find_lookups(asked)

    def _take_wanted(self) -> list[LookedUp]:
        """Return the wanted lookups for one call: the first of each table, as far as there is room."""
        taken: dict[str, LookedUp] = {}
        room = PULL_BYTES
        for one in self._wanted:
            if one.spec.name not in taken and one.values.nbytes <= room:
                taken[one.spec.name] = one
                room -= one.values.nbytes
        self._wanted = [one for one in self._wanted if taken.get(one.spec.name) is not one]
        return [*taken.values()]

    def add_grads(self, found: LookedUp, part: Part) -> None:
        """Take the gradients of a lookup's rows for the step."""
        self._pending.setdefault(found.spec.name, []).append((found, part))

    def end_backward(self) -> None:
        """Push what the backward pass has left, unless an optimizer does it with dense parameters."""
        if self._pending and not self.dense_steps:
            self.push({}, {})

    def push(self, grads: Mapping[str, F32], out: Mapping[str, F32], factor: float = 1.0) -> None:
        """Begin one step: push gradients; take dense values, and rows of the lookups that are wanted.

        factor: of all learning rates.
        """
        self.settle()
        pending, self._pending = self._pending, {}
        rows = {name: self._sum(parts) for name, parts in pending.items()}
        self._ready = self._take_wanted()
        with self._run.guard():
            self.make_tables()
            asked = {one.spec.name: (one.rows.keys, one.values) for one in self._ready}
            self._call = self.client.push_pull(grads, out, rows, asked, factor=factor, wait=False)
            self.client.progress()

    def _sum(self, parts: list[tuple[LookedUp, Part]]) -> tuple[U64, F32]:
        spec, rows = parts[0][0].spec, parts[0][0].rows
        if len(parts) > 1:
            (one,) = find_lookups([(spec, np.concatenate([found.ids for found, _ in parts]))])
            rows = one.rows
        grads = sum_rows(rows, [part for _, part in parts], torch.get_num_threads())
        if spec.mean and self.trainers > 1:
            grads *= np.float32(1 / self.trainers)
        return rows.keys, grads


SPECS: dict[str, TableSpec] = {}  # of this process, in the order of their modules
_current: list[Session] = []


def connect(*, mode: Mode = "sync") -> Session:
    """Return the connection to the job's pservers, which the first table makes by itself, in mode "sync"."""
    if _current:
        raise RuntimeError("pslaunch.torch is connected already: call connect() before the first step")
    settings = get_settings()
    run = Run(settings, is_local=False)
    client = make_client(settings, Strategy(mode=mode), lambda text: run.log.say(text))
    with run.guard():
        client.connect()
    run.note_connected(client)
    _current.append(Session(client, settings.num_gradient_servers, run))
    return _current[0]


def get_session() -> Session:
    """Return the connection of this process."""
    return _current[0] if _current else connect()


def end_pass() -> None:
    """Say that this trainer has no further batches in this pass; returns when no trainer has."""
    session = get_session()
    session.settle()
    session.client.end_pass()
