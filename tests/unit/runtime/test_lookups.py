"""Lookups in embedding tables against their oracle, for any number of threads; and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pslaunch.runtime import _core
from pslaunch.runtime.engine.arrays import F32, Ids, Index, find_rows, sum_rows
from pslaunch.runtime.engine.param_config import ANY_ID
from support import reference

pytestmark = pytest.mark.asan

ROWS = ANY_ID
SMALL = st.integers(0, 9)
BATCHES = st.lists(
    hnp.arrays(np.int64, st.integers(0, 60), elements=SMALL | st.integers(-(2**63), 2**63 - 1)), max_size=9
)
THREADS = st.integers(1, 3)
DIMS = st.integers(0, 19)


@given(BATCHES, THREADS)
def test_unique_ids_of_all_tables_are_those_of_the_oracle(batch: list[Ids], threads: int) -> None:
    found = find_rows({f"t{i}": (ROWS, ids) for i, ids in enumerate(batch)}, threads)
    assert list(found) == [f"t{i}" for i in range(len(batch))]
    for ids, rows in zip(batch, found.values(), strict=True):
        keys, index = reference.find_rows(ids)
        np.testing.assert_array_equal(rows.keys, keys)
        np.testing.assert_array_equal(rows.index, index)


def test_ids_of_many_batches_and_threads_are_those_of_the_oracle() -> None:
    rng = np.random.default_rng(1)
    batch = [rng.zipf(1.2, 20_000).clip(0, 10**6) << shift for shift in (0, 20, 40)]
    for threads in (1, 2, 3):
        found = find_rows({f"t{i}": (ROWS, ids) for i, ids in enumerate(batch)}, threads)
        for ids, rows in zip(batch, found.values(), strict=True):
            np.testing.assert_array_equal(rows.keys, reference.find_rows(ids)[0])
            np.testing.assert_array_equal(rows.keys[rows.index], ids)


@pytest.mark.parametrize("wrong", [100, -1, 2**63 - 1, -(2**63)])
def test_an_id_out_of_range_is_named_with_its_table(wrong: int) -> None:
    ids = np.array([1, 99, wrong, 100], np.int64)
    with pytest.raises(ValueError, match=f"^table 1: id {wrong} at place 2, expected 0 to 99$"):
        find_rows({"other": (100, ids[:2].copy()), "words": (100, ids)})


def split(rng: np.random.Generator, n: int, dim: int, *, dense: bool) -> list[F32]:
    """Return n rows in three parts, alone or as columns of one array."""
    cuts = sorted(rng.integers(0, n + 1, 2).tolist())
    sizes = np.diff([0, *cuts, n])
    if dense:
        return [rng.standard_normal((size, dim)).astype(np.float32) for size in sizes]
    whole = rng.standard_normal((max(sizes), 3 * dim)).astype(np.float32)
    return [whole[:size, i * dim : (i + 1) * dim] for i, size in enumerate(sizes)]


@st.composite
def indexes(draw: st.DrawFn) -> tuple[int, Index]:
    """Return a number of rows and an index that uses each of them."""
    rows = draw(st.integers(1, 9))
    more = draw(st.lists(st.integers(0, rows - 1), max_size=60))
    return rows, np.array(draw(st.permutations([*range(rows), *more])), np.intp)


@given(indexes(), DIMS, THREADS, st.booleans())
def test_rows_are_gathered_to_the_parts_of_a_batch(
    found: tuple[int, Index], dim: int, threads: int, dense: bool
) -> None:
    rows, index = found
    rng = np.random.default_rng([rows, dim])
    table, parts = (
        rng.standard_normal((rows, dim)).astype(np.float32),
        split(rng, len(index), dim, dense=dense),
    )
    _core.gather_rows(table, index, parts, threads)
    np.testing.assert_array_equal(np.concatenate(parts), table[index])


@given(indexes(), DIMS, THREADS, st.booleans())
def test_sums_of_rows_have_the_bits_of_the_oracle(
    found: tuple[int, Index], dim: int, threads: int, dense: bool
) -> None:
    rows, index = found
    parts = split(np.random.default_rng([rows, dim]), len(index), dim, dense=dense)
    got, want = np.empty((2, rows, dim), np.float32)
    _core.sum_rows(got, index, parts, threads)
    reference.sum_rows(want, index, np.concatenate(parts))
    assert got.tobytes() == want.tobytes()


@given(indexes(), DIMS, THREADS, st.booleans(), st.booleans(), st.data())
def test_bags_of_rows_have_the_bits_of_the_oracle(
    found: tuple[int, Index], dim: int, threads: int, weighted: bool, blank: bool, data: st.DataObject
) -> None:
    rows, index = found
    n = len(index)
    rng = np.random.default_rng([rows, dim])
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=9)))
    offsets = np.array([0, *cuts, n])
    weights = rng.standard_normal(n).astype(np.float32) if weighted else None
    place = data.draw(st.integers(0, n - 1)) if blank else -1
    scales = np.ones(n, np.float32) if weights is None else weights
    is_blank = index == (index[place] if blank else -1)
    table = rng.standard_normal((rows, dim)).astype(np.float32)
    whole = np.full((len(offsets) - 1, dim + 3), np.nan, np.float32)
    part = whole[:, 2 : dim + 2]  # with rows at a distance
    _core.gather_rows(table, index, [(part, offsets, weights, place)], threads)
    items = np.where(is_blank[:, None], np.float32(0), table[index]) * scales[:, None]
    bags = np.arange(len(part)).repeat(np.diff(offsets))
    want = np.full(part.shape, -0.0, np.float32)
    np.add.at(want, bags, items)
    assert part.tobytes() == want.tobytes()
    sums = np.empty_like(table)
    _core.sum_rows(sums, index, [(part, offsets, weights, place)], threads)
    reference.sum_rows(table, index, part[bags] * (scales * ~is_blank)[:, None])
    assert sums.tobytes() == table.tobytes()


def test_sums_of_large_bags_do_not_depend_on_threads() -> None:
    rng = np.random.default_rng(1)
    table, index = rng.standard_normal((500, 80)).astype(np.float32), rng.integers(0, 500, 6_000)
    offsets, found = np.array([0, 10, *range(1_000, 6_001, 10)]), set()
    for threads in (1, 2, 3):
        part, sums = np.empty((502, 80), np.float32), np.empty_like(table)
        _core.gather_rows(table, index, [(part, offsets, None, -1)], threads)
        _core.sum_rows(sums, index, [(part, offsets, None, -1)], threads)
        found.add((part.tobytes(), sums.tobytes()))
    assert len(found) == 1


@pytest.mark.parametrize(
    ("offsets", "weights", "place", "text"),
    [
        ([0, 3], None, -1, "index has 2 items, but parts"),
        ([0, 1, 2], None, -1, "a row for each bag"),
        ([0, -1], None, -1, "the begin of each bag"),
        ([0, 2], None, 2, "the begin of each bag"),
        ([], None, -1, "the begin of each bag"),
        ([0, 2], [1.0], -1, "weights has 1 items, but the ids of offsets needs 2"),
    ],
)
def test_bags_that_do_not_fit_are_refused(
    offsets: list[int], weights: list[float] | None, place: int, text: str
) -> None:
    given = None if weights is None else np.array(weights, np.float32)
    part = np.zeros((1, 3), np.float32), np.array(offsets, np.int64), given, place
    for kernel in (_core.gather_rows, _core.sum_rows):
        with pytest.raises(ValueError, match=text):
            kernel(FLOATS.copy(), INDEX, [part], 1)


def test_gradients_of_one_key_are_summed_in_their_order() -> None:
    grads = np.array([[2.0**24], *[[1.0]] * 40], np.float32)  # in order each 1 is lost; in pairs some are not
    found = find_rows({"t": (1, np.zeros(41, np.int64))})["t"]
    assert sum_rows(len(found.keys), found.index, [grads]).tolist() == [[2.0**24]]


FLOATS = np.zeros((2, 3), np.float32)
INDEX = np.array([0, 1], np.intp)


@pytest.mark.parametrize(
    ("table", "index", "parts", "text"),
    [
        (FLOATS, np.array([0, 2]), [FLOATS.copy()], r"index\[1\]: expected a number below 2"),
        (FLOATS, np.array([-1, 0]), [FLOATS.copy()], r"index\[0\]: expected a number below 2"),
        (FLOATS, INDEX, [FLOATS[:1].copy()], "index has 2 items, but parts, one for each row, needs 1"),
        (FLOATS, INDEX, [np.zeros((2, 2), np.float32)], r"parts is \[2, 2\], expected \[2, 3\]"),
        (FLOATS, INDEX, [np.zeros((2, 6), np.float32)[:, ::2]], "parts: rows are not dense"),
        (FLOATS, INDEX, [FLOATS], "share memory"),
        (FLOATS[0], INDEX, [FLOATS.copy()], "expected 2 dimensions, got 1"),
    ],
)
def test_rows_that_do_not_fit_are_refused(table: F32, index: Index, parts: list[Any], text: str) -> None:
    for kernel in (_core.gather_rows, _core.sum_rows):
        with pytest.raises(ValueError, match=text):
            kernel(table, index, parts, 1)


def test_results_of_a_wrong_size_or_place_are_refused() -> None:
    ids = np.arange(4)
    with pytest.raises(ValueError, match="keys has 3 items, but tables needs 4"):
        _core.find_rows([(9, ids)], np.zeros(3, np.uint64), np.zeros(4, np.intp), 1)
    with pytest.raises(ValueError, match="keys and ids share memory"):
        _core.find_rows([(9, ids)], ids.view(np.uint64), np.zeros(4, np.intp), 1)
    with pytest.raises(ValueError, match="threads=0"):
        _core.find_rows([], np.zeros(0, np.uint64), np.zeros(0, np.intp), 0)
