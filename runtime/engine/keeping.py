"""Parameters and their optimizer's state in sets: written from arrays, and read into them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..files.joined import find_items, read_rows, read_values, split_state
from ..files.manifest import Manifest
from ..files.objects import SetError, Whole, encode_create
from ..files.sets import Set, check_shape, count_before
from ..process.settings import get_settings
from .arrays import F32, U64, split_rows
from .kernel_numbers import KINDS, Optim
from .param_config import ParamConfig

NO_RULE = Optim(method="sgd", learning_rate=0.0)  # of a parameter that does not learn


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """The optimizer's state of a parameter: [slots, rows, cols], None without slots, and what came before."""

    slots: F32 | None = None
    steps: int = 0
    samples: int = 0
    passes: int = 0


def make_create(config: ParamConfig, rule: Optim, seed: int, *, table: bool) -> bytes:
    """Return the description of a parameter for a set."""
    shape = (config.cols, 0, config.rows) if table else (0, 0, config.rows * config.cols)
    init = seed, KINDS[config.start], config.mean, config.std
    return encode_create(config.name, shape, rule.pack(), rule.schedule.pack(), config.entry.pack(), init)


def make_whole(config: ParamConfig, values: F32, rule: Optim, state: State, seed: int) -> Whole:
    """Return a dense parameter for a set."""
    return Whole(
        shape=config.shape,
        create=make_create(config, rule, seed, table=False),
        count=values.size,
        pieces=map(get_bytes, [values, *([] if state.slots is None else state.slots)]),
        steps=state.steps,
        samples=state.samples,
        passes=state.passes,
    )


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
    shape = found.shapes[config.name]
    if not shape.table:
        values = np.empty(config.shape, np.float32)
        read_values(found, config.name, 0, values.reshape(-1))
        return values
    saved, seed = find_init(found, config)
    values = np.empty(config.shape, np.float32)
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
    return State(slots=slots if shape.slots else None, **before)


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
