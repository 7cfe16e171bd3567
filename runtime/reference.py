"""The kernels in numpy: csrc/ must compute the same bits. Readable as the specification, not for training.

All floats are float32 and every operation rounds once, in the order written; the payload of a NaN is
unspecified. Sources of the formulas: PaddlePaddle v2, paddle/math/TrainingAlgorithmOp.cu and
paddle/parameter/ParameterUpdateFunctions.cpp; csrc/ps_optim.h names the differences.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
U64 = npt.NDArray[np.uint64]

SGD, MOMENTUM, ADAGRAD = 0, 1, 2
NORMAL, UNIFORM = 0, 1

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def apply_optim(
    method: int,
    value: F32,
    slots: F32 | None,
    grad: F32,
    lr: float,
    momentum: float,
    decay: float,
    epsilon: float,
) -> None:
    """Apply one optimizer step in place. All arrays have one shape; SGD has no slots."""
    rate = np.float32(lr)
    change = rate * (grad + np.float32(decay) * value)
    if method == SGD:
        value -= change
        return
    assert slots is not None
    if method == MOMENTUM:
        slots[...] = np.float32(momentum) * slots - change
        value += slots
    else:
        slots += grad * grad
        value -= change / np.sqrt(slots + np.float32(epsilon))


def apply_sparse(
    method: int,
    value: F32,
    slots: F32 | None,
    rows: U64,
    grad: F32,
    lr: float,
    momentum: float,
    decay: float,
    epsilon: float,
) -> None:
    """Apply one step to the rows `rows` [k] (unique) of value [n, dim], in place. grad: [k, dim]."""
    part = value[rows]
    state = None if slots is None else slots[rows]
    apply_optim(method, part, state, grad, lr, momentum, decay, epsilon)
    value[rows] = part
    if slots is not None and state is not None:
        slots[rows] = state


def add(acc: F32, g: F32) -> None:
    """Compute acc += g in place."""
    acc += g


def hash_name(name: str) -> int:
    """Return the 64-bit FNV-1a hash of the name in UTF-8 (Fowler, Noll, Vo)."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3) & _MASK
    return value


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
    unit = _draw_normal(streams) if kind == NORMAL else _draw_uniform(streams)
    out[...] = np.float32(mean) + np.float32(std) * (unit if std else np.zeros_like(unit))


@dataclass(kw_only=True, slots=True)
class SparseTable:
    """A sparse table as dicts by key: rows [dim], their optimizer state, and the sum of the open step."""

    dim: int
    method: int
    lr: float
    momentum: float = 0.0
    decay: float = 0.0
    epsilon: float = 1e-6
    seed: int = 1
    table: int = 0
    kind: int = NORMAL
    mean: float = 0.0
    std: float = 0.0
    rows: dict[int, F32] = field(default_factory=dict)
    states: dict[int, F32] = field(default_factory=dict)
    step: dict[int, F32] = field(default_factory=dict)

    def read(self, keys: U64) -> F32:
        """Return a new array [n, dim]: the rows, or initial values of missing ones."""
        out = np.empty((len(keys), self.dim), dtype=np.float32)
        init_rows(out, keys, self.seed, self.table, self.kind, self.mean, self.std)
        for place, key in enumerate(keys.tolist()):
            out[place] = self.rows.get(key, out[place])
        return out

    def _touch(self, key: int) -> F32:
        if key not in self.rows:
            self.rows[key] = self.read(np.array([key], dtype=np.uint64))[0]
            self.states[key] = np.zeros(self.dim, dtype=np.float32)
        return self.rows[key]

    def add(self, keys: U64, grads: F32) -> None:
        """Add to the sum of the step, in order; the first gradient of a key is copied."""
        for key, grad in zip(keys.tolist(), grads, strict=True):
            self._touch(key)
            self.step[key] = self.step[key] + grad if key in self.step else grad.copy()

    def commit(self) -> None:
        """Apply the optimizer to every row in the sum, and clear it."""
        for key, grad in self.step.items():
            state = None if self.method == SGD else self.states[key]
            apply_optim(
                self.method, self.rows[key], state, grad, self.lr, self.momentum, self.decay, self.epsilon
            )
        self.step.clear()

    def set(self, keys: U64, values: F32) -> None:
        """Set the values of rows; their states and the step's sum stay."""
        for key, value in zip(keys.tolist(), values, strict=True):
            self._touch(key)[...] = value
