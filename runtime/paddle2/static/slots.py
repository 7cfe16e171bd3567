"""Text of slots as columns: a line is a sample, with a count and its values for each slot. Pure."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ... import _core
from ...engine.arrays import Ids, Sequences
from ...engine.feeder import Column
from ..program.program import DTYPES, Variable

Line = tuple[str, int, bytes]  # file, number from 1, text
Columns = Mapping[str, Column]
_MAX_ID = 2**63 - 1


def read_columns(lines: Sequence[Line], slots: Sequence[Variable]) -> dict[str, Column]:
    """Return the values of each slot as a batch of its variable.

    Raises ValueError naming file, line and slot, and what was expected there.
    """
    texts = [text for _, _, text in lines]
    sizes = np.array([-slot.size if slot.is_sequence else slot.size for slot in slots])
    counts = np.empty((len(slots), len(lines)), np.int64)
    if lines and _core.count_slots(texts, sizes, counts) == len(lines):
        values = [
            np.empty(count, DTYPES[slot.kind])
            for slot, count in zip(slots, counts.sum(axis=1).tolist(), strict=True)
        ]
        if _core.read_slots(texts, values) == len(lines):
            found = zip(slots, values, counts, strict=True)
            return {slot.name: _make_column(slot, own, count // slot.size) for slot, own, count in found}
    return _read_words(lines, slots)


def _make_column(slot: Variable, values: npt.NDArray[Any], counts: Ids) -> Column:
    """Return values with their shape; counts: items of each sample."""
    items = values.reshape(-1, *slot.shape[1:])
    return Sequences(items, _add_up(counts)) if slot.is_sequence else items


def _read_words(lines: Sequence[Line], slots: Sequence[Variable]) -> dict[str, Column]:
    """Do as read_columns(), but slowly: for lines that are not in the core's form, to name the first."""
    found: list[tuple[Variable, list[bytes], list[int]]] = [(slot, [], []) for slot in slots]
    for line in lines:
        words = line[2].split()
        at = 0
        for slot, values, counts in found:
            try:
                count = int(words[at])
            except IndexError:
                _refuse(line, f"the line ends before slot {slot.name}; expected a count and its values")
            except ValueError:
                _refuse(
                    line, f"slot {slot.name} begins with {_show(words[at])}, expected the count of its values"
                )
            items, rest = divmod(count, slot.size)
            if rest or count < 0 or not (items == 1 or slot.is_sequence):
                expected = f"a multiple of {slot.size}" if slot.is_sequence else slot.size
                _refuse(
                    line,
                    f"slot {slot.name} has the count {count}, expected {expected} (shape {list(slot.shape)})",
                )
            at += 1 + count
            if at > len(words):
                _refuse(
                    line,
                    f"slot {slot.name} has {count + len(words) - at} values, expected {count}, its count",
                )
            values += words[at - count : at]
            counts.append(items)
        if at < len(words):
            _refuse(
                line,
                f"{_show(words[at])} follows the last slot, {slots[-1].name}; expected the end of the line",
            )
    return {slot.name: _convert_column(lines, slot, values, counts) for slot, values, counts in found}


def _convert_column(lines: Sequence[Line], slot: Variable, values: list[bytes], counts: list[int]) -> Column:
    try:
        numbers = _convert(slot, values)
    except (ValueError, OverflowError):
        expected, at = f"a whole number from 0 to {_MAX_ID}" if slot.kind == "id" else "a number", 0
        for line, count in zip(lines, counts, strict=True):
            for word in values[at : at + count * slot.size]:
                try:
                    _convert(slot, [word])
                except (ValueError, OverflowError):
                    _refuse(line, f"slot {slot.name} has the value {_show(word)}, expected {expected}")
            at += count * slot.size
        raise  # every value fits alone
    return _make_column(slot, numbers.astype(DTYPES[slot.kind], copy=False), np.array(counts, np.int64))


def _convert(slot: Variable, values: Sequence[bytes]) -> npt.NDArray[Any]:
    """Return whole numbers, or numbers in double precision as a reader has them."""
    if slot.kind == "float":
        return np.fromiter(map(float, values), np.float64, len(values))
    ids = np.fromiter(map(int, values), np.int64, len(values))
    if ids.size and ids.min() < 0:
        raise ValueError
    return ids


def _show(word: bytes) -> str:
    return repr(word[:40].decode(errors="replace"))


def _refuse(line: Line, text: str) -> NoReturn:
    file, number, _ = line
    raise ValueError(f"{file}:{number}: {text}")


def _add_up(counts: Ids) -> Ids:
    """Return the starts of ranges with these lengths, and the end of the last."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def count_samples(columns: Columns) -> int:
    """Return the number of samples."""
    column = next(iter(columns.values()))
    return len(column.offsets) - 1 if isinstance(column, Sequences) else len(column)


def choose_samples(columns: Columns, places: Ids) -> dict[str, Column]:
    """Return columns with the samples at these places."""
    return {name: _choose(column, places) for name, column in columns.items()}


def _choose(column: Column, places: Ids) -> Column:
    if not isinstance(column, Sequences):
        return np.asarray(column)[places]
    counts = np.diff(column.offsets)[places]
    offsets = _add_up(counts)
    items = np.arange(offsets[-1]) + np.repeat(column.offsets[places] - offsets[:-1], counts)
    return Sequences(column.items[items], offsets)


def join_columns(parts: Sequence[Columns], slots: Iterable[Variable]) -> dict[str, Column]:
    """Return columns with the samples of all parts."""
    return {slot.name: _join([part[slot.name] for part in parts]) for slot in slots}


def _join(parts: Sequence[Any]) -> Column:
    if not isinstance(parts[0], Sequences):
        return np.concatenate(parts)
    counts = np.concatenate([np.diff(part.offsets) for part in parts])
    return Sequences(np.concatenate([part.items for part in parts]), _add_up(counts))


def pack_columns(columns: Columns) -> bytes:
    """Return columns as bytes for unpack_columns()."""
    out = io.BytesIO()
    for column in columns.values():
        for array in (column.items, column.offsets) if isinstance(column, Sequences) else (column,):
            np.save(out, array, allow_pickle=False)
    return out.getvalue()


def unpack_columns(data: bytes, slots: Iterable[Variable]) -> dict[str, Column]:
    """Return the columns of pack_columns() for the same slots."""
    file = io.BytesIO(data)

    def load() -> Any:
        return np.load(file, allow_pickle=False)

    return {slot.name: Sequences(load(), load()) if slot.is_sequence else load() for slot in slots}
