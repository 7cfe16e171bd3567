"""Placement of dense parameters: blocks of fixed size, dealt over all dense shards. Pure.

The k-th block of the job, counted over all parameters in order of creation, is on shard
k mod n. Every trainer counts alike, so no agreement is needed; and since optimizers work value by
value, the bits do not depend on the number of shards. Where one needs whole parameters, each is one block.
"""

from __future__ import annotations

from dataclasses import dataclass

BLOCK_FLOATS = 16384  # 64 KiB


@dataclass(frozen=True, slots=True)
class Piece:
    """Range [start, start + length) of a parameter's values on one shard."""

    shard: int
    start: int
    length: int


def count_blocks(size: int, *, whole: bool = False) -> int:
    """Return the number of blocks of a parameter with `size` values. whole: at most one."""
    return -(-size // _find_block(size, whole))


def _find_block(size: int, whole: bool) -> int:
    return max(size, 1) if whole else BLOCK_FLOATS


def place(size: int, first_block: int, shards: int, *, whole: bool = False) -> list[Piece]:
    """Return the pieces of a parameter, by shard and start; neighbours on one shard are merged.

    `first_block` is the number of blocks before this parameter. Raises ValueError unless size >= 0 and
    shards >= 1.
    """
    if size < 0 or shards < 1 or first_block < 0:
        raise ValueError(f"cannot place {size} values from block {first_block} on {shards} shards")
    if shards == 1:
        return [Piece(0, 0, size)] if size else []
    pieces, block = [], _find_block(size, whole)
    for k, start in enumerate(range(0, size, block)):
        pieces.append(Piece((first_block + k) % shards, start, min(block, size - start)))
    return sorted(pieces, key=lambda p: (p.shard, p.start))
