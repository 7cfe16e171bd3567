"""Columns of a batch: what each data value takes, from samples, arrays, lists, or text; one check for all."""

from __future__ import annotations

import contextlib
import operator
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from .arrays import F32, Ids, Sequences
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


def _read_items(
    layer: Value, samples: Sequence[Any], place: int, count: int, offsets: Ids | None, half: int = -1
) -> npt.NDArray[Any] | None:
    """Return `count` items of all samples, ids [n] or vectors [n, dim]; None if the core can't read one."""
    is_id = layer.kind == "id"
    items = np.empty(count, np.int64) if is_id else np.empty((count, layer.size), np.float32)
    found = _core.read_items(samples, place, *find_encoding(layer), items, offsets, half)
    return items if found == len(samples) else None


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
            raise _make_error(layer, found, column[found], "a list or an array of items")
        items = _convert_items(layer, [(i, one) for i, own in enumerate(column) for one in own])
    return Sequences(items.reshape(-1, *layer.shape[1:]), offsets)


def _split_pairs(layer: Value, samples: Sequence[Any], place: int, half: int) -> list[tuple[list[Any]]]:
    """Return samples of one half of the pairs at `place`, some of them none for the core."""
    found: list[tuple[list[Any]]] = []
    for i, item in enumerate(_list_items(layer, samples, place)):
        try:
            found.append(([(where, number)[half] for where, number in item],))
        except (TypeError, ValueError):
            raise _make_error(layer, i, item, "a list of pairs of a place and its number") from None
    return found


def _make_error(value: Value, sample: int, found: object, expected: str, what: str = "item") -> ValueError:
    where = f"data {value.name}: sample {sample} of the batch has the {what}"
    return ValueError(f"{where} {reprlib.repr(found)}, expected {expected}")


def _list_items(layer: Value, samples: Sequence[Any], place: int) -> Iterator[Any]:
    for sample in samples:
        try:
            yield sample[place]
        except (IndexError, TypeError):
            raise ValueError(f"data {layer.name}: a sample has no item {place}; {_ADVICE}") from None


def _convert_items(layer: Value, numbered: Sequence[tuple[int, Any]]) -> npt.NDArray[Any]:
    """Return items that the core does not read, given with the numbers of their samples, in its form."""
    items = [item for _, item in numbered]
    if layer.kind != "id":
        return _stack(layer, items)
    if find_encoding(layer)[0] == TEXT:
        raise _make_text_error(layer, numbered)
    found = _take_whole_numbers(items)
    if found.size != len(items) * layer.size:
        found = np.array([_read_ids(layer, *one) for one in numbered])
    return found.astype(np.int64).reshape(-1)


def _make_text_error(layer: Value, numbered: Sequence[tuple[int, Any]]) -> ValueError:
    for sample, item in numbered:
        own = [item] if isinstance(item, str | bytes) else list(item) if np.iterable(item) else [None]
        if len(own) != layer.size or not all(isinstance(one, str | bytes) for one in own):
            return _make_error(layer, sample, item, "text" if layer.size == 1 else f"{layer.size} texts")
    return ValueError(f"data {layer.name}: text that can't be encoded as UTF-8")


def _read_ids(layer: Value, sample: int, item: Any) -> npt.NDArray[Any]:
    """Return the ids of an item; raises ValueError naming layer, sample, item, and the range."""
    with contextlib.suppress(TypeError):
        item = operator.index(item)
    ids = _take_whole_numbers(item).reshape(-1)
    if len(ids) != layer.size:
        what = _describe_range(layer)
        raise _make_error(layer, sample, item, what if layer.size == 1 else f"{layer.size} times {what}")
    return ids.astype(np.int64)


def _take_whole_numbers(item: Any) -> npt.NDArray[Any]:
    """Return the whole numbers and bools of an array or of lists; none if there are others."""
    try:
        found = np.asarray(item)
    except ValueError:  # lists of several sizes
        return np.zeros(0, np.int64)
    return found if found.dtype.kind in "biu" else np.zeros(0, np.int64)


def _stack(layer: Value, column: list[Any]) -> F32:
    """Return vectors as [n, dim]; raises ValueError naming the layer."""
    try:
        values: F32 = np.asarray(column, dtype=np.float32)
    except ValueError as e:
        raise ValueError(f"data {layer.name}: its items are not vectors of one size: {e}") from None
    if values.size != len(column) * layer.size:
        advice = f"; {_ADVICE}" if values.ndim == 1 else ""
        raise ValueError(
            f"data {layer.name}: items of shape {values.shape[1:]}, expected dim {layer.size}{advice}"
        )
    return np.ascontiguousarray(values.reshape(len(column), layer.size))


def _map_places(names: Sequence[str], feeding: Feeding) -> dict[str, int]:
    feeding = names if feeding is None else feeding
    given = dict(feeding) if isinstance(feeding, Mapping) else {name: i for i, name in enumerate(feeding)}
    missing = [name for name in names if name not in given]
    if missing:
        raise ValueError(f"feeding lacks the data layers {', '.join(missing)}")
    if any(place < 0 for place in given.values()):
        raise ValueError("feeding: positions in a sample start at 0")
    return {name: given[name] for name in names}
