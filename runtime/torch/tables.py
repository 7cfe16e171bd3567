"""`Embedding` and `EmbeddingBag` as torch.nn has them, with rows on the pservers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pslaunch.runtime import _core
from pslaunch.runtime.client.caller import Init
from pslaunch.runtime.engine.arrays import F32, Ids, find_offsets, split_rows
from pslaunch.runtime.engine.entry import ANY, EntryAttr, ShowClickEntry

from .optimizers import OF_TABLES, make_torch_rule
from .session import SPECS, LookedUp, TableSpec, get_array, get_session

NORMAL = Init(kind="normal", mean=0.0, std=1.0)  # torch's


Bags = tuple[Ids, F32 | None]  # offsets [n + 1], and divisors of a mean [n, 1]


class _Gather(torch.autograd.Function):
    """Rows of ids, or sums of bags. `anchor` has no values: it makes torch ask for the gradient."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, weights: Tensor | None, found: LookedUp, bags: Bags | None, device: Any
    ) -> Tensor:
        values = None if weights is None else get_array(weights, torch.float32)
        ctx.found, ctx.device, ctx.counts = found, device, bags and bags[1]
        ctx.bags = () if bags is None else (bags[0], values, -1)
        count = len(found.rows.index) if bags is None else len(bags[0]) - 1
        # Pinned, so that the copy to a GPU runs beside what it computes.
        out = torch.empty((count, found.spec.dim), pin_memory=device.type == "cuda")
        rows = out.numpy()
        part = (rows, *ctx.bags) if ctx.bags else rows
        _core.gather_rows(found.values, found.rows.index, [part], torch.get_num_threads())
        if ctx.counts is not None:
            rows /= ctx.counts
        return out.to(device, non_blocking=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, found, of_weights = get_array(grad, torch.float32), ctx.found, None
        if ctx.counts is not None:
            rows = rows / ctx.counts
        if ctx.needs_input_grad[1]:
            products = found.values[found.rows.index] * rows.repeat(np.diff(ctx.bags[0]), axis=0)
            of_weights = torch.from_numpy(products.sum(axis=1)).to(ctx.device)
        session = get_session()
        session.add_grads(found, (rows, *ctx.bags) if ctx.bags else rows)
        # As DDP does it: called once this whole backward pass is done.
        torch.autograd.Variable._execution_engine.queue_callback(session.end_backward)
        return None, of_weights, None, None, None


class _Table(torch.nn.Module):
    def __init__(
        self,
        name: str,
        dim: int,
        optimizer: str = "adagrad",
        *,
        lr: float | None = None,
        init: float | Init = NORMAL,
        entry: EntryAttr = ANY,
        reduction: Literal["mean", "sum"] = "mean",
        padding_idx: int | None = None,
        **options: object,
    ) -> None:
        """name: in the job; two modules with the same one share their rows.

        optimizer: "sgd", "adagrad", "sparse_adam", with torch.optim's formulas, defaults and options, or
        "row_adagrad". init: a number or a distribution of the values of a row that no step has changed.
        entry: the keys that get a row. reduction: of gradients over trainers. The ids are any of 64 bits.
        """
        super().__init__()
        given: tuple[tuple[str, object, type | tuple[type, ...]], ...] = (
            ("name", name, str), ("dim", dim, int), ("padding_idx", padding_idx, (int, type(None))),
            ("entry", entry, EntryAttr), ("init", init, (int, float, Init)),
        )  # fmt: skip
        for what, value, kinds in given:
            if not isinstance(value, kinds) or (what == "dim" and dim < 1):
                raise TypeError(f"table {name!r}: {what}={value!r} is nothing that a table can have")
        if reduction not in ("mean", "sum") or isinstance(entry, ShowClickEntry):
            raise ValueError(f"table {name!r}: {reduction=} or {entry=}, which pslaunch.torch does not have")
        rule = make_torch_rule(OF_TABLES, optimizer, lr, options)
        begin = init if isinstance(init, Init) else Init(kind="normal", mean=float(init), std=0.0)
        self.padding_idx = padding_idx
        self.spec = TableSpec(name, dim, rule, begin, entry, reduction == "mean")
        if differs := SPECS.setdefault(name, self.spec).compare(self.spec):
            raise ValueError(f"table {name!r} exists with {differs}")

    def extra_repr(self) -> str:
        return f"{self.spec.name!r}, {self.spec.dim}"

    def get_extra_state(self) -> dict[str, object]:
        """Return the handle that `state_dict` has in place of the rows."""
        return {"table": self.spec.name, "dim": self.spec.dim}

    def set_extra_state(self, state: object) -> None:
        if state != self.get_extra_state():
            raise ValueError(f"the state is of the table {state}, this is {self.get_extra_state()}")

    def to_dense(self, rows: int) -> Tensor:
        """Return the rows 0 to `rows` - 1 as the pservers have them."""
        if rows < 1:
            raise ValueError(f"to_dense({rows}): expected 1 row or more")
        session, spec = get_session(), self.spec
        parts = [keys.view(np.int64) for _, keys in split_rows(rows, spec.dim)]
        with torch.no_grad():  # no step begins
            return torch.cat([torch.from_numpy(session.look_up(spec, ids).values) for ids in parts])

    def find_ids(self, ids: Tensor) -> tuple[Ids, npt.NDArray[np.bool_] | None]:
        """Return the ids that are looked up, [n], and a mask of all if padding ones are left out."""
        if ids.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"ids are {ids.dtype}, expected torch.int64")
        flat: Ids = get_array(ids, torch.int64).reshape(-1)
        if self.padding_idx is None or (mask := flat != self.padding_idx).all():
            return flat, None
        return flat[mask], mask

    def _gather(self, ids: Ids, device: Any, bags: Bags | None, weights: Tensor | None = None) -> Tensor:
        SPECS.setdefault(self.spec.name, self.spec)  # of a module that was loaded
        found, anchor = get_session().look_up(self.spec, ids), torch.empty(0, requires_grad=True)
        out: Tensor = _Gather.apply(anchor, weights, found, bags, device)
        return out


class Embedding(_Table):
    """torch.nn.Embedding with rows on the pservers; that of `padding_idx` is zeros."""

    def forward(self, ids: Tensor) -> Tensor:
        own, mask = self.find_ids(ids)
        bags = None if mask is None else (find_offsets(mask), None)  # a bag of an id or none for each
        return self._gather(own, ids.device, bags).reshape(*ids.shape, self.spec.dim)


class EmbeddingBag(_Table):
    """torch.nn.EmbeddingBag with rows on the pservers; mode is "sum" or "mean"."""

    def __init__(
        self, *arguments: Any, mode: str = "mean", include_last_offset: bool = False, **options: Any
    ) -> None:
        if mode not in ("sum", "mean"):
            raise ValueError(f'mode={mode!r}, expected "sum" or "mean"')
        super().__init__(*arguments, **options)
        self.mode, self.include_last_offset = mode, include_last_offset

    def forward(
        self, ids: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        weights = per_sample_weights
        if weights is not None and (self.mode != "sum" or weights.shape != ids.shape):
            raise ValueError('per_sample_weights: only for mode="sum", and one for each id')
        ends = self._find_ends(ids, offsets)
        own, mask = self.find_ids(ids)
        weights = None if weights is None else weights.reshape(-1)
        if mask is not None:
            ends = find_offsets(mask)[ends]
            weights = None if weights is None else weights[torch.from_numpy(mask).to(weights.device)]
        counts = np.maximum(np.diff(ends), 1).astype(np.float32)[:, None] if self.mode == "mean" else None
        return self._gather(own, ids.device, (ends, counts), weights)

    def _find_ends(self, ids: Tensor, offsets: Tensor | None) -> Ids:
        """Return the offsets of bags, and the number of ids."""
        if offsets is None and ids.dim() == 2:
            every: Ids = np.arange(len(ids) + 1) * ids.shape[1]
            return every
        if offsets is not None and (offsets.dtype.is_floating_point or offsets.dim() != 1):
            raise TypeError("offsets: expected whole numbers [bags]")
        ends: Ids = np.zeros(0, np.int64) if offsets is None else get_array(offsets, torch.int64)
        ends = ends if self.include_last_offset else np.append(ends, ids.numel())
        if ids.dim() != 1 or [*ends[:1], *ends[-1:]] != [0, ids.numel()] or np.any(ends[1:] < ends[:-1]):
            raise ValueError("expected ids [bags, n]; or ids [n], and offsets of bags that ascend from 0")
        return ends


def prefetch(batch: Mapping[_Table, Tensor]) -> None:
    """Let the rows of these ids of each module come with the next push, or with the first of their lookups.

    Before the backward pass of the batch before it costs no round trip of its own.
    """
    get_session().prefetch([(module.spec, module.find_ids(ids)[0]) for module, ids in batch.items()])


def prefetch_each(loader: Iterable[Any], choose: Callable[[Any], Mapping[_Table, Tensor]]) -> Iterator[Any]:
    """Yield the batches of a DataLoader, with the ids that `choose` gives prefetched one batch ahead."""
    held: list[Any] = []
    for batch in loader:
        prefetch(choose(batch))
        yield from held
        held = [batch]
    yield from held
