"""Text of slots as columns: a line is a sample, with a count and its values for each slot. Pure."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ... import _core
from ...engine.arrays import Ids, Sequences, find_offsets
from ...engine.columns import TEXT, WHOLE, Column, find_encoding
from ..program.program import DTYPES, Variable

Line = tuple[str, int, bytes]  # file, number from 1, text
Columns = Mapping[str, Column]
_WHOLE = re.compile(rb"[+-]?[0-9]+")


def read_columns(lines: Sequence[Line], slots: Sequence[Variable]) -> dict[str, Column]:
    """Return the values of each slot as a batch of its variable.

    Raises ValueError naming file, line and slot, and what was expected there.
    """
    texts = [text for _, _, text in lines]
    sizes = np.array([-slot.size if slot.is_sequence else slot.size for slot in slots])
    counts = np.empty((len(slots), len(lines)), np.int64)
    forms = [find_encoding(slot) for slot in slots]
    kinds, starts = bytes(kind for kind, _ in forms), np.array([start for _, start in forms], np.uint64)
    fitting, values = _core.read_slots(texts, kinds, sizes, starts, counts)
    if fitting < len(lines):
        file, number, text = lines[fitting]
        raise ValueError(f"{file}:{number}: {_find_error(text, slots)}")
    found = zip(slots, values, counts, strict=True)
    return {slot.name: _make_column(slot, own, count) for slot, own, count in found}


def _make_column(slot: Variable, values: bytearray, counts: Ids) -> Column:
    """Return values with their shape; counts: values of each sample."""
    items = np.frombuffer(values, DTYPES[slot.kind]).reshape(-1, *slot.shape[1:])
    return Sequences(items, find_offsets(counts // slot.size)) if slot.is_sequence else items


def _find_error(text: bytes, slots: Sequence[Variable]) -> str:
    """Return what is wrong in a line that the core does not read."""
    words, at = text.split(), 0
    values: list[tuple[Variable, bytes]] = []
    for slot in slots:
        if at == len(words):
            return f"the line ends before slot {slot.name}; expected a count and its values"
        if not _WHOLE.fullmatch(words[at]):
            return f"slot {slot.name} begins with {_show(words[at])}, expected the count of its values"
        count = int(words[at])
        if count < 0 or count % slot.size or not (count == slot.size or slot.is_sequence):
            expected = f"a multiple of {slot.size}" if slot.is_sequence else slot.size
            return f"slot {slot.name} has the count {count}, expected {expected} (shape {list(slot.shape)})"
        at += 1 + count
        if at > len(words):
            return f"slot {slot.name} has {count + len(words) - at} values, expected {count}, its count"
        values += [(slot, word) for word in words[at - count : at]]
    if at < len(words):
        return f"{_show(words[at])} follows the last slot, {slots[-1].name}; expected the end of the line"
    slot, word = next(one for one in values if not _is_value(*one))
    expected = WHOLE if slot.kind == "id" else "a number"
    return f"slot {slot.name} has the value {_show(word)}, expected {expected}"


def _is_value(slot: Variable, word: bytes) -> bool:
    if slot.kind == "id":
        return find_encoding(slot)[0] == TEXT or (
            bool(_WHOLE.fullmatch(word)) and -(2**63) <= int(word) < 2**64
        )
    try:
        float(word)
    except ValueError:
        return False
    return b"_" not in word


def _show(word: bytes) -> str:
    return repr(word[:40].decode(errors="replace"))


def count_samples(columns: Columns) -> int:
    column = next(iter(columns.values()))
    return len(column.offsets) - 1 if isinstance(column, Sequences) else len(column)


def choose_samples(columns: Columns, places: Ids) -> dict[str, Column]:
    return {name: _choose(column, places) for name, column in columns.items()}


def _choose(column: Column, places: Ids) -> Column:
    if not isinstance(column, Sequences):
        return np.asarray(column)[places]
    counts = np.diff(column.offsets)[places]
    offsets = find_offsets(counts)
    items = np.arange(offsets[-1]) + np.repeat(column.offsets[places] - offsets[:-1], counts)
    return Sequences(column.items[items], offsets)


def join_columns(parts: Sequence[Columns], slots: Iterable[Variable]) -> dict[str, Column]:
    return {slot.name: _join([part[slot.name] for part in parts]) for slot in slots}


def _join(parts: Sequence[Any]) -> Column:
    if not isinstance(parts[0], Sequences):
        return np.concatenate(parts)
    counts = np.concatenate([np.diff(part.offsets) for part in parts])
    return Sequences(np.concatenate([part.items for part in parts]), find_offsets(counts))


def pack_columns(columns: Columns) -> bytes:
    """Return columns as bytes for unpack_columns()."""
    out, arrays = io.BytesIO(), list[Any]()
    for column in columns.values():
        arrays += (column.items, column.offsets) if isinstance(column, Sequences) else (column,)
    np.savez(out, *arrays)
    return out.getvalue()


def unpack_columns(data: bytes, slots: Iterable[Variable]) -> dict[str, Column]:
    parts = iter(np.load(io.BytesIO(data)).values())
    return {
        one.name: Sequences(next(parts), next(parts)) if one.is_sequence else next(parts) for one in slots
    }
