"""The kernels in numpy: csrc/ must compute the same bits. Readable as the specification, not for training.

All floats are float32 and every operation rounds once, in the order written; the payload of a NaN is
unspecified. The optimizers are in support/optimizers.py.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pslaunch.runtime.engine.kernel_numbers import Schedule
from support.optimizers import ADAGRAD as ADAGRAD
from support.optimizers import ADAM as ADAM
from support.optimizers import NAMES as NAMES
from support.optimizers import SGD as SGD
from support.optimizers import Rule as Rule
from support.optimizers import apply_optim as apply_optim
from support.optimizers import get_state_shape as get_state_shape

F32 = npt.NDArray[np.float32]
U64 = npt.NDArray[np.uint64]
Ids = npt.NDArray[np.int64]
Index = npt.NDArray[np.intp]

NORMAL, UNIFORM, LATE = 0, 1, 2
ANY, COUNT, PROBABILITY, SHOW_CLICK = range(4)

HEADER, PROTOCOL_VERSION = struct.Struct("<4sHHIIIfQIIQQI"), 5
_HALF_ROOT = float.fromhex("0x1.6a09e667f3bcdp-1")
_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _find_log(x: float) -> float:
    """Return log(x): n ln(2) + 2 artanh(f)."""
    m, n = math.frexp(x)
    if m < _HALF_ROOT:
        m, n = 2 * m, n - 1
    f = (m - 1) / (m + 1)
    square, total = f * f, 0.0
    for k in range(23, 0, -2):
        total = total * square + 1.0 / k
    return n * float.fromhex("0x1.62e42fefa39efp-1") + 2 * f * total


def _find_exp(x: float) -> float:
    """Return exp(x): 2**n times the series for the rest."""
    if x < -708:
        return 0.0
    if x > 709:
        return math.inf
    n = math.floor(x * float.fromhex("0x1.71547652b82fep0") + 0.5)
    r, total = x - n * float.fromhex("0x1.62e42fee00000p-1"), 1.0
    r -= n * float.fromhex("0x1.a39ef35793c76p-33")
    for k in range(14, 0, -1):
        total = total * r / k + 1
    return math.ldexp(total, n)


def _raise_any(base: float, exponent: float) -> float:
    return _find_exp(exponent * _find_log(base))


def find_scheduled_rate(schedule: Schedule, lr: float, samples: int, passes: int) -> np.float32:
    """Return the learning rate after so many samples and complete passes: csrc/tables/ps_schedule.h."""
    rate, n, a, b = float(np.float32(lr)), float(samples), schedule.a, schedule.b
    at = passes if schedule.kind == "pass_manual" else samples
    if schedule.kind == "poly":
        rate *= _raise_any(1 + a * n, -b)
    elif schedule.kind == "exp":
        rate *= _raise_any(a, n / b)
    elif schedule.kind == "discexp":
        rate *= _raise_any(a, math.floor(n / b))
    elif schedule.kind == "linear":
        rate = max(rate - a * n, b)
    elif schedule.segments:
        rate *= next((factor for last, factor in schedule.segments if at <= last), schedule.segments[-1][1])
    return np.float32(rate)


def find_rows(ids: Ids) -> tuple[U64, Index]:
    """Return the unique ids in the order of their first use, and the place of each id among them."""
    keys = list(dict.fromkeys(ids.tolist()))
    places = {key: place for place, key in enumerate(keys)}
    return np.array(keys, np.int64).view(np.uint64), np.array(
        [places[i] for i in ids.tolist()], dtype=np.intp
    )


def sum_rows(total: F32, index: Index, rows: F32) -> None:
    """Set total[k] to the sum of the rows whose index is k, one after the other."""
    for k in range(len(total)):
        first, *others = rows[index == k]
        total[k] = first
        for row in others:
            total[k] += row


def add(acc: F32, g: F32) -> None:
    """Compute acc += g in place."""
    acc += g


def hash_name(name: str) -> int:
    """Return the 64-bit FNV-1a hash of the name in UTF-8 (Fowler, Noll, Vo)."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3) & _MASK
    return value


def encode_header(
    *,
    op: int,
    epoch: int = 0,
    trainer: int = 0,
    samples: int = 0,
    factor: float = 0.0,
    sequence: int = 0,
    object: int = 0,
    flags: int = 0,
    version: int = 0,
    length: int = 0,
    count: int = 0,
) -> bytes:
    """Return the header of a frame (docs/protocol.md)."""
    begin = b"PSL1", PROTOCOL_VERSION, op, epoch, trainer, samples, factor, sequence
    raw = HEADER.pack(*begin, object, flags, version, length, count)
    check = np.zeros(1, np.uint64)
    for at in range(0, len(raw), 8):
        check = mix64(check ^ _make_scalar(int.from_bytes(raw[at : at + 8], "little")))
    return raw + struct.pack("<I", int(check[0] ^ check[0] >> np.uint64(32)) & 0xFFFFFFFF)


def mix64(x: U64) -> U64:
    """Return a new array: the finalizer of splitmix64 (Steele, Lea, Flood, OOPSLA 2014), one to one."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _make_scalar(x: int) -> U64:
    return np.array([x & _MASK], dtype=np.uint64)  # an array: numpy warns on overflow of scalars


def _start_streams(keys: U64, dim: int, seed: int, table: int) -> U64:
    """Return [n, dim]: each value's start in its row's splitmix64 stream; it uses three numbers."""
    base = mix64(mix64(mix64(_make_scalar(seed + _GOLDEN)) ^ _make_scalar(table)) ^ keys)
    steps = np.uint64(3) * np.arange(dim, dtype=np.uint64) + np.uint64(1)
    return base[:, None] + steps * _make_scalar(_GOLDEN)


def _draw_normal(streams: U64) -> F32:
    """Return the Irwin-Hall sum of twelve uniform 16-bit pieces, centred; exact; within 6 of 0."""
    total = np.zeros(streams.shape, dtype=np.int64)
    for step in range(3):
        bits = mix64(streams + _make_scalar(step * _GOLDEN))
        for shift in (0, 16, 32, 48):
            total += ((bits >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.int64)
    return (total - 6 * 65535).astype(np.float32) * np.float32(2**-16)


def _draw_uniform(streams: U64) -> F32:
    """Return odd multiples of 2**-23 in (-1, 1): the upper 23 bits; exact."""
    odd = (mix64(streams) >> np.uint64(41)).astype(np.int64) * 2 + 1
    return (odd - 2**23).astype(np.float32) * np.float32(2**-23)


def init_rows(out: F32, keys: U64, seed: int, table: int, kind: int, mean: float, std: float) -> None:
    """Set out [n, dim] to the initial values of the rows `keys` [n]: mean + std * unit."""
    streams = _start_streams(keys, out.shape[1], seed, table)
    unit = _draw_normal(streams) if kind % LATE == NORMAL else _draw_uniform(streams)
    out[...] = np.float32(mean) + np.float32(std) * (unit if std else np.zeros_like(unit))


@dataclass(kw_only=True, slots=True)
class Counts:
    """Counts of a key in a table with an entry rule."""

    shows: np.float32 = field(default_factory=lambda: np.float32(0))
    clicks: np.float32 = field(default_factory=lambda: np.float32(0))
    unseen: int = 0


@dataclass(kw_only=True, slots=True)
class SparseTable:
    """A sparse table as dicts by key: rows [dim], their optimizer state, and the sum of the open step.

    With an entry rule (csrc/tables/ps_entry.h) `counts` has the keys that are counted, with or without a row.
    """

    dim: int
    rule: Rule
    seed: int = 1
    table: int = 0
    kind: int = NORMAL
    mean: float = 0.0
    std: float = 0.0
    rows: dict[int, F32] = field(default_factory=dict)
    states: dict[int, F32] = field(default_factory=dict)
    sum: dict[int, F32] = field(default_factory=dict)
    steps: int = 0
    entry: tuple[int, float, float] = (ANY, 0.0, 0.0)
    counts: dict[int, Counts] = field(default_factory=dict)
    fresh: set[int] = field(default_factory=set)  # late rows that this step makes

    @property
    def extra(self) -> int:
        """Floats before each pushed gradient."""
        return 2 if self.entry[0] == SHOW_CLICK else 0

    def _score(self, counts: Counts) -> np.float32:
        if self.entry[0] != SHOW_CLICK:
            return counts.shows
        return (counts.shows - counts.clicks) * np.float32(self.entry[2]) + counts.clicks

    def _draw(self, key: int) -> float:
        base = mix64(mix64(_make_scalar(self.seed + _GOLDEN)) ^ _make_scalar(self.table))
        step = _make_scalar((self.steps + 1) * _GOLDEN)
        return int(mix64(mix64(base ^ _make_scalar(key)) ^ step)[0] >> np.uint64(40)) / 2**24

    def _enter(self, key: int, shows: np.float32, clicks: np.float32) -> bool:
        """Count a push of the key; return True if it has a row now."""
        rule, number, _ = self.entry
        if rule == ANY:
            return True
        counts = self.counts.get(key, Counts())
        counts.shows, counts.clicks, counts.unseen = counts.shows + shows, counts.clicks + clicks, 0
        if key in self.rows:
            return True
        if rule == PROBABILITY:
            admitted = self._draw(key) < float(np.float32(number))
        else:
            admitted = bool(self._score(counts) >= np.float32(number))
        if admitted or rule != PROBABILITY:
            self.counts[key] = counts
        return admitted

    def shrink(self, decay: float, score: float, unseen: int) -> int:
        """Decay all counts, and remove keys; return the number of rows removed."""
        before = len(self.rows)
        for key, counts in list(self.counts.items()):
            counts.shows *= np.float32(decay)
            counts.clicks *= np.float32(decay)
            counts.unseen += 1
            if self._score(counts) < np.float32(score) or 0 < unseen < counts.unseen - 1:
                del self.counts[key]
                self.rows.pop(key, None)
                self.states.pop(key, None)
        return before - len(self.rows)

    def read(self, keys: U64) -> F32:
        """Return a new array [n, dim]: the rows, or initial values of missing ones."""
        out = np.empty((len(keys), self.dim), dtype=np.float32)
        init_rows(out, keys, self.seed, self.table, self.kind, self.mean, self.std)
        if self.kind >= LATE:
            out[...] = 0.0
        for place, key in enumerate(keys.tolist()):
            out[place] = self.rows.get(key, out[place])
        return out

    def _touch(self, key: int) -> F32:
        if key not in self.rows:
            self.rows[key] = self.read(np.array([key], dtype=np.uint64))[0]
            self.states[key] = np.zeros(get_state_shape(self.rule.method, 1, self.dim), np.float32)
        return self.rows[key]

    def add(self, keys: U64, grads: F32) -> None:
        """Add to the sum of the step, in order; the first gradient of a key is copied."""
        for key, row in zip(keys.tolist(), grads, strict=True):
            shows, clicks = row[:2] if self.extra else (np.float32(1), np.float32(0))
            if not self._enter(key, shows, clicks):
                continue
            if self.kind >= LATE and key not in self.rows:
                self.fresh.add(key)
            self._touch(key)
            grad = row[self.extra :]
            self.sum[key] = self.sum[key] + grad if key in self.sum else grad.copy()

    def commit(self) -> None:
        """Apply the optimizer to every row in the sum, and clear it."""
        self.steps += 1
        for key in self.fresh:
            own = np.array([key], np.uint64)
            init_rows(self.rows[key][None], own, self.seed, self.table, self.kind, self.mean, self.std)
        self.fresh.clear()
        for key, grad in self.sum.items():
            apply_optim(self.rule, self.steps, self.rows[key][None], self.states[key], grad[None])
        self.sum.clear()

    def set(self, keys: U64, values: F32) -> None:
        """Set the values of rows; their states and the step's sum stay."""
        for key, value in zip(keys.tolist(), values, strict=True):
            if key not in self.rows and self.entry[0] != ANY:
                start = np.float32(1 if self.entry[0] == PROBABILITY else self.entry[1])
                clicks = start if self.extra else np.float32(0)
                self.counts[key] = Counts(shows=start, clicks=clicks)
            self._touch(key)[...] = value
