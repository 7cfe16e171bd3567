"""The kernels of layers against numpy in double precision, their errors, and their threads."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslaunch.runtime import _core
from pslaunch.runtime.engine.arrays import F32

pytestmark = pytest.mark.asan

SIZES = st.integers(0, 40)
THREADS = st.integers(1, 3)
ACTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "exp": np.exp,
    "relu": lambda x: np.maximum(x, 0),
    "softmax": lambda x: np.exp(x) / np.exp(x).sum(axis=1, keepdims=True),
}


def make_array(rng: np.random.Generator, rows: int, cols: int, form: str = "dense") -> F32:
    """Random numbers in one of the forms that slices and transpositions have."""
    if form == "transposed":
        return rng.standard_normal((cols, rows)).astype(np.float32).T
    if form == "slice":
        return rng.standard_normal((rows, cols + 3)).astype(np.float32)[:, 1 : cols + 1]
    if form == "backwards":
        return rng.standard_normal((rows, cols)).astype(np.float32)[::-1, ::-1]
    return rng.standard_normal((rows, cols)).astype(np.float32)


FORMS = st.sampled_from(["dense", "transposed", "slice", "backwards"])


@given(SIZES, SIZES, SIZES, FORMS, FORMS, st.sampled_from(["zero", "row", "out"]), THREADS)
def test_matmul_equals_numpy(m: int, n: int, k: int, a: str, b: str, start: str, threads: int) -> None:
    rng = np.random.default_rng([m, n, k])
    left, right = make_array(rng, m, k, a), make_array(rng, k, n, b)
    out = make_array(rng, m, n)
    first = {"zero": None, "row": make_array(rng, 1, n), "out": out}[start]
    expected = left.astype(np.float64) @ right + (0 if first is None else first)
    _core.matmul(left, right, out, first, threads)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


@given(st.sampled_from(sorted(ACTS)), SIZES, st.integers(1, 40), THREADS)
def test_activations_equal_numpy(act: str, rows: int, cols: int, threads: int) -> None:
    x = make_array(np.random.default_rng([rows, cols]), rows, cols) * np.float32(3)
    expected = ACTS[act](x.astype(np.float64))
    _core.activate(act, x, threads)
    np.testing.assert_allclose(x, expected, rtol=1e-6, atol=1e-7)


@given(SIZES, st.integers(1, 40), THREADS)
def test_cross_entropy_equals_numpy(rows: int, cols: int, threads: int) -> None:
    rng = np.random.default_rng([rows, cols])
    scores, labels = make_array(rng, rows, cols) * np.float32(3), rng.integers(0, cols, rows)
    probability = ACTS["softmax"](scores.astype(np.float64))
    picked = probability[np.arange(rows), labels]
    cost = np.empty(rows, np.float32)
    assert _core.cross_entropy(scores, labels, cost, threads) == np.sum(picked < probability.max(axis=1))
    np.testing.assert_allclose(scores, probability, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(cost, -np.log(picked), rtol=1e-5, atol=1e-6)


@given(SIZES, SIZES, THREADS)
def test_sums_equal_numpy(rows: int, cols: int, threads: int) -> None:
    rng = np.random.default_rng([rows, cols])
    x, y = make_array(rng, rows, cols), make_array(rng, rows, cols)
    columns, dots = np.empty((1, cols), np.float32), np.empty(rows, np.float32)
    _core.sum_columns(x, columns, threads)
    _core.dot_rows(x, y, dots, threads)
    np.testing.assert_allclose(columns[0], x.astype(np.float64).sum(axis=0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(dots, (x.astype(np.float64) * y).sum(axis=1), rtol=1e-4, atol=1e-5)


def test_shapes_overlaps_and_names_that_do_not_fit_are_errors() -> None:
    a, wide, whole = np.ones((2, 3), np.float32), np.ones((2, 4), np.float32), np.ones((3, 3), np.float32)
    cost = np.empty(2, np.float32)
    with pytest.raises(ValueError, match=r"b is \[2, 4\], expected \[3, 4\]"):
        _core.matmul(a, wide, wide, None, 1)
    with pytest.raises(ValueError, match=r"out is \[2, 4\], expected \[2, 3\]"):
        _core.matmul(a, whole, wide, None, 1)
    with pytest.raises(ValueError, match=r"start is \[2, 4\], expected \[1, 3\]"):
        _core.matmul(a, whole, a.copy(), wide, 1)
    with pytest.raises(ValueError, match="a and out share memory"):
        _core.matmul(whole[::-1], whole.copy(), whole, None, 1)
    with pytest.raises(ValueError, match="threads=0"):
        _core.matmul(a, whole, a.copy(), None, 0)
    with pytest.raises(ValueError, match="unknown activation relo"):
        _core.activate("relo", a, 1)
    with pytest.raises(ValueError, match="labels has 1 items, expected 2"):
        _core.cross_entropy(a, np.array([0]), cost, 1)


def test_forked_child_computes_with_threads_of_its_own() -> None:
    rng = np.random.default_rng(1)
    a, b = make_array(rng, 200, 200), make_array(rng, 200, 200)
    out = np.empty_like(a)
    _core.matmul(a, b, out, None, 3)
    expected = out.tobytes()
    pid = os.fork()
    if pid == 0:
        _core.matmul(a, b, out, None, 3)
        os._exit(out.tobytes() != expected)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
