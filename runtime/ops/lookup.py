"""Lookups of table rows. Their ids are computed before the step, so that all rows are fetched at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..arrays import F32, Ids
from ..graph import Value
from .base import Grads, Op, Shape, Step
from .dense import Concat


class Lookup(Op, op="lookup"):
    """The table row of each id, of size `dim`; `padding`: an id whose row is zero and never learns, or None.

    The only parameter is the table. Ids of shape [batch, k] give [batch, k, dim].
    """

    takes = ("id",)
    options = ("dim", "padding")

    @staticmethod
    def find_shape(attrs: Mapping[str, Any], ids: Value) -> Shape:
        return (*ids.shape, attrs["dim"])

    home: tuple[Concat, int] | None = None  # the result is an input of it, and written there

    def get_rows(self, count: int) -> F32:
        """Return the array for the rows of `count` ids, to be filled before `forward`."""
        if self.home is not None:
            concat, i = self.home
            return concat.get_buffer("result", (count, concat.value.shape[1]))[concat.parts[i]]
        return self.get_buffer("result", (count, self.value.shape[-1]))

    def forward(self, step: Step, ids: Ids) -> F32:
        rows, padding = self.get_rows(ids.size), self.value.attrs["padding"]
        if padding is not None:
            rows[ids.reshape(-1) == padding] = 0.0
        return rows if ids.ndim == 1 else rows.reshape(*ids.shape, rows.shape[1])

    def backward(self, step: Step, grad: F32, result: F32, ids: Ids) -> Grads:
        rows = grad if ids.ndim == 1 else grad.reshape(ids.size, grad.shape[-1])
        step.row_grads[self.value.name] = self.clear_padding(rows, ids)
        return (None,)

    def clear_padding(self, rows: F32, ids: Ids) -> F32:
        """Return rows of these ids with zeros for the padding."""
        padding = self.value.attrs["padding"]
        return rows if padding is None else rows * (ids.reshape(-1, 1) != padding)


def find_tables(values: Iterable[Value]) -> frozenset[str]:
    """Return the parameters that are looked up; raises ValueError if another operation reads one of them."""
    users = [(config.name, value.op == "lookup") for value in values for config in value.params]
    tables = frozenset(name for name, looks_up in users if looks_up)
    for name, looks_up in users:
        if name in tables and not looks_up:
            raise ValueError(f"parameter {name}: the table of lookups can't be the weight of another layer")
    return tables
