"""Saved shards as numpy arrays, for people, tests and other programs; pservers do not use it.

`python -m pslaunch.runtime.pserver.checkpoint DIR` checks the files that pservers wrote below --save_dir and
lists their contents. docs/checkpoint.md has the format. Large arrays are mapped, not read.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..engine.arrays import F32, U64
from ..engine.kernel_numbers import KERNELS
from ..files import blocks
from ..files.saving import DIGEST_BYTES, MAX_HEADER_BYTES, START, Header

# flags, length of CREATE, steps, count, samples, passes, waiting; CREATE (docs/protocol.md) up to its name.
FILE_HEAD = struct.Struct("<IIQQQQQ")
CREATE = struct.Struct("<IIQQIIfffffffIddIIIffQQIffI")
TORN = 1
NAMES = [*KERNELS]  # of optimizers, by number

Bytes = npt.NDArray[np.uint8]


class CheckpointError(ValueError):
    """A file is damaged, or files do not belong together; the text names them."""


@dataclass(frozen=True, slots=True)
class Saved:
    """One parameter, or one shard's part of it.

    Dense: keys None, values [n], state [slots, n]. A table: keys [n], values [n, dim], state [slots, n, dim].
    `state` is the optimizer's, or None.
    """

    name: str
    steps: int  # updates applied to the values
    torn: bool  # some values have one update more: the pserver ended while a step was applied
    total: int  # values of the whole dense parameter; known rows of a table
    method: str
    keys: U64 | None
    values: F32
    state: F32 | None


@dataclass(frozen=True, slots=True)
class ShardFile:
    """Content of one file."""

    path: Path
    header: Header
    objects: list[Saved]  # in the order of creation, the same on all shards


def read(path: Path) -> ShardFile:
    """Map a file and check its content by the digest at its end. Raises CheckpointError, OSError."""
    data: Bytes = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
    content = data[:-DIGEST_BYTES]
    if hashlib.sha256(content.data).digest() != data[-DIGEST_BYTES:].tobytes():
        raise CheckpointError(f"{path} is damaged: its digest does not match its content")
    try:
        header, at = Header.decode(content[: START.size + MAX_HEADER_BYTES].tobytes())
        if header.name != path.name:
            raise ValueError(f"the content is that of {header.name}")
        return ShardFile(path, header, list(_read_objects(content, at)))
    except (ValueError, struct.error) as e:
        raise CheckpointError(f"{path}: {e}") from None


def _read_objects(data: Bytes, at: int) -> Iterator[Saved]:
    """Yield the objects from `at` to the end. Raises ValueError, struct.error."""

    def take(size: int) -> Bytes:
        nonlocal at
        if size > len(data) - at:
            raise ValueError("an object extends beyond the end of the file")
        at += size
        return data[at - size : at]

    while at < len(data):
        flags, length, steps, n, _, _, waiting = FILE_HEAD.unpack(data[at : at + FILE_HEAD.size].tobytes())
        at += FILE_HEAD.size
        table, dim, _, total, method, *rest = CREATE.unpack(data[at : at + CREATE.size].tobytes())
        if method >= len(NAMES) or length < CREATE.size + rest[-1]:
            raise ValueError(f"unknown optimizer {method}, or a name of {rest[-1]} bytes in {length}")
        name = bytes(data[at + length - rest[-1] : at + length]).decode()
        at += length
        at += -at % 8
        slots, _, per_row = KERNELS[NAMES[method]].get_state_shape(n, dim)
        keys: U64 | None = None
        rows: F32
        if table:
            keys = take(8 * n).view(np.uint64)
            take(8 * waiting)
            rows = take(4 * n * (dim + slots * per_row)).view(np.float32).reshape(n, dim + slots * per_row)
            values, state = rows[:, :dim], rows[:, dim:].reshape(n, slots, per_row).swapaxes(0, 1)
            take(12 * (n + waiting) if rest[13] else 0)
        else:
            rows = take(4 * n * (1 + slots)).view(np.float32).reshape(1 + slots, n)
            values, state = rows[0], rows[1:]
        kept = state if slots else None
        yield Saved(name, steps, bool(flags & TORN), total, NAMES[method], keys, values, kept)
        at += -at % 8


def load(folder: Path) -> dict[str, Saved]:
    """Return all parameters of a training by name, joined from the files of all its shards.

    Tables are sorted by key; they lack rows that no trainer pushed: those have their initial values.
    Raises CheckpointError, OSError.
    """
    shards = [read(path) for path in sorted(folder.glob("shard-*.bin"))]
    if not shards:
        raise CheckpointError(f"{folder}: no saved shards")
    _check_set(folder, shards)
    h = shards[0].header
    dense = [i for i, shard in enumerate(shards) if shard.header.port < h.ports_num]
    sparse = [i for i, shard in enumerate(shards) if shard.header.port >= h.ports_num] or dense
    found: dict[str, Saved] = {}
    first_block = 0
    for parts in zip(*(shard.objects for shard in shards), strict=True):
        name = parts[0].name
        if parts[0].keys is None:
            try:
                found[name] = _join_dense([parts[i] for i in dense], first_block)
            except ValueError as e:
                raise CheckpointError(f"{folder}: {name}: {e}") from None
            whole = KERNELS[parts[0].method].whole
            first_block += blocks.count_blocks(parts[0].total, whole=whole)
        else:
            found[name] = _join_tables([parts[i] for i in sparse])
    return found


def _check_set(folder: Path, shards: Sequence[ShardFile]) -> None:
    """Check that the shards are exactly those of one training."""
    first = shards[0]
    for shard in shards:
        if replace(shard.header, pserver=0, port=0) != replace(first.header, pserver=0, port=0):
            raise CheckpointError(
                f"{shard.path} and {first.path} are of different trainings, or ended differently"
            )
    h = first.header
    ports = h.ports_num + h.ports_num_for_sparse
    names = (replace(h, pserver=p, port=i).name for p in range(h.pservers) for i in range(ports))
    have = [[_describe(saved) for saved in shard.objects] for shard in shards]
    if any(objects != have[0] for objects in have):
        raise CheckpointError(f"{folder}: the shards have different parameters")
    there = {shard.path.name for shard in shards}
    if missing := next((name for name in names if name not in there), None):
        raise CheckpointError(f"{folder}: {missing}: missing")


def _describe(saved: Saved) -> tuple[object, ...]:
    """Return what is equal in all shards."""
    return saved.name, saved.method, saved.keys is None, saved.total, saved.values.shape[1:]


def _join_dense(parts: Sequence[Saved], first_block: int) -> Saved:
    """Join `parts`, in order of the dense shards. Raises ValueError."""
    sizes, placed = [part.values.size for part in parts], [0] * len(parts)
    # A number that no shard vouches for takes neither time nor memory.
    total, whole, pieces = parts[0].total, KERNELS[parts[0].method].whole, list[blocks.Piece]()
    if sum(sizes) == total:
        pieces = blocks.place(total, first_block, len(parts), whole=whole)
    for piece in pieces:
        placed[piece.shard] += piece.length
    if sum(sizes) != parts[0].total or sizes != placed:
        raise ValueError(f"the shards have {sizes} values, which are not the {parts[0].total} of the whole")
    used = [parts[i] for i in sorted({piece.shard for piece in pieces})] or list(parts)

    def join(arrays: Sequence[F32 | None]) -> F32 | None:
        found = [array for array in arrays if array is not None]
        if not found:
            return None
        whole, taken = np.empty((*found[0].shape[:-1], parts[0].total), np.float32), [0] * len(parts)
        for piece in pieces:
            array, at = found[piece.shard], taken[piece.shard]
            taken[piece.shard] += piece.length
            whole[..., piece.start : piece.start + piece.length] = array[..., at : taken[piece.shard]]
        return whole

    values = join([part.values for part in parts])
    assert values is not None
    return _make_joined(used, keys=None, values=values, state=join([part.state for part in parts]))


def _join_tables(parts: Sequence[Saved]) -> Saved:
    keys = np.concatenate([part.keys for part in parts if part.keys is not None])
    order = np.argsort(keys)
    values = np.concatenate([part.values for part in parts])[order]
    states = [part.state for part in parts if part.state is not None]
    state = np.concatenate(states, axis=1)[:, order] if states else None
    return _make_joined(parts, keys=keys[order], values=values, state=state)


def _make_joined(parts: Sequence[Saved], *, keys: U64 | None, values: F32, state: F32 | None) -> Saved:
    """Return the joined parameter; it is torn if the parts have different steps."""
    steps = {part.steps for part in parts}
    torn = len(steps) > 1 or any(part.torn for part in parts)
    return replace(parts[0], steps=min(steps), torn=torn, keys=keys, values=values, state=state)


def main(argv: Sequence[str] | None = None) -> int:
    """Check a folder and print its content; return the exit code."""
    words = sys.argv[1:] if argv is None else argv
    if len(words) != 1:
        print("usage: python -m pslaunch.runtime.pserver.checkpoint DIR", file=sys.stderr)
        return 2
    try:
        found = load(Path(words[0]))
    except (CheckpointError, OSError) as e:
        print(f"checkpoint: {e}", file=sys.stderr)
        return 74 if isinstance(e, OSError) else 1
    for saved in found.values():
        shape = "x".join(map(str, saved.values.shape))
        torn = ", torn: some values have one step more" if saved.torn else ""
        kind = "rows" if saved.keys is not None else "values"
        print(f"{saved.name}: {shape} {kind}, {saved.steps} steps of {saved.method}{torn}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
