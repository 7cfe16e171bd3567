"""Parameters and their optimizer's state: in sets of files, and tables in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..files.joined import find_items, read_rows, read_values, split_state
from ..files.manifest import Manifest
from ..files.objects import CREATE, SEGMENT, SetError, Whole
from ..files.sets import Set, check_shape, count_before
from ..process.settings import get_settings
from .arrays import CHUNK_BYTES, F32, U64, split_rows
from .entry import ANY, ProbabilityEntry
from .kernel_numbers import KINDS, Optim
from .param_config import ParamConfig

NONE = np.empty((0, 3), np.float32)  # counts of rows without an entry rule
NO_SLOTS = np.empty((0, 0, 0), np.float32)
NO_RULE = Optim(method="sgd", learning_rate=0.0)  # of a parameter that does not learn


@dataclass(kw_only=True, slots=True)
class State:
    """The optimizer's state of a parameter, [slots, rows, cols], and its steps so far."""

    slots: F32 = field(default_factory=lambda: NO_SLOTS)
    steps: int = 0
    samples: int = 0
    passes: int = 0

    def begin_step(self, samples: int) -> None:
        self.steps += 1
        self.samples += samples


def make_create(config: ParamConfig, rule: Optim, seed: int, *, table: bool) -> bytes:
    """Return the description of a parameter for a set: the body of CREATE, without mode and discard."""
    dim, total = (config.cols, config.rows) if table else (0, config.rows * config.cols)
    (method, *numbers), (*schedule, segments) = rule.pack(), rule.schedule.pack()
    init = seed, _core.hash_name(config.name) if table else 0, KINDS[config.start], config.mean, config.std
    numbers += [*schedule, len(segments), 0, *config.entry.pack(), *init]
    raw = config.name.encode()
    head = CREATE.pack(table, dim, 0, total, method, 0, *numbers, len(raw))
    return head + b"".join(SEGMENT.pack(*one) for one in segments) + raw


def make_whole(
    config: ParamConfig, create: bytes, state: State, pieces: Iterable[Any], count: int, waiting: int = 0
) -> Whole:
    """Return a parameter for a set; `pieces`: the arrays of its file."""
    counts = {"steps": state.steps, "samples": state.samples, "passes": state.passes}
    found = map(get_bytes, pieces)
    return Whole(shape=config.shape, create=create, count=count, waiting=waiting, pieces=found, **counts)


def get_bytes(array: npt.NDArray[Any]) -> memoryview:
    """Return the values of an array in their order, without a copy if they lie so."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def make_first_rows(config: ParamConfig, keys: U64, seed: int) -> F32:
    """Return initial values of rows, [k, cols]: they depend on (seed, name, row, column) alone."""
    out = np.empty((len(keys), config.cols), dtype=np.float32)
    table = _core.hash_name(config.name)
    _core.init_rows(out, keys, seed, table, KINDS[config.start], config.mean, config.std)
    return out


def read_array(found: Set, config: ParamConfig) -> F32:
    """Return the values of a parameter that is in the set, [rows, cols]. Raises SetError."""
    values = np.empty(config.shape, np.float32)
    if not found.shapes[config.name].table:
        read_values(found, config.name, 0, values.reshape(-1))
        return values
    saved, seed = find_init(found, config)
    for at, keys in split_rows(*config.shape):
        values[at] = make_first_rows(saved, keys, seed)
    for keys, rows, _ in read_rows(found, config.name):
        values[keys] = rows[:, : config.cols]
    return values


def find_init(found: Set, config: ParamConfig) -> tuple[ParamConfig, int]:
    """Return the parameter with the initial values that the set's rows come on top of, and their seed."""
    seed, kind, mean, std = find_items(found, config.name)[0].init
    kinds = {number: name for name, number in KINDS.items()}
    return replace(config, kind=kinds[kind], mean=mean, std=std, initializer=None), seed


def read_state(found: Set, config: ParamConfig, rule: Optim) -> State | None:
    """Return the state of a parameter; None if it is that of another optimizer. Raises SetError."""
    shape = found.shapes[config.name]
    if shape.method != rule.method or shape.fixed:
        return None
    slots = np.zeros(rule.kernel.get_state_shape(*config.shape), np.float32)
    if shape.table:
        for keys, rows, _ in read_rows(found, config.name) if shape.slots else ():
            slots[:, keys] = split_state(shape, rows)[1]
    else:
        for number, one in enumerate(slots, 1):
            read_values(found, config.name, number, one.reshape(-1))
    before = count_before(find_items(found, config.name))
    return State(slots=slots, **before)


def check_parameters(found: Set, configs: Mapping[str, ParamConfig]) -> None:
    """Raise SetError unless a set has all parameters, with their shapes."""
    for name, config in configs.items():
        if (shape := found.shapes.get(name)) is None:
            has = ", ".join(found.shapes) or "nothing"
            raise SetError(f"{found.folder} lacks {name}; it has {has}: it is of another model")
        dim, total = (config.cols, config.rows) if shape.table else (0, config.rows * config.cols)
        check_shape(found.folder, shape, table=shape.table, dim=dim, total=total)


def make_about(run: int = 0, step: int = 0, passes: int = 0) -> Manifest:
    """Return what a manifest says of this job."""
    job = get_settings().job
    return Manifest(job_id=job.job_id, epoch=job.epoch, run=run, step=step, passes=passes, files=())


def describe_left_out(found: Set, rules: Mapping[str, Optim]) -> str:
    """Return a line for the parameters whose state is that of another optimizer; "" if there are none."""
    others = {
        name: (found.shapes[name].method, rule.method)
        for name, rule in rules.items()
        if name in found.shapes and found.shapes[name].method != rule.method
    }
    if not others:
        return ""
    (was, now), names = next(iter(others.values())), ", ".join(others)
    return f"{found.folder}: the state of {was} is left out, as the program trains with {now}: {names}"


class LocalTable:
    """Rows by 64-bit key with the optimizer's state; one that is not there reads as its initial values."""

    def __init__(
        self, config: ParamConfig, rule: Optim = NO_RULE, seed: int = 0, *, beside: bool = False
    ) -> None:
        """`beside`: a row has as many further floats as values."""
        self.config, self.rule, self.seed = config, rule, seed
        init = seed, _core.hash_name(config.name), KINDS[config.start], config.mean, config.std
        self.state = State()  # without slots: they are in its rows
        self.core = _core.Table(config.cols, rule.pack(), init, config.entry.pack(), beside)
        slots, _, width = rule.kernel.get_state_shape(1, config.cols)
        self._rest = slots * width + beside * config.cols

    def read(self, keys: U64) -> F32:
        """Return the values of rows, [n, cols]."""
        out = np.empty((len(keys), self.config.cols), np.float32)
        self.core.read(keys, out)
        return out

    def learn(self, samples: int, factor: float, keys: U64, grads: F32) -> None:
        """Apply a step; grads: [n, cols], with a ShowClickEntry after shows and clicks."""
        now = self.state
        now.begin_step(samples)
        self.core.learn(self.rule.find_rate(now.samples, now.passes, factor), now.steps, keys, grads)

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
            self.state = State(slots=NO_SLOTS, **count_before(find_items(found, shape.name)))
        if not shape.table:
            self._load_dense(found)
            return
        width, counted = cols + self._rest * kept, self.config.entry != ANY
        waits = counted and not isinstance(self.config.entry, ProbabilityEntry)
        for waiting in (False, True) if waits else (False,):
            for keys, rows, counts in read_rows(found, shape.name, waiting=waiting):
                self.core.load(keys, np.ascontiguousarray(rows[:, :width]), counts if counted else NONE)

    def _load_dense(self, found: Set) -> None:
        state = read_state(found, self.config, self.rule)
        parts = read_array(found, self.config), *(state.slots if state else ())
        for at, keys in split_rows(*self.config.shape):
            self.core.load(keys, np.concatenate([one[at] for one in parts], axis=1), NONE)

    def split(self, *, waiting: bool = False) -> Iterator[tuple[U64, F32, F32]]:
        """Yield keys [n], rows with state [n, ..] and counts [n, 3] in pieces; of waiting keys no rows."""
        left, number = self.core.count()[waiting], 0
        width = self.config.cols + self._rest
        step = max(1, CHUNK_BYTES // (4 * width))
        while left > 0:
            n = min(step, left)
            keys, rows = np.empty(n, np.uint64), np.empty((0 if waiting else n, width), np.float32)
            counts = np.empty((n if self.config.entry != ANY else 0, 3), np.float32)
            number = self.core.copy(number, keys, rows, counts)
            left -= n
            yield keys, rows, counts

    def make_whole(self, state: State) -> Whole:
        count, waiting = self.core.count()
        parts = (part[i] for i in range(3) for own in (False, True) for part in self.split(waiting=own))
        create = make_create(self.config, self.rule, self.seed, table=True)
        return make_whole(self.config, create, state, parts, count, waiting)
