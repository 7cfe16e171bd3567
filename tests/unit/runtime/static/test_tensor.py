"""Functions of tensors: parts of variables, numbers at the limits, and errors that name the variable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pslaunch.runtime as paddle
from pslaunch.runtime.paddle2 import nn, static
from pslaunch.runtime.paddle2.nn import functional as F  # as in PaddlePaddle's pages

ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)
ALL: Any = "all"


def compute(value: Any, rows: Any = ROWS) -> Any:
    executor = static.Executor(paddle.CPUPlace())
    executor.run(static.default_startup_program())
    return executor.run(feed={"x": np.asarray(rows, np.float32)}, fetch_list=[value])[0]


@pytest.fixture
def x() -> static.Variable:
    return static.data("x", [None, 4])


def test_slices_are_those_of_numpy(x: static.Variable) -> None:
    s = np.s_
    for key in (s[:], s[:, 2], s[:, -1], s[:, 0:1], s[:, 1:9], s[:, ::-2], s[...], s[..., 1], s[:, ..., 1]):
        np.testing.assert_array_equal(compute(x[key]), ROWS[key])
    np.testing.assert_array_equal(compute(paddle.transpose(x, [0, 1])), ROWS)
    np.testing.assert_array_equal(compute(paddle.full([2, 3], 7, "int64")[1, np.int64(2)]), [7])


def test_ids_may_be_slices_of_data() -> None:
    word = static.data("x", [None, 4], "int64")
    table = paddle.ParamAttr(initializer=nn.initializer.Assign(ROWS.reshape(12, 1)))
    row = static.nn.embedding(word[:, 1:3], [12, 1], is_sparse=True, param_attr=table)
    paddle.optimizer.SGD(learning_rate=0.5).minimize(paddle.sum(row))
    executor = static.Executor()
    executor.run(static.default_startup_program())
    for step in range(2):
        (found,) = executor.run(feed={"x": ROWS.astype(np.int64)}, fetch_list=[row])
        np.testing.assert_array_equal(found[..., 0], ROWS[:, 1:3] - 0.5 * step)


def test_parts_have_the_given_sizes(x: static.Variable) -> None:
    for given, sizes in ((2, [2, 2]), ([1, -1], [1, 3]), ((1, 2, 1), [1, 2, 1])):
        parts = paddle.split(x, given, axis=-1)
        assert [part.shape for part in parts] == [(-1, size) for size in sizes]
        np.testing.assert_array_equal(np.hstack([compute(part) for part in parts]), ROWS)


def test_inference_models_keep_slices_and_limits(x: static.Variable, tmp_path: Path) -> None:
    value = paddle.clip(x[:, ::-2], max=9.5) + paddle.full([2], 0.5)
    compute(static.nn.fc(value, 1))
    static.save_inference_model(str(tmp_path / "model"), x, value)
    executor = static.Executor()
    program, _, fetches = static.load_inference_model(str(tmp_path / "model"), executor)
    (found,) = executor.run(program, feed={"x": ROWS}, fetch_list=fetches)
    np.testing.assert_array_equal(found, np.minimum(ROWS[:, ::-2], 9.5) + 0.5)


def test_zeros_of_extremes_have_no_sign(x: static.Variable) -> None:
    zeros = np.array([[0.0, -0.0, 0.0, -0.0], [-0.0] * 4])
    swapped = x[:, ::-1]
    for value in (
        paddle.maximum(x, swapped),
        paddle.minimum(x, swapped),
        paddle.max(x, 1),
        paddle.min(x),
        paddle.clip(x, -0.0, 0.0),
    ):
        assert not np.signbit(compute(value, zeros)).any()


def test_costs_of_large_scores_are_finite(x: static.Variable) -> None:
    scores, label = [[-1000.0, -30.0, 30.0, 1000.0]], paddle.full([1, 4], 0.5)
    cost = F.binary_cross_entropy_with_logits(x, paddle.multiply(label, x * 0 + 1), reduction="none")
    np.testing.assert_allclose(compute(cost, scores), [[500, 15, 15, 500]], rtol=1e-6)


def test_cost_of_a_certain_mistake_is_limited(x: static.Variable) -> None:
    labels = paddle.full([1, 4], 1.0) * (x * 0 + 1)
    cost = F.binary_cross_entropy(x, labels, reduction="none")
    np.testing.assert_allclose(
        compute(cost, [[0.0, 1e-30, 0.5, 1.0]]), [[100, 69.07755, 0.6931472, 0]], rtol=1e-6
    )


def test_parameters_have_any_number_of_axes(x: static.Variable) -> None:
    values = np.arange(24.0).reshape(2, 3, 4)
    given = paddle.create_parameter([2, 3, 4], "float32", default_initializer=nn.initializer.Assign(values))
    drawn = paddle.create_parameter([2, 3, 4, 5], "float32")
    both = paddle.concat([paddle.reshape(given, [24]), paddle.reshape(drawn, [120])])
    found = compute(both, np.zeros((1, 4)))
    np.testing.assert_array_equal(found[:24], np.arange(24.0))
    most = (6 / (3 * 20 + 2 * 20)) ** 0.5  # of XavierUniform: those of a convolution
    assert 0.9 * most < np.abs(found[24:]).max() < most


def test_device_is_the_cpu() -> None:
    assert isinstance(paddle.set_device("cpu"), paddle.CPUPlace)
    assert (paddle.get_device(), paddle.is_compiled_with_cuda()) == ("cpu", False)
    with pytest.raises(ValueError, match=r"set_device: 'gpu:0', expected 'cpu'"):
        paddle.set_device("gpu:0")


@pytest.mark.parametrize(
    ("use", "error", "words"),
    [
        (
            lambda x: x[0],
            ValueError,
            r"\[-1, 4\] can't be cut along the batch; begin with a colon: \[:, 0\]",
        ),
        (lambda x: x[:, 4], ValueError, "has no items 4 at axis 1"),
        (lambda x: x[:, 3:3], ValueError, r"has no items slice\(3, 3, None\) at axis 1"),
        (lambda x: x[..., 0, 0, 0], ValueError, "has no 3 axes"),
        (lambda x: x["a"], TypeError, r"x\['a'\]: expected whole numbers, slices of them, or `...` once"),
        (lambda x: x[..., ...], TypeError, "expected whole numbers"),
        (lambda x: list(x), TypeError, "no numbers yet"),
        (lambda x: paddle.split(x, 2), ValueError, "can't be cut into 2 along axis 0"),
        (lambda x: paddle.split(x, 0, 1), ValueError, "can't be cut into 0"),
        (lambda x: paddle.split(x, [-1, 4], 1), ValueError, r"can't be cut into \[-1, 4\]"),
        (lambda x: paddle.transpose(x, [1, 0]), ValueError, r"can't have its axes in the order \[1, 0\]"),
        (lambda x: paddle.clip(x, 2, 1), ValueError, "min=2 must be at most max=1"),
        (lambda x: paddle.pow(x, 0.3), ValueError, "pow: y=0.3, expected a whole number from 1 to 64"),
        (lambda x: paddle.stack([x, x]), ValueError, "can't have the shape"),
        (lambda x: paddle.clip(x, x), TypeError, "no numbers yet"),
        (lambda x: paddle.maximum(x, 1.0), TypeError, "input 1.0 is not a variable"),
        (lambda x: paddle.full([-1, 4], 1), ValueError, r"shape \[-1, 4\], expected whole numbers from 1"),
        (lambda x: paddle.full([2], x), TypeError, "no numbers yet"),
        (lambda x: paddle.zeros([2], "float64"), ValueError, "expected float32 or int64"),
        (lambda x: nn.BCEWithLogitsLoss(pos_weight=x)(x, x), ValueError, "pos_weight is not in this runtime"),
        (
            lambda x: nn.BCELoss(reduction=ALL)(x, x),
            ValueError,
            "reduction='all', expected mean",
        ),
        (
            lambda x: nn.CrossEntropyLoss(soft_label=True)(x, x),
            ValueError,
            "soft_label is not in this",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_named(
    x: static.Variable, use: Callable[[static.Variable], object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        use(x)
