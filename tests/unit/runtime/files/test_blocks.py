"""Block placement: every value has one place, shards have alike, and counting goes on over parameters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslaunch.runtime.files import blocks
from pslaunch.runtime.files.blocks import BLOCK_FLOATS, Piece, place

pytestmark = pytest.mark.asan

SIZES = st.integers(0, 20 * BLOCK_FLOATS)
SHARDS = st.integers(1, 9)


@given(SIZES, st.integers(0, 100), SHARDS)
def test_pieces_cover_the_parameter_once_in_the_order_of_shards(size: int, first: int, shards: int) -> None:
    pieces = place(size, first, shards)
    assert pieces == sorted(pieces, key=lambda p: (p.shard, p.start))
    at = 0
    for piece in sorted(pieces, key=lambda p: p.start):
        assert piece.start == at
        assert piece.length > 0
        assert 0 <= piece.shard < shards
        at += piece.length
    assert at == size


@given(st.lists(SIZES, max_size=6), SHARDS)
def test_blocks_of_all_parameters_are_dealt_evenly(sizes: list[int], shards: int) -> None:
    blocks_on = [0] * shards
    first = 0
    for size in sizes:
        for piece in place(size, first, shards):
            blocks_on[piece.shard] += blocks.count_blocks(piece.length)
        first += blocks.count_blocks(size)
    assert max(blocks_on) - min(blocks_on) <= 1


def test_one_shard_has_it_in_one_piece() -> None:
    assert place(3 * BLOCK_FLOATS + 1, 5, 1) == [Piece(0, 0, 3 * BLOCK_FLOATS + 1)]


def test_placement_is_as_it_was() -> None:
    """Changing it changes which pserver has what: fine for the bits, not for snapshots."""
    assert place(2 * BLOCK_FLOATS + 5, 1, 2) == [
        Piece(0, BLOCK_FLOATS, BLOCK_FLOATS),
        Piece(1, 0, BLOCK_FLOATS),
        Piece(1, 2 * BLOCK_FLOATS, 5),
    ]


DEALT = st.tuples(st.integers(0, 20), SHARDS, st.booleans())


@given(SIZES, DEALT, DEALT)
def test_values_are_found_again_among_other_shards(
    size: int, source: tuple[int, int, bool], target: tuple[int, int, bool]
) -> None:
    sources: dict[int, list[int]] = {shard: [] for shard in range(source[1])}

    def deal(first: int, shards: int, whole: bool) -> list[Piece]:
        return place(size, first, shards, whole=whole)

    for piece in deal(*source):  # the numbers of all blocks' first values, as each shard has them
        sources[piece.shard] += range(piece.start, piece.start + piece.length, BLOCK_FLOATS)
    for shard in range(target[1]):
        own = [piece for piece in deal(*target) if piece.shard == shard]
        wanted = [at for p in own for at in range(p.start, p.start + p.length, BLOCK_FLOATS)]
        found = [
            sources[p.shard][at // BLOCK_FLOATS]
            for p in blocks.place_again(size, source, shard, target)
            for at in range(p.start, p.start + p.length, BLOCK_FLOATS)
        ]
        assert found == wanted
        share = blocks.count_share(size, target[0], shard, target[1], whole=target[2])
        assert share == sum(p.length for p in own)
