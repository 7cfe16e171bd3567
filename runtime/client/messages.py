"""What trainers tell each other beside the training: rows of a table on pservers, exact in float32."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from .. import _core
from ..engine.arrays import F32, U64, Ids

COLS = 64
MOST_ROWS = 1 << 20  # of one trainer's message, 128 MiB
_LIMB_BITS = 12  # sums of 4,096 trainers (PS_MAX_TRAINERS) have no more than float32's 24
_SHIFTS = np.arange(5) * _LIMB_BITS
_USED = 60  # of the values of a row: a number is in one row, so it is read whole


def count_rows(size: int) -> int:
    """Return the rows of a message of so many bytes: its size, then 16 bits in each value."""
    return 1 + -(-size // (2 * COLS))


def pack_rows(data: bytes) -> F32:
    rows = np.zeros((count_rows(len(data)), COLS), np.float32)
    rows[0, :4] = np.frombuffer(len(data).to_bytes(8, "little"), "<u2")
    padded = data + bytes(-len(data) % (2 * COLS))
    rows[1:] = np.frombuffer(padded, "<u2").reshape(-1, COLS)
    return rows


def split_numbers(numbers: Ids) -> F32:
    """Return rows of whole numbers from 0 to 2^60 - 1, each in 5 values: rows may be added, and are exact."""
    limbs = numbers.reshape(-1, 1) >> _SHIFTS & ((1 << _LIMB_BITS) - 1)
    rows = np.zeros((-(-limbs.size // _USED), COLS), np.float32)
    rows[:, :_USED].flat[: limbs.size] = limbs
    return rows


def join_numbers(rows: F32, like: Ids) -> Ids:
    """Return the numbers of rows, in the shape of `like`."""
    limbs = rows[:, :_USED].reshape(-1, len(_SHIFTS))[: like.size].astype(np.int64)
    found: Ids = (limbs << _SHIFTS).sum(axis=1).reshape(like.shape)
    return found


class Sender(Protocol):
    """What messages need of a caller."""

    trainer_id: int

    def call(self, add: Callable[[], object]) -> object: ...
    def barrier(self) -> None: ...
    def make_message_table(self) -> int: ...


class Messages:
    """The table of messages: the last object of all trainers, whoever makes it first."""

    def __init__(self, caller: Sender, core: _core.Client, trainers: int) -> None:
        self._caller, self._core = caller, core
        self._trainer, self._trainers = caller.trainer_id, trainers
        self._count = 0  # of calls of gather()
        self._gathered = (np.empty((0, COLS), np.float32),) * 2  # own rows of the last two
        self._added: dict[str, F32] = {}  # own rows of add_up()

    @functools.cached_property
    def _table(self) -> int:
        return self._caller.make_message_table()

    def gather(self, data: bytes) -> list[bytes]:
        """Return the bytes of every trainer, in order of trainers; all of them call it, between passes."""
        own = pack_rows(data)
        if len(own) > MOST_ROWS:
            raise ValueError(f"gather: {len(data)} bytes are more than {(MOST_ROWS - 1) * 2 * COLS}")
        keys, table = self._make_keys, self._table
        old = self._gathered[0]
        change = np.zeros((max(len(old), len(own)), COLS), np.float32)
        change[: len(old)] = old
        change[: len(own)] -= own  # the rule subtracts it, without rounding
        self._caller.call(lambda: self._core.push_rows(table, keys(self._trainer, len(change)), change))
        self._gathered = self._gathered[1], own
        self._caller.barrier()
        heads = self._pull(np.concatenate([keys(trainer, 1) for trainer in range(self._trainers)]))
        sizes = [int.from_bytes(head[:4].astype("<u2").tobytes(), "little") for head in heads]
        found = [self._pull(keys(trainer, count_rows(size))) for trainer, size in enumerate(sizes)]
        self._count += 1
        return [rows[1:].astype("<u2").tobytes()[:size] for rows, size in zip(found, sizes, strict=True)]

    def _make_keys(self, trainer: int, rows: int) -> U64:
        """Return the keys of a trainer's rows in this call. Those of the call before may still be read."""
        first = (self._count % 2 * self._trainers + trainer) * MOST_ROWS
        return np.arange(first, first + rows, dtype=np.uint64)

    def _pull(self, keys: U64) -> F32:
        table, rows = self._table, np.empty((len(keys), COLS), np.float32)
        self._caller.call(lambda: self._core.pull_rows(table, keys, rows))
        return rows

    def add_up(self, own: Mapping[str, Ids]) -> dict[str, Ids]:
        """Return the sums over all trainers of what each gave last under these names.

        Whole numbers from 0 to 2^60 - 1, equally many under a name. Waits for pservers alone.
        """
        table, rows = self._table, {name: split_numbers(one) for name, one in own.items()}
        keys = {
            name: np.arange(len(new), dtype=np.uint64) + np.uint64(_core.hash_name(name))
            for name, new in rows.items()
        }

        def add() -> None:
            for name, new in rows.items():
                change = self._added.get(name, np.zeros_like(new)) - new
                some = change.any(axis=1)
                self._core.push_rows(table, keys[name][some], change[some])
            self._added.update(rows)

        self._caller.call(add)
        return {name: join_numbers(self._pull(keys[name]), one) for name, one in own.items()}
