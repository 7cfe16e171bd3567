"""Converts a reader's batch, a list of samples, to the arrays of the data layers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .arrays import F32, Ids
from .layer import Layer

Feeding = Mapping[str, int] | Sequence[str] | None
Batch = Sequence[Any]

_ADVICE = (
    "a batch is a list of samples, each a tuple: paddle.batch(reader, size) makes it from a reader's samples"
)


class Feeder:
    """Maps the items of a sample to the data layers.

    `feeding` maps names of data layers to positions in a sample, or lists the names in order; None: the
    order in which the data layers were defined, as in v2. Items without a layer are ignored.
    """

    def __init__(self, data_layers: Sequence[Layer], feeding: Feeding = None) -> None:
        self._places = _map_places(data_layers, feeding)
        self._layers = list(data_layers)
        self._width = max(self._places.values()) + 1
        self._all_ids = all(layer.type and layer.type.kind == "integer" for layer in data_layers)
        self._dims = np.array([layer.size for layer in data_layers], dtype=np.int64)

    def __call__(self, batch: Batch) -> dict[str, F32 | Ids]:
        """Return [n] ids or [n, dim] vectors by data layer; raises ValueError naming layer and sample."""
        try:
            size = len(batch)
        except TypeError:
            raise ValueError(f"the reader gave {batch!r}; {_ADVICE}") from None
        if size == 0:
            raise ValueError("the reader gave an empty batch")
        return self._convert_ids(batch) if self._all_ids else self._convert_columns(batch)

    def _convert_ids(self, batch: Batch) -> dict[str, F32 | Ids]:
        table = _make_table(batch)
        if table.shape[1] < self._width:
            raise ValueError(
                f"a sample has {table.shape[1]} items, the data layers expect {self._width}; {_ADVICE}"
            )
        # One row for each layer, contiguous.
        ids = np.ascontiguousarray(table.T[[self._places[layer.name] for layer in self._layers]])
        if ids.min() < 0 or np.any(ids.max(axis=1) >= self._dims):
            for layer, column in zip(self._layers, ids, strict=True):
                _check_ids(layer, column)
        return {layer.name: ids[i] for i, layer in enumerate(self._layers)}

    def _convert_columns(self, batch: Batch) -> dict[str, F32 | Ids]:
        found: dict[str, F32 | Ids] = {}
        for layer in self._layers:
            place = self._places[layer.name]
            try:
                column = [sample[place] for sample in batch]
            except (IndexError, TypeError):
                raise ValueError(
                    f"data layer {layer.name}: a sample has no item {place}; {_ADVICE}"
                ) from None
            found[layer.name] = self._convert_column(layer, column)
        return found

    def _convert_column(self, layer: Layer, column: list[Any]) -> F32 | Ids:
        if layer.type is not None and layer.type.kind == "integer":
            try:
                ids: Ids = np.asarray(column, dtype=np.int64).reshape(-1)
            except (TypeError, ValueError) as e:
                raise ValueError(f"data layer {layer.name}: its items are not single ids: {e}") from None
            if len(ids) != len(column):
                raise ValueError(f"data layer {layer.name}: its items are not single ids")
            _check_ids(layer, ids)
            return ids
        try:
            values: F32 = np.asarray(column, dtype=np.float32)
        except ValueError as e:
            raise ValueError(f"data layer {layer.name}: its items are not vectors of one size: {e}") from None
        if values.size != len(column) * layer.size:
            advice = f"; {_ADVICE}" if values.ndim == 1 else ""
            raise ValueError(
                f"data layer {layer.name}: items of shape {values.shape[1:]}, "
                f"expected dim {layer.size}{advice}"
            )
        return np.ascontiguousarray(values.reshape(len(column), layer.size))


def _check_ids(layer: Layer, ids: Ids) -> None:
    """Raise ValueError naming the first id of [n] outside the layer's range."""
    bad = np.flatnonzero((ids < 0) | (ids >= layer.size))
    if bad.size:
        raise ValueError(
            f"data layer {layer.name}: sample {bad[0]} of the batch has the id {ids[bad[0]]}, "
            f"expected 0 to {layer.size - 1}"
        )


def _make_table(batch: Batch) -> Ids:
    """Return a batch of ids as one array [n, items]."""
    try:
        width = len(batch[0])
        if any(size != width for size in map(len, batch)):
            raise ValueError("the samples of a batch differ in their number of items")
        flat = np.fromiter(itertools.chain.from_iterable(batch), np.int64, len(batch) * width)
    except TypeError as e:
        raise ValueError(f"expected samples that are tuples of whole numbers: {e}; {_ADVICE}") from None
    return flat.reshape(len(batch), width)


def _map_places(data_layers: Sequence[Layer], feeding: Feeding) -> dict[str, int]:
    names = [layer.name for layer in data_layers]
    if feeding is None:
        return {name: place for place, name in enumerate(names)}
    given = dict(feeding) if isinstance(feeding, Mapping) else {name: i for i, name in enumerate(feeding)}
    missing = [name for name in names if name not in given]
    if missing:
        raise ValueError(f"feeding lacks the data layers {', '.join(missing)}")
    if any(place < 0 for place in given.values()):
        raise ValueError("feeding: positions in a sample start at 0")
    return {name: given[name] for name in names}
