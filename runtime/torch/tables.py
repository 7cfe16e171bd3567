"""`Embedding` and `EmbeddingBag` as torch.nn has them, with rows on the pservers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pslaunch.runtime import _core
from pslaunch.runtime.client.caller import Init
from pslaunch.runtime.engine.arrays import F32, Ids, split_rows
from pslaunch.runtime.engine.entry import ANY, EntryAttr, ShowClickEntry
from pslaunch.runtime.engine.kernel_numbers import Optim

from .formulas import OF_TABLES, make_torch_rule
from .session import SPECS, LookedUp, TableSpec, TorchSession, get_array, get_session

NORMAL = Init(kind="normal", mean=0.0, std=1.0)  # torch's


@dataclass(frozen=True, slots=True)
class Bags:
    """Bags of ids: their offsets [n + 1], and divisors of a mean [n, 1]."""

    offsets: Ids
    counts: F32 | None = None


class _Gather(torch.autograd.Function):
    """Rows of ids, or sums of bags. `anchor` has no values: it makes torch ask for the gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        weights: Tensor | None,
        device: torch.device,
        session: TorchSession,
        found: LookedUp,
        bags: Bags | None,
    ) -> Tensor:
        ctx.session, ctx.found, ctx.bags, ctx.device = session, found, bags, device
        ctx.weights = None if weights is None else get_array(weights, torch.float32)
        count = len(found.rows.index) if bags is None else len(bags.offsets) - 1
        # Pinned, so that the copy to a GPU runs beside what it computes.
        out = torch.empty((count, found.spec.dim), pin_memory=device.type == "cuda")
        rows = out.numpy()
        part = rows if bags is None else (rows, bags.offsets, ctx.weights, -1)
        _core.gather_rows(found.values, found.rows.index, [part], torch.get_num_threads())
        if bags is not None and bags.counts is not None:
            rows /= bags.counts
        return out.to(device, non_blocking=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, bags, found, of_weights = get_array(grad, torch.float32), ctx.bags, ctx.found, None
        if bags is not None and bags.counts is not None:
            rows = rows / bags.counts
        if ctx.needs_input_grad[1]:
            uses = np.diff(bags.offsets)
            products = found.values[found.rows.index] * rows.repeat(uses, axis=0)
            of_weights = torch.from_numpy(products.sum(axis=1)).to(ctx.device)
        part = rows if bags is None else (rows, bags.offsets, ctx.weights, -1)
        ctx.session.add_grads(found, part)
        # As DDP does it: called once this whole backward pass is done.
        torch.autograd.Variable._execution_engine.queue_callback(ctx.session.end_backward)
        return None, of_weights, None, None, None, None


class _Table(torch.nn.Module):
    def __init__(
        self,
        name: str,
        dim: int,
        optimizer: str | Optim = "adagrad",
        *,
        lr: float | None = None,
        init: float | Init = NORMAL,
        entry: EntryAttr = ANY,
        reduction: Literal["mean", "sum"] = "mean",
        padding_idx: int | None = None,
        **options: object,
    ) -> None:
        """name: one of its own in the job; two modules with the same one share their rows.

        optimizer: "sgd", "adagrad", "sparse_adam", with torch.optim's formulas, defaults and options, or
        "row_adagrad". init: a number or a distribution of the values of a row that no step has changed.
        entry: the keys that get a row. reduction: of gradients over trainers. The ids are any of 64 bits.
        """
        super().__init__()
        if reduction not in ("mean", "sum"):
            raise ValueError(f'reduction={reduction!r}, expected "mean" or "sum"')
        if isinstance(entry, ShowClickEntry):
            raise ValueError(f"table {name!r}: a torch program has no shows and clicks for {entry}")
        rule = optimizer
        if not isinstance(rule, Optim):
            rule = make_torch_rule(OF_TABLES, rule, lr, options)
        elif lr is not None or options:
            raise TypeError(
                f"table {name!r}: a rule of the runtime has its own numbers; leave lr= and others out"
            )
        begin = init if isinstance(init, Init) else Init(kind="normal", mean=float(init), std=0.0)
        self.spec = TableSpec(
            name=name, dim=dim, rule=rule, init=begin, entry=entry, mean=reduction == "mean"
        )
        if SPECS.setdefault(name, self.spec) != self.spec:
            raise ValueError(f"table {name!r} exists with other numbers: {SPECS[name]}")
        self.padding_idx = padding_idx

    def extra_repr(self) -> str:
        return f"{self.spec.name!r}, {self.spec.dim}, {self.spec.rule.method}"

    def get_extra_state(self) -> dict[str, object]:
        """Return the handle that `state_dict` has in place of the rows."""
        return {"table": self.spec.name, "dim": self.spec.dim}

    def set_extra_state(self, state: object) -> None:
        if state != self.get_extra_state():
            raise ValueError(f"the state is of the table {state}, this is {self.get_extra_state()}")

    def to_dense(self, rows: int) -> Tensor:
        """Return the rows 0 to `rows` - 1 as the pservers have them."""
        session, spec = get_session(), self.spec
        parts = [keys.view(np.int64) for _, keys in split_rows(rows, spec.dim)]
        return torch.cat([torch.from_numpy(session.look_up(spec, ids).values) for ids in parts])

    def find_ids(self, ids: Tensor) -> tuple[Ids, npt.NDArray[np.bool_] | None]:
        """Return the ids that are looked up, [n], and a mask of all if padding ones are left out."""
        if ids.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"ids are {ids.dtype}, expected torch.int64")
        flat: Ids = get_array(ids, torch.int64).reshape(-1)
        if self.padding_idx is None or (mask := flat != self.padding_idx).all():
            return flat, None
        return flat[mask], mask

    def _gather(
        self, ids: Ids, device: torch.device, bags: Bags | None, weights: Tensor | None = None
    ) -> Tensor:
        SPECS.setdefault(self.spec.name, self.spec)  # of a module that was loaded
        session = get_session()
        found, anchor = session.look_up(self.spec, ids), torch.empty(0, requires_grad=True)
        out: Tensor = _Gather.apply(anchor, weights, device, session, found, bags)
        return out


class Embedding(_Table):
    """torch.nn.Embedding with rows on the pservers; the row of `padding_idx` is zeros."""

    def forward(self, ids: Tensor) -> Tensor:
        own, mask = self.find_ids(ids)
        bags = None if mask is None else Bags(_count(mask))  # a bag of an id or none for each
        return self._gather(own, ids.device, bags).reshape(*ids.shape, self.spec.dim)


def _count(mask: npt.NDArray[np.bool_]) -> Ids:
    """Return the number of true values before each place, and of all."""
    return np.concatenate([[0], np.cumsum(mask)])


class EmbeddingBag(_Table):
    """torch.nn.EmbeddingBag with rows on the pservers; mode is "sum" or "mean"."""

    def __init__(
        self,
        name: str,
        dim: int,
        optimizer: str | Optim = "adagrad",
        *,
        mode: Literal["sum", "mean"] = "mean",
        include_last_offset: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(name, dim, optimizer, **options)
        if mode not in ("sum", "mean"):
            raise ValueError(f'mode={mode!r}, expected "sum" or "mean"')
        self.mode, self.include_last_offset = mode, include_last_offset

    def forward(
        self, ids: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        weights = per_sample_weights
        if weights is not None and (self.mode != "sum" or weights.shape != ids.shape):
            raise ValueError('per_sample_weights: only for mode="sum", and one for each id')
        ends = self._find_offsets(ids, offsets)
        own, mask = self.find_ids(ids)
        weights = None if weights is None else weights.reshape(-1)
        if mask is not None:
            ends = _count(mask)[ends]
            weights = None if weights is None else weights[torch.from_numpy(mask).to(weights.device)]
        counts = np.maximum(np.diff(ends), 1).astype(np.float32)[:, None] if self.mode == "mean" else None
        return self._gather(own, ids.device, Bags(ends, counts), weights)

    def _find_offsets(self, ids: Tensor, offsets: Tensor | None) -> Ids:
        """Return the offsets of bags and the number of ids, as torch.nn.EmbeddingBag takes them."""
        if (ids.dim() == 2) != (offsets is None) or ids.dim() not in (1, 2):
            raise ValueError("expected ids [bags, n], or ids [n] and the offsets of bags")
        if offsets is None:
            every: Ids = np.arange(len(ids) + 1) * ids.shape[1]
            return every
        ends: Ids = get_array(offsets, torch.int64)
        ends = ends if self.include_last_offset else np.append(ends, ids.numel())
        if len(ends) == 0 or ends[0] != 0 or ends[-1] != ids.numel() or np.any(ends[1:] < ends[:-1]):
            raise ValueError(
                f"offsets {offsets}: expected ascending numbers from 0 to {ids.numel()}, the ids"
            )
        return ends


_Batch = TypeVar("_Batch")


def prefetch(batch: Mapping[_Table, Tensor]) -> None:
    """Let the rows of these ids of each module come with the next push, or with the first of their lookups.

    Before the backward pass of the batch before it costs no round trip of its own.
    """
    get_session().prefetch([(module.spec, module.find_ids(ids)[0]) for module, ids in batch.items()])


class Prefetching(Generic[_Batch]):
    """The batches of a DataLoader, or of anything else, each prefetched while the one before is learned."""

    def __init__(self, loader: Iterable[_Batch], choose: Callable[[_Batch], Mapping[_Table, Tensor]]) -> None:
        """choose: returns the ids of a batch, by the modules that will look them up."""
        self._loader, self._choose = loader, choose

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # if it has a length

    def __iter__(self) -> Iterator[_Batch]:
        held: list[_Batch] = []
        for batch in self._loader:
            prefetch(self._choose(batch))
            yield from held
            held = [batch]
        yield from held
