"""Configuration of a parameter, and its form in a v2 tar file.

The form is the protobuf message ParameterConfig of PaddlePaddle v2 (proto/ParameterConfig.proto); the
few relevant fields are written and read by hand, others are skipped.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .attr import Initializer, ParameterAttribute
from .entry import ANY, EntryAttr, ShowClickEntry
from .kernel_numbers import LATE, InitialKind

ANY_ID = 2**64 - 1  # rows of a table for ids of any value
USUAL_ROWS = 2**20  # of such a table, for its initial values


@dataclass(frozen=True, kw_only=True, slots=True)
class ParamConfig:
    """A matrix of `rows` x `cols`, with its initial values and learning. None: the optimizer's own."""

    name: str
    rows: int
    cols: int
    kind: InitialKind = "normal"
    mean: float = 0.0
    std: float = 0.0
    learning_rate: float = 1.0
    momentum: float | None = None
    decay: float | None = None
    l1: float | None = None
    clip: float | None = None  # greatest magnitude of a gradient's value; 0: no clipping, by a norm neither
    is_static: bool = False
    is_running: bool = False  # a running mean: its learning rate is the share by which a step moves it
    sparse: bool = False
    initializer: Initializer | None = None
    entry: EntryAttr = ANY

    def __post_init__(self) -> None:
        if self.rows == ANY_ID and self.initializer is not None:
            raise ValueError(
                f"parameter {self.name}: an initializer can't have a value for any id; use values that "
                "servers draw, Uniform or Normal"
            )
        if self.entry != ANY and self.initializer is not None:
            raise ValueError(
                f"parameter {self.name}: an initializer of all values gives every id a row, so its entry "
                "rule has no effect; use values that servers draw, Uniform or Normal, or leave the rule out"
            )

    @property
    def start(self) -> InitialKind:
        """The kind of initial values that the rows of a table have."""
        zeros = isinstance(self.entry, ShowClickEntry) and self.entry.zeros
        return LATE.get(self.kind, self.kind) if zeros else self.kind

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.cols


def make_config(name: str, rows: int, cols: int, attr: ParameterAttribute, *, bias: bool) -> ParamConfig:
    """Return the configuration of a layer's parameter.

    Without values in `attr`, a weight is normal with mean 0 and std 1/sqrt(rows), v2's "smart"
    initial value, of a table for any ids that of 2**20 rows; a bias is 0. (v2 gives a bias whose attribute
    names no initial value a std of 1.)
    """
    kind: InitialKind = "normal"
    mean, std = 0.0, 0.0 if bias else 1.0 / math.sqrt(USUAL_ROWS if rows == ANY_ID else rows)
    if attr.initial_min is not None and attr.initial_max is not None:
        kind = "uniform"
        mean = (attr.initial_max + attr.initial_min) / 2
        std = mean - attr.initial_min
    elif attr.initial_std is not None or attr.initial_mean is not None:
        mean = attr.initial_mean or 0.0
        std = 0.01 if attr.initial_std is None else attr.initial_std
    return ParamConfig(
        name=attr.name or name,
        rows=rows,
        cols=cols,
        kind=kind,
        mean=float(mean),
        std=float(std),
        learning_rate=1.0 if attr.learning_rate is None else float(attr.learning_rate),
        momentum=None if attr.momentum is None else float(attr.momentum),
        decay=None if attr.l2_rate is None else float(attr.l2_rate),
        l1=None if attr.l1_rate is None else float(attr.l1_rate),
        clip=attr.gradient_clipping_threshold or None,
        is_static=attr.is_static,
        sparse=attr.sparse_update,
        initializer=attr.initializer,
        entry=attr.entry or ANY,
    )


# Field numbers of the message; of those of an attribute, the numbers may be left out, and flags are true.
_NAME, _SIZE, _DIMS, _STRATEGY = 1, 2, 9, 11
_NUMBERS = {3: "learning_rate", 5: "mean", 6: "std", 4: "momentum", 7: "decay"}
_FLAGS = {16: "sparse", 22: "sparse", 18: "is_static"}  # 16: by PaddlePaddle's servers
Field = int | float | bytes


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _encode_field(number: int, value: Field) -> bytes:
    if isinstance(value, bytes):
        return _encode_varint(number << 3 | 2) + _encode_varint(len(value)) + value
    if isinstance(value, float):
        return _encode_varint(number << 3 | 1) + struct.pack("<d", value)
    return _encode_varint(number << 3) + _encode_varint(value)


def encode(config: ParamConfig) -> bytes:
    fields: list[tuple[int, Field]] = [
        (_NAME, config.name.encode()),
        (_SIZE, config.rows * config.cols),
    ]
    numbers = [(field, getattr(config, name)) for field, name in _NUMBERS.items()]
    fields += [(field, float(value)) for field, value in numbers if value is not None]
    fields += [(_DIMS, config.rows), (_DIMS, config.cols), (_STRATEGY, int(config.kind == "uniform"))]
    fields += [(field, 1) for field, name in _FLAGS.items() if getattr(config, name)]
    return b"".join(_encode_field(number, value) for number, value in fields)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a number is cut off")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _read_fields(data: bytes) -> Iterator[tuple[int, Field]]:
    """Yield number and value of each field; raises ValueError if the message is damaged."""
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        kind, size = tag & 7, {1: 8, 5: 4}.get(tag & 7, 0)
        if kind not in (0, 1, 2, 5):
            raise ValueError(f"field {tag >> 3} has the unknown type {kind}")
        if kind == 0:
            value, at = _read_varint(data, at)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, at = _read_varint(data, at)
        if at + size > len(data):
            raise ValueError(f"field {tag >> 3} is cut off")
        piece, at = data[at : at + size], at + size
        yield tag >> 3, float(struct.unpack("<d", piece)[0]) if kind == 1 else piece


def decode(data: bytes) -> ParamConfig:
    """Return the configuration in a message; raises ValueError if it is damaged or not of a matrix."""
    fields = list(_read_fields(data))
    found = dict(fields)
    attrs: dict[str, Any] = {"std": 0.01} | {
        _NUMBERS[number]: value for number, value in fields if number in _NUMBERS and isinstance(value, float)
    }
    attrs |= {name: found.get(field) == 1 for field, name in _FLAGS.items()}
    dims = [value for number, value in fields if number == _DIMS and isinstance(value, int)]
    name, size = found.get(_NAME), found.get(_SIZE)
    if not isinstance(name, bytes) or not isinstance(size, int):
        raise ValueError("it has no name or no size")
    rows, cols = dims if len(dims) == 2 else (1, size)
    if rows * cols != size or size == 0:
        raise ValueError(f"dims {dims} do not match size {size}")
    return ParamConfig(
        name=name.decode(),
        rows=rows,
        cols=cols,
        kind="uniform" if found.get(_STRATEGY) == 1 else "normal",
        **attrs,
    )
