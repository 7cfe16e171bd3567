"""Converts a reader's batch to the arrays of the data layers: a list of samples, or arrays by layer."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from .arrays import F32, Ids, Sequences
from .graph import Value

Feeding = Mapping[str, int] | Sequence[str] | None
Column = npt.NDArray[Any] | Sequences
Batch = Sequence[Any] | Mapping[str, Column]

_ADVICE = (
    "a batch is a list of samples, each a tuple: paddle.batch(reader, size) makes it from a reader's samples"
)


class Feeder:
    """Maps the items of a sample to the data layers.

    `feeding` maps names of data layers to positions in a sample, or lists the names in order; None: the
    order in which the data layers were defined, as in v2. Items without a layer are ignored. A batch may
    also be a dict of arrays, or of Sequences, by the names of data layers: these are taken as they are.

    A sparse vector with numbers has two data layers, which share its pairs: places, and `NAME.numbers`.
    """

    def __init__(self, data_layers: Sequence[Value], feeding: Feeding = None) -> None:
        self._layers = list(data_layers)
        owners = {layer.name: layer.attrs.get("numbers_of") for layer in data_layers}
        self._pairs = [(name, numbers) for numbers, name in owners.items() if name]
        self._places = _map_places([layer for layer in data_layers if not owners[layer.name]], feeding)
        self._halves: dict[str, int] = {}  # of pairs, by data layer
        for name, numbers in self._pairs:
            self._places[numbers] = self._places[name]
            self._halves |= {name: 0, numbers: 1}

    def __call__(self, batch: Batch) -> dict[str, Column]:
        """Return the column of each data layer; raises ValueError naming layer and sample."""
        if isinstance(batch, Mapping):
            return self._take_columns(batch)
        try:
            size = len(batch)
        except TypeError:
            raise ValueError(f"the reader gave {batch!r}; {_ADVICE}") from None
        if size == 0:
            raise ValueError("the reader gave an empty batch")
        return {layer.name: self._read(layer, batch) for layer in self._layers}

    def _read(self, layer: Value, batch: Sequence[Any]) -> Column:
        place = self._places[layer.name]
        if not layer.is_sequence:
            return _read_column(layer, batch, place)
        return _read_sequences(layer, batch, place, self._halves.get(layer.name, -1))

    def _take_columns(self, batch: Mapping[str, Column]) -> dict[str, Column]:
        columns, ids = {}, []
        for layer in self._layers:
            if layer.name not in batch:
                raise ValueError(f"data layer {layer.name}: the batch lacks it; it has {', '.join(batch)}")
            column = columns[layer.name] = _take_column(layer, batch[layer.name])
            items = column.items if isinstance(column, Sequences) else column
            if layer.kind == "id" and items.dtype == np.int64:  # the plan refuses others
                ids.append((layer, column, items.reshape(-1)))
        for name, numbers in self._pairs:
            places, own = columns[name], columns[numbers]
            if not (isinstance(places, Sequences) and isinstance(own, Sequences)):
                continue  # the plan refuses it
            if not np.array_equal(places.offsets, own.offsets):
                raise ValueError(f"data layer {name}: {numbers} has other offsets; each place has a number")
        outside = _core.find_outside([(items, _get_limit(layer)) for layer, _, items in ids])
        if outside is not None:
            layer, column, items = ids[outside[0]]
            raise ValueError(_describe_id(layer, _find_sample(column, outside[1]), items[outside[1]]))
        return columns


def _get_limit(layer: Value) -> int:
    """Return the number that all ids are below; 0: they may be any."""
    return layer.attrs["below"] or 0


def _find_range(layer: Value) -> tuple[int, int]:
    """Return the least and the greatest id."""
    limit = _get_limit(layer)
    return (0, limit - 1) if limit else (-(2**63), 2**63 - 1)


def _take_column(layer: Value, given: Column) -> Column:
    """Return the items of all samples in the layer's form, if they fit: one id of a sample may be [n, 1]."""
    if isinstance(given, Sequences):
        return Sequences(_convert(layer, given.items), given.offsets)
    array = _convert(layer, np.asarray(given))
    if array.shape[1:] != layer.shape[1:] and array.ndim and array.size == len(array) * layer.size:
        return array.reshape(-1, *layer.shape[1:])
    return array


def _convert(layer: Value, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return ids as int64 and numbers as float32; others as they are, which the plan refuses."""
    if array.dtype.kind not in ("biu" if layer.kind == "id" else "biuf"):
        return array
    return np.ascontiguousarray(array, np.int64 if layer.kind == "id" else np.float32)


def _find_sample(column: Column, place: int) -> int:
    if isinstance(column, Sequences):
        return int(np.searchsorted(column.offsets, place, side="right")) - 1
    return place * len(column) // column.size


def _read_items(
    layer: Value, samples: Sequence[Any], place: int, count: int, offsets: Ids | None, half: int = -1
) -> npt.NDArray[Any] | None:
    """Return `count` items of all samples, ids [n] or vectors [n, dim]; None if the core can't read one."""
    is_id = layer.kind == "id"
    items = np.empty(count, np.int64) if is_id else np.empty((count, layer.size), np.float32)
    below = _get_limit(layer) if is_id else None
    return items if _core.read_items(samples, place, below, items, offsets, half) == len(samples) else None


def _read_column(layer: Value, samples: Sequence[Any], place: int) -> Column:
    """Read one item of each sample: a vector, an id, or a list of ids in a shape with more axes."""
    is_list = layer.kind == "id" and len(layer.shape) > 1
    offsets = np.arange(len(samples) + 1) * layer.size if is_list else None
    count = len(samples) * (layer.size if is_list else 1)
    items = _read_items(layer, samples, place, count, offsets)
    if items is None:
        items = _convert_items(layer, list(enumerate(_list_items(layer, samples, place))))
    return items.reshape(-1, *layer.shape[1:])


def _read_sequences(layer: Value, samples: Sequence[Any], place: int, half: int = -1) -> Column:
    """Read the items of all samples, or with `half` from 0 that half of their pairs."""
    offsets = np.empty(len(samples) + 1, np.int64)
    found = _core.count_items(samples, place, offsets)
    are_counted = found == len(samples)
    items = _read_items(layer, samples, place, offsets[-1], offsets, half) if are_counted else None
    if items is None:
        if half >= 0:
            return _read_sequences(layer, _split_pairs(layer, samples, place, half), 0)
        column = list(_list_items(layer, samples, place))
        if not are_counted:
            raise _make_item_error(layer, found, column[found], "a list or an array of items")
        items = _convert_items(layer, [(i, one) for i, own in enumerate(column) for one in own])
    return Sequences(items.reshape(-1, *layer.shape[1:]), offsets)


def _split_pairs(layer: Value, samples: Sequence[Any], place: int, half: int) -> list[tuple[list[Any]]]:
    """Return samples of one half of the pairs at `place`, some of them none for the core."""
    found: list[tuple[list[Any]]] = []
    for i, item in enumerate(_list_items(layer, samples, place)):
        try:
            found.append(([(where, number)[half] for where, number in item],))
        except (TypeError, ValueError):
            raise _make_item_error(layer, i, item, "a list of pairs of a place and its number") from None
    return found


def _make_item_error(layer: Value, sample: int, item: object, expected: str) -> ValueError:
    found = f"sample {sample} of the batch has the item {reprlib.repr(item)}"
    return ValueError(f"data layer {layer.name}: {found}, expected {expected}")


def _list_items(layer: Value, samples: Sequence[Any], place: int) -> Iterator[Any]:
    for sample in samples:
        try:
            yield sample[place]
        except (IndexError, TypeError):
            raise ValueError(f"data layer {layer.name}: a sample has no item {place}; {_ADVICE}") from None


def _convert_items(layer: Value, numbered: Sequence[tuple[int, Any]]) -> npt.NDArray[Any]:
    """Return items that the core does not read, given with the numbers of their samples, in its form."""
    items = [item for _, item in numbered]
    if layer.kind != "id":
        return _stack(layer, items)
    found = _take_whole_numbers(items)
    if found.size == len(items) * layer.size and np.can_cast(found.dtype, np.int64):
        ids = found.astype(np.int64).reshape(-1)
        if _core.find_outside([(ids, _get_limit(layer))]) is None:
            return ids
    return np.array([_read_ids(layer, *one) for one in numbered], np.int64).reshape(-1)


def _read_ids(layer: Value, sample: int, item: Any) -> list[int]:
    """Return the ids of an item; raises ValueError naming layer, sample, item, and the range."""
    try:
        ids = [operator.index(item)]
    except TypeError:
        ids = _take_whole_numbers(item).reshape(-1).tolist()
    low, high = _find_range(layer)
    if len(ids) != layer.size:
        what = "a whole number" if layer.size == 1 else f"{layer.size} whole numbers"
        raise _make_item_error(layer, sample, item, f"{what} from {low} to {high}")
    for one in ids:
        if not low <= one <= high:
            raise ValueError(_describe_id(layer, sample, one))
    return ids


def _take_whole_numbers(item: Any) -> npt.NDArray[Any]:
    """Return the whole numbers and bools of an array or of lists; none if there are others."""
    try:
        found = np.asarray(item)
    except ValueError:  # lists of several sizes
        return np.zeros(0, np.int64)
    return found if found.dtype.kind in "biu" else np.zeros(0, np.int64)


def _describe_id(layer: Value, sample: int, found: int) -> str:
    low, high = _find_range(layer)
    return (
        f"data layer {layer.name}: sample {sample} of the batch has the id {found}, expected {low} to {high}"
    )


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
