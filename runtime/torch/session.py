"""The tables of this process and its client of the pservers: one push for each backward pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pslaunch.runtime.client.caller import PULL_BYTES, Init
from pslaunch.runtime.client.client import Client, Future, TableHandle, TensorHandle
from pslaunch.runtime.engine.arrays import F32, U64, Ids, Part, Rows, find_rows, sum_rows
from pslaunch.runtime.engine.entry import EntryAttr
from pslaunch.runtime.engine.kernel_numbers import Optim
from pslaunch.runtime.engine.param_config import ANY_ID
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
    """Return the values of a tensor as an array on this machine, without a copy where they are one."""
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
    every = [*asked]
    found = find_rows({str(i): (ANY_ID, ids) for i, (_, ids) in enumerate(every)}, torch.get_num_threads())
    return [LookedUp(spec, rows) for (spec, _), rows in zip(every, found.values(), strict=True)]


class TorchSession:
    """One trainer's tables: rows are pulled for lookups, gradients gathered and pushed, a step at a time."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._tables: dict[str, TableHandle] = {}
        self._tensors: list[TensorHandle] = []  # of an optimizer that makes the steps, in place of backward
        self._wanted: list[LookedUp] = []  # for the next step
        self._ready: list[LookedUp] = []  # with the values since the last push
        self._pending: dict[str, list[tuple[LookedUp, Part]]] = {}  # gradients of this step
        self._step: Future | None = None  # the push on its way

    @property
    def is_empty(self) -> bool:
        """True if nothing is on the pservers yet."""
        return not self._tables and not self._tensors

    def make_tables(self) -> None:
        """Make the tables of this process that are not made yet, in the order of their modules."""
        for name, spec in SPECS.items():
            if name not in self._tables:
                self._tables[name] = self.client.table(
                    name, spec.dim, spec.rule, init=spec.init, entry=spec.entry
                )

    def make_tensors(self, values: Iterable[F32], rule: Optim) -> None:
        """Make dense parameters; `values` are trainer 0's then, stored in place."""
        if self._tensors:
            raise RuntimeError("a program has one DistributedOptimizer: give it all parameters")
        self.make_tables()
        out = {
            self.client.tensor(f"parameter {i}", own.shape, rule, init=own): own
            for i, own in enumerate(values)
        }
        self._tensors = [*out]
        self.client.barrier()
        self.client.pull(out).wait()

    def settle(self) -> None:
        """Wait until the push on its way has been answered."""
        if self._step is not None:
            self._step.wait()
            self._step = None

    def look_up(self, spec: TableSpec, ids: Ids) -> LookedUp:
        """Return a lookup with the values of its rows."""
        self.settle()
        for one in self._ready:
            if one.is_of(spec, ids):
                return one
        self.make_tables()
        found = next((one for one in self._wanted if one.is_of(spec, ids)), None)
        if found is not None:
            taken = self._take_wanted()
            self._ready += taken
            self.client.pull(fetch=self._list(taken)).wait()
            if found in taken:
                return found
        (found,) = find_lookups([(spec, ids)])
        self.client.pull(fetch=self._list([found])).wait()
        return found

    def _list(self, lookups: Iterable[LookedUp]) -> dict[TableHandle, tuple[U64, F32]]:
        return {self._tables[one.spec.name]: (one.rows.keys, one.values) for one in lookups}

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
        if self._pending and not self._tensors:
            self.push()

    def push(self, grads: Iterable[F32] = (), values: Iterable[F32] = (), factor: float = 1.0) -> None:
        """Begin one step: push gradients; take dense values, and rows of the lookups that are wanted.

        factor: of all learning rates.
        """
        self.settle()
        self.make_tables()
        pending, self._pending = self._pending, {}
        rows = {self._tables[name]: self._sum(parts) for name, parts in pending.items()}
        self._ready = self._take_wanted()
        dense, out = (dict(zip(self._tensors, own, strict=True)) for own in (grads, values))
        self._step = self.client.push_pull(dense, out, rows, self._list(self._ready), factor=factor)

    def _sum(self, parts: list[tuple[LookedUp, Part]]) -> tuple[U64, F32]:
        spec, rows = parts[0][0].spec, parts[0][0].rows
        if len(parts) > 1:
            (one,) = find_lookups([(spec, np.concatenate([found.ids for found, _ in parts]))])
            rows = one.rows
        grads = sum_rows(rows, [part for _, part in parts], torch.get_num_threads())
        if spec.mean and self.client.trainers > 1:
            grads *= np.float32(1 / self.client.trainers)
        return rows.keys, grads


SPECS: dict[str, TableSpec] = {}  # of this process, in the order of their modules
_current: list[TorchSession] = []


def connect(client: Client) -> None:
    """Use this client, as `Client.from_env(mode="async")`; without it the first table makes one."""
    if _current:
        raise RuntimeError("pslaunch.torch is connected already: call connect() before all else")
    _current.append(TorchSession(client))


def get_session() -> TorchSession:
    """Return the session of this process."""
    if not _current:
        asked = get_settings().snapshots
        if asked.steps or asked.minutes or asked.export_steps or asked.resume:
            raise ValueError(
                "snapshots and exports lack the state of torch programs: leave --snapshot_steps, "
                "--snapshot_minutes, --export_steps and --resume out, and call pslaunch.torch.save()"
            )
        connect(Client.from_env())
    return _current[0]


def end_pass() -> None:
    """Say that this trainer has no further batches in this pass; returns when no trainer has."""
    session = get_session()
    session.settle()
    session.client.end_pass()
