"""Objects of a part: their form, their descriptions, and their places in an open part.

csrc/shard/ps_cut.h writes the same form; docs/checkpoint.md documents it. Needs no numpy.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import _core
from .saving import DIGEST_BYTES, MAX_HEADER_BYTES, START, File, Header, decode_start

FILE_HEAD = struct.Struct("<IIQQQQQ")  # flags, length of CREATE, COUNTS; then CREATE up to its name
COUNTS = ("steps", "count", "samples", "passes", "waiting")
CREATE = struct.Struct("<IIQQIIfffffffIddIIIffQQIffI")
SEGMENT = struct.Struct("<Qd")
COUNTS_BYTES = 12  # of a key: shows, clicks, and the days since its last push
TORN, CHANGED = 1, 2
# Of each method: slots of state, one of the row in place of them, and dense objects whole on one shard.
METHODS = {name: (slots, by_row, whole) for name, slots, by_row, whole, _ in _core.list_methods()}
NAMES = tuple(METHODS)


class SetError(ValueError):
    """A set is damaged, not whole, or of another kind; the text names the file and what is wrong."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectShape:
    """What is equal in all parts of an object, and what a program must agree with to take its values."""

    name: str
    table: bool
    dim: int  # values in a row; 0: dense
    total: int  # values on all shards; known rows of a table
    method: str
    fixed: bool = False  # it does not learn: it is on no shard, but in a trainer's part

    @property
    def kind(self) -> tuple[object, ...]:
        """The shape without the place."""
        return self.name, self.table, self.dim, self.total, self.method

    @property
    def by_row(self) -> bool:
        """True if the optimizer's state is one number for each row."""
        return METHODS[self.method][1]

    @property
    def slots(self) -> int:
        """Numbers of the optimizer's state for each value, or for each row."""
        return 1 if self.by_row else METHODS[self.method][0]

    @property
    def whole(self) -> bool:
        """True if a dense object is on one shard."""
        return METHODS[self.method][2]

    @property
    def row_floats(self) -> int:
        """Floats of a row with its state; of a dense object those of a value."""
        width = self.dim or 1
        return width + (1 if self.by_row else width * self.slots)


@dataclass(frozen=True, kw_only=True, slots=True)
class Item(ObjectShape):
    """An object of a part, and the places of its bytes.

    Dense: `count` values at `at`, then as many of each slot. A table: at `keys_at` the keys of `count` rows,
    then of `waiting` that have none; at `at` the rows, each `dim` values and then the state slot by slot;
    then the counts of all keys, if the table has an entry rule.
    """

    steps: int = 0
    torn: bool = False  # some values have one update more
    changed: bool = False  # of a table, in an export: only the rows that changed since the one before
    samples: int = 0
    passes: int = 0
    count: int = 0
    waiting: int = 0
    counted: bool = False
    init: tuple[int, int, float, float] = (0, 0, 0.0, 0.0)  # seed, kind, mean and std of a table's other rows
    create: bytes = b""
    keys_at: int = 0
    at: int = 0

    @property
    def end(self) -> int:
        """The place behind the object."""
        counts = COUNTS_BYTES * (self.count + self.waiting) if self.counted else 0
        end = self.at + 4 * self.count * self.row_floats + counts
        return end + -end % 8


def parse_create(create: bytes) -> dict[str, Any]:
    """Return a description in words. Raises ValueError, struct.error."""
    table, dim, _, total, method, mode, *rest = CREATE.unpack_from(create)
    segments, length = rest[10], rest[-1]
    if method >= len(METHODS) or len(create) != CREATE.size + SEGMENT.size * segments + length:
        raise ValueError(f"unknown optimizer {method}, or a description of {len(create)} bytes")
    at = CREATE.size
    return {
        "name": create[len(create) - length :].decode(),
        "table": bool(table),
        "dim": dim,
        "total": total,
        "mode": mode,
        "method": NAMES[method],
        "rule": rest[:7],
        "schedule": [
            *rest[7:10],
            [SEGMENT.unpack_from(create, at + SEGMENT.size * i) for i in range(segments)],
        ],
        "entry": rest[12:15],
        "init": (rest[15], *rest[17:20]),
    }


def describe_object(create: bytes, shape: tuple[int, int] | None = None) -> dict[str, Any]:
    """Return a description for a manifest, with the shape of its matrix if that is known."""
    found = parse_create(create)
    del found["init"], found["mode"]
    flat = (found["total"], found["dim"]) if found["table"] else (1, found["total"])
    return found | {"shape": list(shape or flat)}


def read_shape(data: Mapping[str, Any]) -> ObjectShape:
    """Return the shape of a manifest's object. Raises LookupError, TypeError."""
    METHODS[data["method"]]
    numbers = {name: data[name] for name in ("name", "table", "dim", "total", "method")}
    return ObjectShape(**numbers, fixed=data.get("fixed", False))


class Content(io.FileIO):
    """An open file for reads at any place; closed with its last reference, without a warning."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        super().__init__(str(path))
        self.path, self.size = path, os.fstat(self.fileno()).st_size

    __del__ = io.FileIO.close


class PartFile:
    """An open part. It stays open while it is used: what was verified is what is read."""

    def __init__(self, file: Content) -> None:
        """Take a verified file. Raises SetError."""
        self.file, self.path = file, file.path
        end = file.size - DIGEST_BYTES
        try:
            self.header, at = decode_start(self.read(0, START.size + MAX_HEADER_BYTES))
            self.items = {item.name: item for item in self._find_items(at, end)}
        except (ValueError, struct.error) as e:
            raise SetError(f"{self.path}: {e}") from None

    def read(self, at: int, size: int) -> bytes:
        """Return bytes of the file, fewer at its end. Raises OSError."""
        return os.pread(self.file.fileno(), size, at)

    def read_header(self) -> Header:
        """Return the header of a shard's part. Raises SetError."""
        try:
            return Header.parse(self.header)
        except ValueError as e:
            raise SetError(f"{self.path}: {e}") from None

    def read_into(self, at: int, out: Any) -> None:
        """Fill the whole array with bytes of the file. Raises SetError, OSError."""
        left = memoryview(out).cast("B")
        while len(left):
            n = os.preadv(self.file.fileno(), [left], at)
            if not n:
                raise SetError(f"{self.path} was cut short while it was read")
            at, left = at + n, left[n:]

    def _find_items(self, at: int, end: int) -> Iterator[Item]:
        while at < end:
            flags, length, *numbers = FILE_HEAD.unpack(self.read(at, FILE_HEAD.size))
            counts = dict(zip(COUNTS, numbers, strict=True))
            create = self.read(at + FILE_HEAD.size, min(length, MAX_HEADER_BYTES))
            found = parse_create(create)
            at += FILE_HEAD.size + length
            at += -at % 8
            item = Item(
                **{name: found[name] for name in ("name", "table", "dim", "total", "method")},
                **counts,
                torn=bool(flags & TORN),
                changed=bool(flags & CHANGED),
                counted=found["entry"][0] != 0,
                init=found["init"],
                create=create,
                keys_at=at,
                at=at + (8 * (counts["count"] + counts["waiting"]) if found["table"] else 0),
            )
            yield item
            at = item.end
            if at > end or item.dim > end:
                raise ValueError("an object extends beyond the end of the file")


@dataclass(frozen=True, kw_only=True, slots=True)
class Whole:
    """An object to be written into a part: `pieces` are the bytes after its description."""

    shape: tuple[int, int]  # of the matrix
    create: bytes
    count: int
    waiting: int = 0
    pieces: Iterable[bytes | memoryview]
    steps: int = 0
    samples: int = 0
    passes: int = 0

    def describe(self) -> dict[str, Any]:
        return describe_object(self.create, self.shape)

    def write(self, file: File) -> None:
        counts = (getattr(self, name) for name in COUNTS)
        start = FILE_HEAD.pack(0, len(self.create), *counts) + self.create
        file.append(start + bytes(-len(start) % 8))
        size = 0
        for piece in self.pieces:
            file.append(piece)
            size += memoryview(piece).nbytes
        file.append(bytes(-size % 8))
