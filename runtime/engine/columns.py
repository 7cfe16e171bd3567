"""Columns of a batch: what each data value takes, from samples, arrays, lists, or text; one check for all."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from .arrays import Ids, Sequences
from .graph import BATCH, Value

Feeding = Mapping[str, int] | Sequence[str] | None
Column = npt.NDArray[Any] | Sequences
Feeds = Mapping[str, Column | Sequence[Any]]
Batch = Sequence[Any] | Feeds

WHOLE = "a whole number of 64 bits"  # an id; below zero it is another form of a number from 2**63 on
_DTYPES: Mapping[str, np.dtype[Any]] = {"id": np.dtype(np.int64), "float": np.dtype(np.float32)}
FLOATS, IDS, TEXT = range(3)  # kinds of columns in the core; text becomes ids
_ADVICE = (
    "a batch is a list of samples, each a tuple: paddle.batch(reader, size) makes it from a reader's samples"
)


def find_encoding(value: Value) -> tuple[int, int]:
    """Return the kind of a data value's column, and where hashes of its text start: hashing.hash_text()."""
    salt = value.attrs.get("salt")
    if salt is not None:
        return TEXT, _core.hash_name(f"{salt}\0")
    return IDS if value.kind == "id" else FLOATS, 0


def take_columns(values: Sequence[Value], feeds: Feeds) -> dict[str, Column]:
    """Return the column of each data value: int64 ids in their range, or float32 numbers, in its shape.

    A feed is an array, one of whole numbers or bools for ids; Sequences; or a list: for sequences it has the
    items of each sample, else it is as an array. One number of a sample may be [n] or [n, 1]. Raises
    ValueError naming value, and sample or shape.
    """
    columns = {value.name: _take_column(value, feeds.get(value.name)) for value in values}
    limited = [value for value in values if value.attrs.get("below")]
    ids = [(_get_items(columns[value.name]).reshape(-1), value.attrs["below"]) for value in limited]
    if (outside := _core.find_outside(ids)) is not None:
        i, place = outside
        sample = _find_sample(columns[limited[i].name], place)
        raise _make_error(limited[i], sample, int(ids[i][0][place]), _describe_range(limited[i]), "id")
    for value in values:
        places, own = columns.get(value.attrs.get("numbers_of", "")), columns[value.name]
        if not isinstance(places, Sequences) or not isinstance(own, Sequences):
            continue
        if not np.array_equal(places.offsets, own.offsets):
            name = value.attrs["numbers_of"]
            raise ValueError(f"data {name}: {value.name} has other offsets; each place has a number")
    return columns


def _take_column(value: Value, given: object) -> Column:
    """Return a feed in the form of a data value, of ids in any range."""
    if type(given) is np.ndarray and given.dtype is _DTYPES[value.kind] and not value.is_sequence:
        same = (
            given.ndim == len(value.shape) > 0
            and given.shape[1:] == value.shape[1:]
            and value.shape[0] in (BATCH, len(given))
        )
        if same and given.flags.c_contiguous:
            return given  # the checks below take a sixth of a small step
    if value.is_sequence and isinstance(given, list | tuple):
        return _read_sequences(value, [(one,) for one in given], 0)
    is_text = find_encoding(value)[0] == TEXT
    dtype = object if is_text and isinstance(given, list | tuple) else None  # str_ would lose zeros at ends
    try:
        items = given.items if isinstance(given, Sequences) else np.asarray(given, dtype)
    except ValueError as e:
        raise ValueError(f"data {value.name}: {e}") from None
    if is_text and items.dtype.kind in "USO" and items.ndim and items.size == len(items) * value.size:
        return _read_column(value, [(one,) for one in items.reshape(len(items), *value.shape[1:])], 0)
    kinds, words = ("biu", "whole numbers") if value.kind == "id" else ("biuf", "numbers")
    shape = items.shape
    if value.has_batch and items.ndim and items.size == len(items) * value.size > 0:
        own_axes, axes = ([n for n in one if n != 1] for one in (items.shape[1:], value.shape[1:]))
        if own_axes == axes or items.ndim <= 2 or len(value.shape) <= 2:  # other axes are another order
            shape = (len(items), *value.shape[1:])
    fits = len(shape) == len(value.shape)
    fits = fits and all(size in (BATCH, own) for size, own in zip(value.shape, shape, strict=True))
    if fits and isinstance(given, Sequences) == value.is_sequence and items.dtype.kind in kinds:
        own = np.ascontiguousarray(items, _DTYPES[value.kind]).reshape(shape)
        return Sequences(own, given.offsets) if isinstance(given, Sequences) else own
    had = "nothing"
    if given is not None:
        own_form = "Sequences" if isinstance(given, Sequences) else "an array"
        had = f"{own_form} of {items.dtype}, shape {list(items.shape)}"
    form = "Sequences, or a list with the items of each sample," if value.is_sequence else "an array"
    raise ValueError(
        f"data {value.name}: expected {form} of {words}, shape {list(value.shape)}; the feed has {had}"
    )


def _get_items(column: Column) -> npt.NDArray[Any]:
    return column.items if isinstance(column, Sequences) else column


class Feeder:
    """Maps the items of a sample to the data layers.

    `feeding` maps names of data layers to positions in a sample, or lists the names in order; None: the
    order in which the data layers were defined, as in v2. Items without a layer are ignored. A batch may
    also have feeds by the names of data layers: these are taken as they are, for take_columns().

    A sparse vector with numbers has two data layers, which share its pairs: places, and `NAME.numbers`.
    """

    def __init__(self, data_layers: Sequence[Value], feeding: Feeding = None) -> None:
        self._layers = list(data_layers)
        owners = {layer.name: layer.attrs.get("numbers_of", "") for layer in data_layers}
        self._places = _map_places([name for name, owner in owners.items() if not owner], feeding)
        self._halves: dict[str, int] = {}  # of pairs, by data layer
        for numbers, name in owners.items():
            if name:
                self._places[numbers] = self._places[name]
                self._halves |= {name: 0, numbers: 1}

    def __call__(self, batch: Batch) -> Feeds:
        """Return a feed of each data layer; raises ValueError naming layer and sample."""
        if isinstance(batch, Mapping):
            return {layer.name: batch[layer.name] for layer in self._layers if layer.name in batch}
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


def _describe_range(value: Value) -> str:
    below = value.attrs.get("below")
    return f"a whole number from 0 to {below - 1}" if below else WHOLE


def _find_sample(column: Column, place: int) -> int:
    if isinstance(column, Sequences):
        return int(np.searchsorted(column.offsets, place, side="right")) - 1
    return place * len(column) // column.size


def _read_column(layer: Value, samples: Sequence[Any], place: int) -> Column:
    """Read one item of each sample: a vector, an id, or a list of ids in a shape with more axes."""
    is_list = layer.kind == "id" and len(layer.shape) > 1
    offsets = np.arange(len(samples) + 1) if is_list else None
    return _read_items(layer, samples, place, len(samples), offsets)


def _read_sequences(layer: Value, samples: Sequence[Any], place: int, half: int = -1) -> Column:
    """Read the items of all samples, or with `half` from 0 that half of their pairs."""
    offsets = np.empty(len(samples) + 1, np.int64)
    found = _core.count_items(samples, place, offsets)
    if found < len(samples):
        item = _list_items(layer, samples, place)[found]
        raise _make_error(layer, found, item, "a list or an array of items")
    return Sequences(_read_items(layer, samples, place, int(offsets[-1]), offsets, half), offsets)


def _read_items(
    layer: Value, samples: Sequence[Any], place: int, count: int, offsets: Ids | None, half: int = -1
) -> npt.NDArray[Any]:
    """Return `count` items of all samples in the layer's form; raises ValueError naming a wrong one."""
    out, found = _try_items(layer, samples, place, count, offsets, half)
    if found == len(samples):
        return out.reshape(-1, *layer.shape[1:])
    item = _list_items(layer, samples, place)[found]
    alone = [([one],) for one in item] if layer.is_sequence else []
    _, wrong = _try_items(layer, alone, 0, len(alone), np.arange(len(alone) + 1), half)
    item = alone[wrong][0][0] if wrong < len(alone) else item
    what = ("a number", _describe_range(layer), "text in UTF-8")[find_encoding(layer)[0]]
    expected = what if layer.size == 1 else f"{layer.size} times {what}"
    if not layer.is_sequence and layer.size > 1 and not np.iterable(item):
        expected += f"; {_ADVICE}"
    raise _make_error(layer, found, item, expected if half < 0 else "a pair of a place and its number")


def _try_items(
    layer: Value, samples: Sequence[Any], place: int, count: int, offsets: Ids | None, half: int
) -> tuple[npt.NDArray[Any], int]:
    """Return items, and the number of samples before the first whose item does not fit.

    What the core can't read becomes an array before it tries again.
    """
    is_id, size = layer.kind == "id", layer.size
    out = np.empty(count * size, np.int64) if is_id else np.empty((count, size), np.float32)
    starts = offsets * size if is_id and offsets is not None else offsets
    kind, start = find_encoding(layer)
    found = _core.read_items(samples, place, kind, start, out, starts, half)
    if found < len(samples):
        arrays = [(_convert_item(layer, one, half),) for one in _list_items(layer, samples, place)]
        found = _core.read_items(arrays, 0, kind, start, out, starts, half)
    return out, found


def _convert_item(layer: Value, item: Any, half: int) -> Any:
    """Return an item of a sample as an array, or with `half` as a list of pairs; itself if it is neither."""
    dtype = _DTYPES[layer.kind]
    try:
        if half >= 0:
            return [(where, number) for where, number in item]
        is_other = isinstance(item, Mapping) or not hasattr(item, "__getitem__")  # numpy reads no such items
        whole = [*item] if layer.is_sequence and is_other else item
        found = np.asarray(whole, dtype if layer.kind == "float" else None)
    except (TypeError, ValueError):  # lists of several sizes
        return item
    return found.astype(dtype) if layer.kind == "float" or found.dtype.kind in "biu" else whole


def _make_error(value: Value, sample: int, found: object, expected: str, what: str = "item") -> ValueError:
    where = f"data {value.name}: sample {sample} of the batch has the {what}"
    return ValueError(f"{where} {reprlib.repr(found)}, expected {expected}")


def _list_items(layer: Value, samples: Sequence[Any], place: int) -> list[Any]:
    try:
        return [sample[place] for sample in samples]
    except (IndexError, TypeError):
        raise ValueError(f"data {layer.name}: a sample has no item {place}; {_ADVICE}") from None


def _map_places(names: Sequence[str], feeding: Feeding) -> dict[str, int]:
    feeding = names if feeding is None else feeding
    given = dict(feeding) if isinstance(feeding, Mapping) else {name: i for i, name in enumerate(feeding)}
    missing = [name for name in names if name not in given]
    if missing:
        raise ValueError(f"feeding lacks the data layers {', '.join(missing)}")
    if any(place < 0 for place in given.values()):
        raise ValueError("feeding: positions in a sample start at 0")
    return {name: given[name] for name in names}
