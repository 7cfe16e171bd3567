"""Placement of dense parameters: blocks of fixed size, dealt over all dense shards. Pure.

The k-th block of the job, counted over all parameters in order of creation, is on shard
k mod n. Every trainer counts alike, so no agreement is needed; and since optimizers work value by
value, the bits do not depend on the number of shards. Where one needs whole parameters, each is one block.
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


def count_blocks(size: int, *, whole: bool = False) -> int:
    """Return the number of blocks of a parameter with `size` values. whole: at most one."""
    return -(-size // _find_block(size, whole))


def _find_block(size: int, whole: bool) -> int:
    return max(size, 1) if whole else BLOCK_FLOATS


def place(size: int, first_block: int, shards: int, *, whole: bool = False) -> list[Piece]:
    """Return the pieces of a parameter, by shard and start; neighbours on one shard are merged.

    `first_block` is the number of blocks before this parameter.
    """
    source, target = (0, 1, whole), (first_block, shards, whole)
    found = ((shard, place_again(size, source, shard, target)) for shard in range(shards))
    return [Piece(shard, one.start, one.length) for shard, pieces in found for one in pieces]


def count_share(size: int, first_block: int, shard: int, shards: int, *, whole: bool) -> int:
    """Return the number of values that place() gives to one shard, without counting through all blocks."""
    block = _find_block(size, whole)
    before, all_blocks = (shard - first_block) % shards, count_blocks(size, whole=whole)
    own = max(-(-(all_blocks - before) // shards), 0)
    last = before + (own - 1) * shards == all_blocks - 1  # it has the last block, which may be short
    return own * block - (-size % block if own and last else 0)


Dealt = tuple[int, int, bool]  # the first block of a parameter, the number of shards, and whether it is whole


def place_again(size: int, source: Dealt, shard: int, target: Dealt) -> Iterator[Piece]:
    """Yield where the values of one shard of `target` are among the shards of `source`, in their order.

    `start` is the place among that shard's values.
    """
    (before, n, was_whole), (first, shards, whole) = source, target
    begin = (shard - first) % shards
    if whole == was_whole and (whole or n == shards):  # all of one shard
        if share := count_share(size, first, shard, shards, whole=whole):
            yield Piece((before + begin) % n, 0, share)
        return
    count = count_blocks(size)
    for k in range(0 if begin == 0 else count, count) if whole else range(begin, count, shards):
        own, at = (before, k) if was_whole else (before + k, k // n)
        yield Piece(own % n, at * BLOCK_FLOATS, min(BLOCK_FLOATS, size - k * BLOCK_FLOATS))
