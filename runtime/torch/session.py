"""The tables of this process on the pservers: one push for each backward pass, and checkpoints."""

from __future__ import annotations

import base64
import io
import pickle
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from pslaunch.runtime.client.caller import Init
from pslaunch.runtime.client.client import Client, Future, TableHandle, TensorHandle
from pslaunch.runtime.engine.arrays import F32, U64, Ids, Part, Rows, find_rows, sum_rows
from pslaunch.runtime.engine.entry import EntryAttr
from pslaunch.runtime.engine.kernel_numbers import Optim
from pslaunch.runtime.engine.param_config import ANY_ID
from pslaunch.runtime.files.sets import Set
from pslaunch.runtime.v2.reader import get_random_state, set_random_state


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table on the pservers. mean: gradients are averaged over trainers, not summed."""

    name: str
    dim: int
    rule: Optim
    init: Init
    entry: EntryAttr
    mean: bool

    def compare(self, other: TableSpec) -> str:
        """Return what differs between two tables, empty if nothing does."""
        pairs = [(f.name, a, b) for a, b in ((self, other), (self.rule, other.rule)) for f in fields(a)]
        found = [(name, getattr(a, name), getattr(b, name)) for name, a, b in pairs if name != "rule"]
        return ", ".join(f"{name}={own!r}, not {its!r}" for name, own, its in found if own != its)


def get_array(tensor: torch.Tensor, dtype: torch.dtype) -> Any:
    """Return the values of a tensor as an array on this machine, without a copy where they are one."""
    return tensor.detach().to("cpu", dtype).contiguous().numpy()


class LookedUp:
    """Ids of one lookup in a table, and the rows of the unique ones once they are here."""

    values: F32  # [keys, dim]

    def __init__(self, spec: TableSpec, rows: Rows) -> None:
        self.spec, self.rows = spec, rows

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
        self.tables: dict[str, TableHandle] = {}
        self.tensors: list[TensorHandle] = []  # of an optimizer that makes the steps, in place of backward
        self._wanted: list[list[LookedUp]] = []  # for the next step
        self._ready: list[LookedUp] = []  # with the values since the last push
        self._pending: dict[str, list[tuple[LookedUp, Part]]] = {}  # gradients of this step
        self._step: Future | None = None  # the last push
        self._stateful: tuple[Any, ...] = ()  # that snapshots keep
        self._drawn: Any = None  # states of random numbers, before the first step after a restart
        self.steps = 0

    def make_ready(self) -> None:
        """End the push before; make the tables that are not made yet, in the order of their modules."""
        if self._step is not None:
            self._step.wait()
        for name, spec in SPECS.items():
            if name not in self.tables:
                made = self.client.table(name, spec.dim, spec.rule, init=spec.init, entry=spec.entry)
                self.tables[name] = made

    def make_tensors(self, values: Iterable[F32], rule: Optim) -> None:
        """Make dense parameters; `values` are trainer 0's then, stored in place."""
        if self.tensors:
            raise RuntimeError("a program has one DistributedOptimizer: give it all parameters")
        self.make_ready()
        tensor = self.client.tensor
        out = {tensor(f"parameter {i}", own.shape, rule, init=own): own for i, own in enumerate(values)}
        self.tensors = [*out]
        self.client.barrier()
        self.client.pull(out).wait()

    def resume(self, stateful: tuple[Any, ...]) -> None:
        """Let snapshots keep these states, and take those of the one with which the training begins."""
        self._stateful = stateful
        self._describe()  # what it refuses is refused now
        state = self.client.resume(self._describe)
        if state is None:
            return
        dense, self._drawn, self.steps = state["dense"], state["drawn"], state["steps"]
        if len(dense) != len(stateful):
            raise ValueError(f"resume: the snapshot has {len(dense)} states, given are {len(stateful)}")
        for one, own in zip(stateful, dense, strict=True):
            one.load_state_dict(_decode(own))

    def _describe(self) -> dict[str, Any]:
        """Return what a snapshot has of this trainer after a step."""
        of_torch = [torch.get_rng_state(), torch.cuda.get_rng_state_all()]
        drawn = self._drawn or [get_random_state(), _encode(of_torch)]
        return {"steps": self.steps, "drawn": drawn, "dense": [_encode_state(one) for one in self._stateful]}

    def _begin_step(self) -> None:
        """Let a snapshot have the state after the step before; draw on as after that of the first one."""
        self.client.settle()
        if self._drawn is not None:
            (own, of_torch), self._drawn = self._drawn, None
            set_random_state(own)
            cpu, gpus = _decode(of_torch)
            torch.set_rng_state(cpu)
            torch.cuda.set_rng_state_all(gpus)

    def look_up(self, spec: TableSpec, ids: Ids) -> LookedUp:
        """Return a lookup with the values of its rows."""
        self.make_ready()
        if torch.is_grad_enabled():  # else an evaluation, perhaps before a scheduler's step
            self._begin_step()
        groups = [self._ready, *self._wanted]
        group, found = next(((own, one) for own in groups for one in own if one.is_of(spec, ids)), ([], None))
        if found is None:
            group = [found] = find_lookups([(spec, ids)])
        if group is not self._ready:
            self.client.pull(fetch=self._make_room(group)).wait()
        if group in self._wanted:
            self._wanted.remove(group)
            self._ready = group
        return found

    def _make_room(self, lookups: list[LookedUp]) -> dict[TableHandle, tuple[U64, F32]]:
        """Return the keys and an array for the rows of each table; lookups have parts of it as values."""
        found, by_table = dict[TableHandle, tuple[U64, F32]](), dict[str, list[LookedUp]]()
        for one in lookups:
            by_table.setdefault(one.spec.name, []).append(one)
        for name, own in by_table.items():
            ends = np.cumsum([len(one.rows.keys) for one in own])
            values = np.empty((ends[-1], own[0].spec.dim), np.float32)
            for one, part in zip(own, np.split(values, ends[:-1]), strict=True):
                one.values = part
            found[self.tables[name]] = np.concatenate([one.rows.keys for one in own]), values
        return found

    def prefetch(self, asked: Iterable[tuple[TableSpec, Ids]]) -> None:
        """Let the next push, or else the first of these lookups, bring the rows of all of them."""
        self._wanted.append(find_lookups(asked))

    def add_grads(self, found: LookedUp, part: Part) -> None:
        self._pending.setdefault(found.spec.name, []).append((found, part))

    def forget_grads(self) -> None:
        self._pending = {}

    def end_backward(self) -> None:
        """Push what the backward pass has left, unless an optimizer does it with dense parameters."""
        if self._pending and not self.tensors:
            self.push()

    def push(self, grads: Iterable[F32] = (), values: Iterable[F32] = (), factor: float = 1.0) -> Future:
        """Begin a step: push gradients; take values and wanted rows. factor: of all learning rates."""
        self.make_ready()
        pending, self._pending = self._pending, {}
        rows = {self.tables[name]: self._sum(parts) for name, parts in pending.items()}
        self._ready, self._wanted = [one for own in self._wanted for one in own], []
        dense, out = (dict(zip(self.tensors, own, strict=True)) for own in (grads, values))
        self.steps += 1
        self._step = self.client.push_pull(dense, out, rows, self._make_room(self._ready), factor=factor)
        return self._step

    def _sum(self, parts: list[tuple[LookedUp, Part]]) -> tuple[U64, F32]:
        spec, rows = parts[0][0].spec, parts[0][0].rows
        if len(parts) > 1:
            (one,) = find_lookups([(spec, np.concatenate([found.ids for found, _ in parts]))])
            rows = one.rows
        whole = [part for _, part in parts]
        grads = sum_rows(len(rows.keys), rows.index, whole, torch.get_num_threads())
        if spec.mean and self.client.trainers > 1:
            grads *= np.float32(1 / self.client.trainers)
        return rows.keys, grads


_FLOAT = "\0float "
SPECS: dict[str, TableSpec] = {}  # of this process, in the order of their modules
_current: list[TorchSession] = []


def connect(client: Client) -> None:
    """Use this client, as `Client.from_env(mode="async")`; without it the first table makes one."""
    if _current:
        raise RuntimeError("pslaunch.torch is connected already: call connect() before all else")
    _current.append(TorchSession(client))


def get_session() -> TorchSession:
    if not _current:
        connect(Client.from_env())
    return _current[0]


def end_pass() -> None:
    """Say that this trainer has no further batches in this pass; returns when no trainer has."""
    get_session().client.end_pass()


def resume(*stateful: Any) -> int:
    """Let snapshots keep the states of model, optimizer and others; take those to begin with, if any.

    All trainers call it before the first lookup, and before a DistributedOptimizer is made. Returns the steps
    that the snapshot has of this trainer: 0 at the first start.
    """
    session = get_session()
    session.resume(stateful)
    return session.steps


def save(folder: str | Path, model: torch.nn.Module, optimizer: Any = None, extra: Any = None) -> None:
    """Write `state_dict` of model and optimizer, `extra`, and all that pservers have, after this step.

    All trainers call it between two steps; trainer 0 writes. A set that is there stays whole until then.
    """
    session = get_session()
    session.make_ready()
    session.client.barrier()
    if session.client.trainer == 0:
        content = _write((model.state_dict(), optimizer and optimizer.state_dict(), extra))
        session.client.save(folder, {"dense.pt": content})
    session.client.barrier()


def _write(state: Any) -> bytes:
    content = io.BytesIO()
    # As text: before torch 2 what loads no code loads no float either.
    torch.save(tree_map(lambda x: _FLOAT + x.hex() if isinstance(x, float) else x, state), content)
    _read(content.getvalue())  # what could not be loaded is refused now
    return content.getvalue()


def _read(content: bytes) -> Any:
    state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return tree_map(
        lambda x: float.fromhex(x[len(_FLOAT) :]) if isinstance(x, str) and x.startswith(_FLOAT) else x, state
    )


def _encode(state: Any) -> str:
    return base64.b64encode(_write(state)).decode()


def _encode_state(one: Any) -> str:
    try:
        return _encode(one.state_dict())
    except (pickle.UnpicklingError, TypeError) as e:
        known = "numbers, text, lists, dicts and tensors"
        raise TypeError(f"resume: the state of {type(one).__name__} has more than {known}: {e}") from None


def _decode(text: str) -> Any:
    return _read(base64.b64decode(text))


def load(folder: str | Path, model: torch.nn.Module, optimizer: Any = None) -> Any:
    """Take what save() has written, and return `extra`; all trainers call it, before the first lookup.

    Before a DistributedOptimizer is made: it takes the values from the pservers.
    """
    session = get_session()
    if session.tables or session.tensors:
        raise RuntimeError("load() comes before the first lookup, and before a DistributedOptimizer is made")
    session.client.load(folder)
    state, of_optimizer, extra = _read(Set(Path(folder)).read_file("dense.pt"))
    model.load_state_dict(state)
    if optimizer is not None:
        optimizer.load_state_dict(of_optimizer)
    return extra
