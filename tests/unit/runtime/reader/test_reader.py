"""Readers: what each decorator gives, and that threads end with it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import pslaunch.runtime as paddle
from pslaunch.runtime.process import settings
from pslaunch.runtime.v2 import reader


def ten() -> Iterator[int]:
    return iter(range(10))


def test_batch_groups_samples() -> None:
    assert list(paddle.batch(ten, 4)()) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(list(paddle.batch(ten, 4, drop_last=True)())) == 2
    with pytest.raises(ValueError, match="batch_size=0"):
        paddle.batch(ten, 0)


def test_shuffle_depends_on_the_seed_and_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def passes(seed: int) -> list[list[int]]:
        monkeypatch.setattr(settings, "_current", None)
        settings.init(seed=seed)
        shuffled = reader.shuffle(ten, 10)
        return [list(shuffled()) for _ in range(2)]

    first = passes(1)
    assert first == passes(1)
    assert first != passes(2)
    assert first[0] != first[1]
    assert sorted(first[0]) == list(range(10))


def test_chain_map_compose_firstn_cache() -> None:
    assert list(reader.chain(ten, ten)()) == [*range(10), *range(10)]
    assert list(reader.map_readers(lambda a, b: a * b, ten, ten)()) == [i * i for i in range(10)]
    assert list(reader.firstn(ten, 3)()) == [0, 1, 2]
    pairs = reader.map_readers(lambda a: (a, -a), ten)
    assert next(iter(reader.compose(ten, pairs)())) == (0, 0, 0)
    assert list(reader.compose(ten, pairs)())[3] == (3, 3, -3)
    with pytest.raises(reader.ComposeNotAligned):
        list(reader.compose(ten, reader.firstn(ten, 3))())
    assert len(list(reader.compose(ten, reader.firstn(ten, 3), check_alignment=False)())) == 3
    reads: list[int] = []
    cached = reader.cache(lambda: map(reads.append, range(3)))
    assert list(cached()) == list(cached()) == [None] * 3
    assert reads == [0, 1, 2]


def test_buffered_gives_the_same_samples_and_errors() -> None:
    assert list(reader.buffered(ten, 3)()) == list(range(10))

    def broken() -> Iterator[int]:
        yield 1
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        list(reader.buffered(broken, 3)())


def test_a_buffered_reader_left_early_leaves_no_thread() -> None:
    def endless() -> Iterator[int]:
        while True:
            yield 1

    before = threading.active_count()
    source = reader.buffered(endless, 2)()
    assert next(source) == 1
    source.close()
    assert threading.active_count() == before


@pytest.mark.parametrize("order", [True, False])
def test_xmap_keeps_the_order(order: bool) -> None:
    mapped = reader.xmap_readers(lambda i: i * 2, ten, 3, 4, order)
    assert list(mapped()) == [i * 2 for i in range(10)]
    assert list(mapped()) == [i * 2 for i in range(10)]


def test_creators_read_arrays_and_files(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("a\nb\n")
    assert list(reader.creator.text_file(path)()) == ["a", "b"]
    assert [x.tolist() for x in reader.creator.np_array([[1, 2], [3, 4]])()] == [[1, 2], [3, 4]]


def test_a_reader_that_leaves_the_program_ends_it() -> None:
    def leaves() -> Iterator[int]:
        yield 1
        sys.exit(5)

    with pytest.raises(SystemExit):
        list(reader.buffered(leaves, 2)())
