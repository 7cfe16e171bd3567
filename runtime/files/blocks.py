"""Placement of dense parameters: blocks of fixed size, dealt over all dense shards. Pure.

The k-th block of the job, counted over all parameters in order of creation, is on shard
k mod n. Every trainer counts alike, so no agreement is needed; and since optimizers work value by
value, the bits do not depend on the number of shards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

BLOCK_FLOATS = 16384  # 64 KiB


@dataclass(frozen=True, slots=True)
class Piece:
    """Range [start, start + length) of a parameter's values on one shard."""

    shard: int
    start: int
    length: int


def count_blocks(size: int) -> int:
    """Return the number of blocks of a parameter with `size` values."""
    return -(-size // BLOCK_FLOATS)


def place(size: int, first_block: int, shards: int) -> list[Piece]:
    """Return the pieces of a parameter, by shard and start; neighbours on one shard are merged.

    `first_block` is the number of blocks before this parameter. Raises ValueError unless size >= 0 and
    shards >= 1.
    """
    if size < 0 or shards < 1 or first_block < 0:
        raise ValueError(f"cannot place {size} values from block {first_block} on {shards} shards")
    if shards == 1:
        return [Piece(0, 0, size)] if size else []
    pieces = []
    for k in range(count_blocks(size)):
        start = k * BLOCK_FLOATS
        pieces.append(Piece((first_block + k) % shards, start, min(BLOCK_FLOATS, size - start)))
    return sorted(pieces, key=lambda p: (p.shard, p.start))


def count_share(size: int, first_block: int, shard: int, shards: int) -> int:
    """Return the number of values that place() gives to one shard, without counting through all blocks."""
    before = (shard - first_block) % shards  # blocks before the shard's first
    own = max(-(-(count_blocks(size) - before) // shards), 0)
    last = before + (own - 1) * shards == count_blocks(size) - 1  # it has the last block, which may be short
    return own * BLOCK_FLOATS - (-size % BLOCK_FLOATS if own and last else 0)


def place_again(size: int, source: tuple[int, int], shard: int, target: tuple[int, int]) -> Iterator[Piece]:
    """Yield where the values of one shard are among other shards: `start` is the place among that shard's.

    `source` and `target`: the first block of the parameter, and the number of shards.
    """
    (before, n), (first_block, shards) = source, target
    begin = (shard - first_block) % shards
    if n == shards:  # all of one shard
        if share := count_share(size, first_block, shard, shards):
            yield Piece((before + begin) % n, 0, share)
        return
    for k in range(begin, count_blocks(size), shards):
        yield Piece((before + k) % n, k // n * BLOCK_FLOATS, min(BLOCK_FLOATS, size - k * BLOCK_FLOATS))
