"""Lookups of table rows. Their ids are computed before the step, so that all rows are fetched at once."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import numpy as np

from ..arrays import F32, Ids, Part
from ..entry import ShowClickEntry
from ..graph import Graph, Value
from ..param_config import ANY_ID
from .base import ANY_ROWS, Array, Grads, Op, Shape, Step
from .dense import Concat


class Lookup(Op, op="lookup", takes="id", options="dim padding"):
    """The table row of each id, of size `dim`; `padding`: an id, from the end if below 0, whose row is zero
    and never learns, or None.

    The only parameter is the table. Ids of shape [batch, k] give [batch, k, dim]. If the table admits ids by
    shows and clicks, two more inputs have those of each sample when a plan trains; they precede the
    gradients of its rows, [.., 2 + dim].
    """

    def find_shape(self, ids: Value) -> Shape:
        return (*ids.shape, self.attrs["dim"])

    def find_params(self, ids: Value) -> Sequence[Shape]:
        return ((ANY_ROWS, self.attrs["dim"]),)

    def check_params(self, *inputs: Value) -> None:
        super().check_params(*inputs)
        (table,), padding = self.params, self.attrs["padding"]
        rows = table.rows
        if rows > ANY_ID:
            raise ValueError(f"{table.name} has {rows} ids; the limit is 2**64 - 1, of any ids")
        if rows == ANY_ID and not table.sparse:
            raise ValueError(f"{table.name} has a row for any id; set is_sparse=True, or sparse_update=True")
        if padding is not None and not -rows <= padding < rows:
            raise ValueError(f"padding_idx={padding}, expected less than {rows}, the number of ids")

    def __init__(self, value: Value, needs: Sequence[bool] = ()) -> None:
        super().__init__(value, needs)
        self.number = value.number  # gradients of one row are added in this order
        self.home: tuple[Concat, int] | None = None  # the result is an input of it, and written there

    @functools.cached_property
    def _padding(self) -> np.int64 | None:
        padding, rows = self.attrs["padding"], self.params[0].rows
        known = None if padding is None else np.uint64(padding % (2**64 if rows == ANY_ID else rows))
        return None if known is None else known.astype(np.int64)

    @property
    def only_copies(self) -> bool:
        """Whether its result is the rows, and their gradient its own."""
        return type(self) is Lookup and self._padding is None

    def get_rows(self, count: int) -> F32:
        """Return the array for the rows of `count` ids, to be filled before `forward`."""
        if self.home is not None:
            concat, i = self.home
            return concat.get_buffer("result", (count, concat.value.shape[1]))[concat.parts[i]]
        return self.get_buffer("result", (count, self.value.shape[-1]))

    def make_part(self, step: Step, ids: Ids, *others: Array) -> Part:
        """Return what a kernel fills with rows before `forward`."""
        return self.get_rows(ids.size)

    @classmethod
    def choose(cls, value: Value, program: Graph, *, trains: bool) -> tuple[type[Op], tuple[Value, ...]]:
        (table,) = value.params
        if not trains or not isinstance(table.entry, ShowClickEntry):
            return cls, value.inputs
        names = table.entry.show_name, table.entry.click_name
        return cls, (*value.inputs, *(_get_numbers(program, name, table.name) for name in names))

    def forward(self, step: Step, ids: Ids, *shows: Array) -> F32:
        rows, padding = self.get_rows(ids.size), self._padding
        if padding is not None:
            rows[ids.reshape(-1) == padding] = 0.0
        return rows if ids.ndim == 1 else rows.reshape(*ids.shape, rows.shape[1])

    def backward(self, step: Step, grad: F32, result: F32, ids: Ids, *shows: Array) -> Grads:
        rows, padding = grad.reshape(ids.size, grad.shape[-1]), self._padding
        if shows:
            offsets = step.offsets.get(self.sequence)
            uses = ids.size // len(shows[0]) if offsets is None else np.diff(offsets) * ids[:1].size
            columns = [one.reshape(-1).astype(np.float32).repeat(uses) for one in shows]
            rows = np.column_stack([*columns, rows])
        step.row_grads[self.value.name] = rows if padding is None else rows * (ids.reshape(-1, 1) != padding)
        return None, *[None for _ in shows]


def _get_numbers(program: Graph, name: str, table: str) -> Value:
    """Return the data of this name, with one number for each sample."""
    needs = f"parameter {table}: its entry rule needs"
    try:
        value = program.get(name)
    except KeyError as e:
        remedy = "a v2 program gives it to trainer.SGD(extra_layers=...)"
        raise ValueError(f"{needs} the data {name!r}: {e.args[0]}; {remedy}") from None
    if value.op != "data" or not value.has_batch or value.is_sequence or value.size != 1:
        raise ValueError(f"{needs} data with a number for each sample, not {name}")
    return value


def find_tables(values: Iterable[Value]) -> frozenset[str]:
    """Return the parameters that are looked up; raises ValueError if another operation reads one of them."""
    users = [(config.name, value.op == "lookup") for value in values for config in value.params]
    tables = frozenset(name for name, looks_up in users if looks_up)
    for name, looks_up in users:
        if name in tables and not looks_up:
            raise ValueError(f"parameter {name}: the table of lookups can't be the weight of another layer")
    return tables
