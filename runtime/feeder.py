"""Converts a reader's batch, a list of samples, to the arrays of the data layers."""

from __future__ import annotations

import itertools
import operator
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .arrays import F32, Ids
from .graph import Value

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

    def __init__(self, data_layers: Sequence[Value], feeding: Feeding = None) -> None:
        self._places = _map_places(data_layers, feeding)
        self._layers = list(data_layers)
        self._width = max(self._places.values()) + 1
        self._all_ids = all(layer.kind == "id" for layer in data_layers)
        self._columns = [self._places[layer.name] for layer in data_layers]
        self._dims = np.array(
            [layer.attrs["below"] for layer in data_layers if layer.kind == "id"], dtype=np.int64
        )

    def __call__(self, batch: Batch) -> dict[str, F32 | Ids]:
        """Return [n] ids or [n, dim] vectors by data layer; raises ValueError naming layer and sample."""
        try:
            size = len(batch)
        except TypeError:
            raise ValueError(f"the reader gave {batch!r}; {_ADVICE}") from None
        if size == 0:
            raise ValueError("the reader gave an empty batch")
        return (self._convert_ids(batch) if self._all_ids else None) or self._convert_columns(batch)

    def _convert_ids(self, batch: Batch) -> dict[str, F32 | Ids] | None:
        """Return all ids at once, or None if any item is no id of its layer: the columns name it."""
        try:
            width = len(batch[0])
            if width < self._width or any(size != width for size in map(len, batch)):
                return None
            table = _make_ids(itertools.chain.from_iterable(batch), len(batch) * width)
        except (TypeError, OverflowError):
            return None
        # One row for each layer, contiguous.
        ids = np.ascontiguousarray(table.reshape(len(batch), width).T[self._columns])
        if ids.min() < 0 or np.any(ids.max(axis=1) >= self._dims):
            return None
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
            convert = _convert_id_column if layer.kind == "id" else _stack
            found[layer.name] = convert(layer, column)
        return found


def _make_ids(items: Iterable[Any], count: int) -> Ids:
    """Return `count` whole numbers as an array; raises TypeError or OverflowError for anything else."""
    return np.fromiter(map(operator.index, items), np.int64, count)


def _convert_id_column(layer: Value, column: list[Any]) -> Ids:
    try:
        ids = _make_ids(column, len(column))
        if ids.min() >= 0 and ids.max() < layer.attrs["below"]:
            return ids
    except (TypeError, OverflowError):
        pass  # also numpy's bools and arrays with one id
    return np.array([_read_id(layer, i, item) for i, item in enumerate(column)], dtype=np.int64)


def _read_id(layer: Value, sample: int, item: Any) -> int:
    """Return one id; raises ValueError naming layer, sample, item, and the range."""
    whole, below = _find_whole_number(item), layer.attrs["below"]
    if whole is None or not 0 <= whole < below:
        shown = (
            f"item {reprlib.repr(item)}, expected a whole number from"
            if whole is None
            else f"id {whole}, expected"
        )
        raise ValueError(
            f"data layer {layer.name}: sample {sample} of the batch has the {shown} 0 to {below - 1}"
        )
    return whole


def _find_whole_number(item: Any) -> int | None:
    """Return the whole number that an int, a bool or a numpy array with one of them is, else None."""
    try:
        return operator.index(item)
    except TypeError:
        pass
    try:
        array = np.asarray(item)
    except ValueError:
        return None
    return int(array.item()) if array.size == 1 and array.dtype.kind in "biu" else None


def _stack(layer: Value, column: list[Any]) -> F32:
    """Return vectors as [n, dim]; raises ValueError naming the layer."""
    try:
        values: F32 = np.asarray(column, dtype=np.float32)
    except ValueError as e:
        raise ValueError(f"data layer {layer.name}: its items are not vectors of one size: {e}") from None
    if values.size != len(column) * layer.size:
        advice = f"; {_ADVICE}" if values.ndim == 1 else ""
        raise ValueError(
            f"data layer {layer.name}: items of shape {values.shape[1:]}, expected dim {layer.size}{advice}"
        )
    return np.ascontiguousarray(values.reshape(len(column), layer.size))


def _map_places(data_layers: Sequence[Value], feeding: Feeding) -> dict[str, int]:
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
