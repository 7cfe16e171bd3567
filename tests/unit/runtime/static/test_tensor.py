"""Functions of tensors: parts of variables, numbers at the limits, and errors that name the variable."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pslaunch.runtime as paddle
from pslaunch.runtime.engine.arrays import Sequences
from pslaunch.runtime.engine.learner import Learner
from pslaunch.runtime.engine.ops import Draw
from pslaunch.runtime.paddle2 import nn, static
from pslaunch.runtime.paddle2.nn import functional as F  # as in PaddlePaddle's pages
from support.static import get_parameters, run_startup

ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)
SUMS = (ROWS + 1) * 2 + ROWS**2 - ROWS / 2
ALL: Any = "all"


def compute(value: Any, rows: Any = ROWS) -> Any:
    return run_startup().run(feed={"x": np.asarray(rows, np.float32)}, fetch_list=[value])[0]


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
    executor = run_startup()
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
        (
            lambda x: paddle.pow(x, "2"),
            TypeError,
            "expected variables of a static program, or one and a number",
        ),
        (lambda x: x / 0, ZeroDivisionError, "division by zero"),
        (lambda x: x + "a", TypeError, "add: .* and 'a': expected variables"),
        (lambda x: F.normalize(x, 3), ValueError, r"normalize: p=3.0 is not in this runtime"),
        (lambda x: F.normalize(x, q=3), TypeError, "normalize: got an unexpected keyword argument 'q'"),
        (lambda x: paddle.reshape(x, [0, 0, 0]), ValueError, "has fewer axes than the shape"),
        (lambda x: static.nn.fc(paddle.unsqueeze(x, 2), -1), ValueError, "only sizes of data may be free"),
        (lambda x: paddle.stack([x, x]), ValueError, "can't have the shape"),
        (lambda x: paddle.clip(x, x), TypeError, "no numbers yet"),
        (lambda x: paddle.maximum(x, 1.0), TypeError, "input 1.0 is not a variable"),
        (lambda x: paddle.full([-1, 4], 1), ValueError, r"shape \[-1, 4\], expected whole numbers from 1"),
        (lambda x: paddle.full([2], x), TypeError, "no numbers yet"),
        (lambda x: paddle.zeros([2], "float64"), ValueError, "expected float32 or int64"),
        (lambda x: paddle.gather(x, paddle.full([1], 0, "int64")), ValueError, "has no places .* at axis 0"),
        (lambda x: paddle.topk(x, 5), ValueError, "k=5: input x .* has not so many items at axis 1"),
        (lambda x: paddle.argmax(x, 0), ValueError, "axis=0: input x .* has the batch there"),
        (lambda x: paddle.tile(x, [2, 1]), ValueError, r"can't be repeated \[2, 1\] times"),
        (
            lambda x: paddle.expand(x, [-1, 8]),
            ValueError,
            r"expand: x \[-1, 4\] can't have the shape \[-1, 8\]",
        ),
        (lambda x: paddle.where(x > 0, x, "a"), TypeError, "'a' is neither a variable"),
        (
            lambda x: F.cross_entropy(x, x, x, soft_label=True),
            ValueError,
            "weight and ignore_index are of labels",
        ),
        (
            lambda x: nn.BCELoss(reduction=ALL)(x, x),
            ValueError,
            "reduction='all', expected mean",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_named(
    x: static.Variable, use: Callable[[static.Variable], object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        use(x)


def test_slots_of_one_id_go_beside_other_data(x: static.Variable) -> None:
    word = static.data("word", [None, 1], "int64", lod_level=1)
    row = static.nn.embedding(word, [6, 2], is_sparse=True)
    joined = paddle.concat([paddle.reshape(row, [-1, 2]), static.nn.sequence_pool(row, "sum")[:, 0], x], 1)
    assert [one.lod_level for one in (word, row, joined)] == [1, 1, 0]
    run_startup()
    values = get_parameters()
    learner, ids = Learner(static.default_main_program().graph, values), np.array([[3], [0], [5]])
    feeds: dict[str, Any] = {"word": Sequences(ids, np.arange(4)), "x": ROWS}
    (found,) = learner.compute(learner.prepare(feeds, [joined])).values
    rows = values[values.keys()[0]][ids[:, 0]]
    np.testing.assert_array_equal(found, np.hstack([rows, rows, ROWS]))
    feeds["word"] = Sequences(ids, np.array([0, 1, 3, 3]))
    with pytest.raises(ValueError, match=r"single_\d+.tmp_0: sample 1 of word has 2 items, .* pool it first"):
        learner.compute(learner.prepare(feeds, [joined]))


@pytest.mark.parametrize("ends", [(0, 2, 2, 3), (0, 2, 4, 5)])
def test_slots_of_one_id_that_only_a_concat_reads_are_checked(ends: tuple[int, ...]) -> None:
    ids = static.data("a", [None, 1], "int64"), static.data("b", [None, 1], "int64", lod_level=1)
    rows = [paddle.reshape(static.nn.embedding(one, [6, 2], is_sparse=True), [-1, 2]) for one in ids]
    joined = paddle.concat(rows, 1)
    run_startup()
    learner = Learner(static.default_main_program().graph, get_parameters())
    feeds: dict[str, Any] = {
        "a": np.ones((3, 1), np.int64),
        "b": Sequences(np.ones((ends[-1], 1), np.int64), np.array(ends)),
    }
    with pytest.raises(ValueError, match=r"sample 0 of b has 2 items, .* pool it first"):
        learner.compute(learner.prepare(feeds, [joined]))


@pytest.mark.parametrize("ends", [(0, 1, 5), (0, 2, 3)])  # the second has as many items
def test_joined_sequences_of_other_lengths_are_refused(ends: tuple[int, ...]) -> None:
    ids = [static.data(name, [None, 1], "int64", lod_level=1) for name in "ab"]
    rows = [paddle.reshape(static.nn.embedding(one, [6, 2], is_sparse=True), [-1, 2]) for one in ids]
    joined = paddle.concat(rows, 1)
    run_startup()
    learner = Learner(static.default_main_program().graph, get_parameters())
    lengths = {"a": (0, 1, 3), "b": ends}
    feeds = {n: Sequences(np.ones((own[-1], 1), np.int64), np.array(own)) for n, own in lengths.items()}
    with pytest.raises(ValueError, match=rf"{joined.name}: sample \d of b has \d items, of a \d, but"):
        learner.compute(learner.prepare(feeds, [joined]))


def test_an_index_over_all_items_of_a_batch_needs_no_equal_lengths() -> None:
    data = [
        static.data(name, [None, 1], kind, lod_level=1) for name, kind in (("r", "float32"), ("i", "int64"))
    ]
    found = paddle.gather(*data)
    run_startup()
    learner = Learner(static.default_main_program().graph, get_parameters())
    feeds = {
        "r": Sequences(np.arange(3, dtype=np.float32)[:, None], np.array([0, 2, 3])),
        "i": Sequences(np.array([[2], [0]]), np.array([0, 1, 2])),
    }
    assert learner.compute(learner.prepare(feeds, [found])).values[0].ravel().tolist() == [2, 0]


def test_inputs_with_other_numbers_of_axes_are_not_joined(x: static.Variable) -> None:
    with pytest.raises(ValueError, match=r"concat.*can't be joined at axis 1"):
        paddle.concat([x, static.data("y", [None])], axis=1)


def test_gradients_of_parameters_that_are_added_are_arrays_of_their_own(x: static.Variable) -> None:
    """They may be on their way at different times."""
    a, b = (paddle.create_parameter([4, 2], "float32", attr=name) for name in "ab")
    loss = paddle.sum(paddle.matmul(x, a + b))
    run_startup()
    learner = Learner(static.default_main_program().graph, parameters := get_parameters())
    batch = learner.prepare({"x": ROWS}, [], loss)
    values = {name: parameters.get_array(name) for name in batch.plan.dense}
    found = batch.plan.compute(batch, values, {}, Draw(seed=0, trainer=0, step=0), {}).dense
    np.testing.assert_array_equal(found["a"], found["b"])
    assert not np.shares_memory(found["a"], found["b"])


def test_sizes_may_be_free() -> None:
    """Attention over lists that each run makes equally long, as in DIN."""
    x, mask = static.data("x", [None, None, 4]), static.data("mask", [None, None])
    scores = static.nn.fc(x, 1, num_flatten_dims=2) + paddle.unsqueeze(mask, -1)
    weight = F.softmax(paddle.transpose(scores, [0, 2, 1]))
    pooled = paddle.reshape(paddle.matmul(weight, x), [0, 4])
    halves = paddle.reshape(x, [0, 0, 2, -1])
    like = paddle.full([paddle.shape(x)[0], paddle.shape(mask)[1], 2], 1.5) * x[:, :, :2]
    assert (pooled.shape, halves.shape, like.shape) == ((-1, 4), (-1, -1, 2, 2), (-1, -1, 2))
    paddle.optimizer.SGD(learning_rate=0.0).minimize(paddle.mean(pooled * pooled) + paddle.mean(like))
    executor = run_startup()
    parameters = get_parameters()
    column = parameters[parameters.keys()[0]]
    for longest in (3, 1, 5):
        values = np.random.default_rng(longest).standard_normal((2, longest, 4)).astype(np.float32)
        hidden = np.where(np.arange(longest) < [[longest], [1]], 0, -1e9).astype(np.float32)
        feed = {"x": values, "mask": hidden}
        found = executor.run(feed=feed, fetch_list=[pooled, halves, like, paddle.shape(mask)])
        powers = np.exp((values @ column)[..., 0] + hidden)
        expected = np.einsum("bt,btd->bd", powers / powers.sum(1, keepdims=True), values)
        np.testing.assert_allclose(found[0], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(found[1], values.reshape(2, longest, 2, 2))
        np.testing.assert_array_equal(found[2], values[..., :2] * 1.5)
        assert found[3].tolist() == [2, longest]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (lambda x: (2.0 - x) * x / (x + 4) - 1.5, (2 - ROWS) * ROWS / (ROWS + 4) - 1.5),
        (lambda x: paddle.add_n([paddle.scale(x, 2.0, 1.0, False), paddle.square(x), -x / 2]), SUMS),
        (lambda x: x / paddle.sum(x * x, 1, keepdim=True), ROWS / (ROWS**2).sum(1, keepdims=True)),
        (lambda x: paddle.flatten(x[:, None], 1), ROWS),
        (lambda x: x**2.5, ROWS**2.5),
        (lambda x: x**3, ROWS**3),
        (lambda x: 2**x, 2**ROWS),
        (lambda x: (x + 1) ** (x * 0.1), (ROWS + 1) ** (ROWS * 0.1)),
        (lambda x: 1 / (x + 1), 1 / (ROWS + 1)),
        (lambda x: x > 4, ROWS > 4),
        (lambda x: x <= 4.5, ROWS <= 4.5),
        (lambda x: paddle.equal(paddle.cast(x, "int64"), 7), ROWS == 7),
        (lambda x: paddle.slice(x, [1], [-3], [9]), ROWS[:, -3:9]),
        (lambda x: x[:, None, ..., 1], ROWS[:, None, 1]),
        (lambda x: paddle.squeeze(paddle.unsqueeze(x, [1, 3]), 3), ROWS[:, None]),
        (lambda x: paddle.ones_like(x), np.ones((3, 4))),
        (lambda x: paddle.reshape(x, [paddle.shape(x)[0], 2, 2]), ROWS.reshape(3, 2, 2)),
        (lambda x: F.normalize(x), ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)),
        (lambda x: F.normalize(x * 0.0), ROWS * 0),
        (lambda x: F.cosine_similarity(x, x * x), np.array([0.9719086, 0.9848689, 0.9937928])),
        (lambda x: paddle.where(x > 3.0, x, 0), np.where(ROWS > 3, ROWS, 0)),
        (lambda x: paddle.gather(x, paddle.full([2], 3, "int64"), axis=1), ROWS[:, [3, 3]]),
        (lambda x: paddle.topk(-x, 2)[0], -ROWS[:, :2]),
        (lambda x: paddle.topk(x, 1, largest=False)[1], np.zeros((3, 1))),
        (lambda x: paddle.argmax(x, axis=-1), np.full(3, 3)),
        (lambda x: paddle.argmin(paddle.full([2, 2], 1.0)), 0),
        (lambda x: paddle.argsort(x, descending=True), np.tile([3, 2, 1, 0], (3, 1))),
        (lambda x: paddle.cumsum(paddle.full([2, 2], 1.0)), [1, 2, 3, 4]),
        (lambda x: paddle.tile(x, [2]), np.tile(ROWS, 2)),
        (lambda x: paddle.expand(x[:, None], [-1, 2, 4]), np.repeat(ROWS[:, None], 2, 1)),
        (lambda x: paddle.expand_as(x[:, 1:2], x), np.repeat(ROWS[:, 1:2], 4, 1)),
        (lambda x: paddle.logical_not(x), ROWS == 0),
        (lambda x: F.one_hot(paddle.cast(x[:, 1] / 4, "int64"), 3), np.eye(3)),
        (lambda x: F.softmax(x[:, None], axis=1), np.ones((3, 1, 4))),
    ],
)
def test_values_are_those_of_numpy(
    x: static.Variable, value: Callable[[static.Variable], Any], expected: Any
) -> None:
    np.testing.assert_allclose(compute(value(x)), expected, rtol=1e-4)


def test_running_statistics_follow_the_batches_whatever_the_optimizer(x: static.Variable) -> None:
    out = static.nn.batch_norm(x, momentum=0.75, moving_mean_name="mean", epsilon=0.0)
    scheduler = paddle.optimizer.lr.StepDecay(learning_rate=0.5, step_size=1)
    clip = nn.ClipGradByGlobalNorm(1e-6)
    optimizer = paddle.optimizer.AdamW(learning_rate=scheduler, weight_decay=0.5, grad_clip=clip)
    optimizer.minimize(paddle.mean(out * out))
    executor, program = run_startup(), static.default_main_program()
    values = get_parameters()
    mean_name, variance_name = values.keys()[2:]
    assert mean_name == "mean"
    mean, variance = np.zeros(4), np.ones(4)
    for step in range(3):
        rows = ROWS * (step + 1) + step
        executor.run(feed={"x": rows})
        scheduler.step()
        mean, variance = 0.75 * mean + 0.25 * rows.mean(0), 0.75 * variance + 0.25 * rows.var(0)
    np.testing.assert_allclose(values[mean_name][0], mean, rtol=1e-6)
    np.testing.assert_allclose(values[variance_name][0], variance, rtol=1e-6)
    (found,) = executor.run(program.clone(for_test=True), feed={"x": ROWS}, fetch_list=[out])
    scale, shift = (values[name] for name in values.keys()[:2])
    np.testing.assert_allclose(found, (ROWS - mean) / np.sqrt(variance) * scale + shift, rtol=1e-5)


def differentiate(find: Callable[[Any], Any], at: Any) -> Any:
    """Return the slopes of the sum of results."""
    found = np.zeros(at.shape)
    for place in np.ndindex(*at.shape):
        step = np.zeros(at.shape)
        step[place] = 1e-6
        found[place] = (np.sum(find(at + step)) - np.sum(find(at - step))) / 2e-6
    return found


def softmax(x: Any) -> Any:
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


LABELS = np.array([[0.25, 0.75, 0.0], [1.0, 0.0, 0.0], [0.5, 0.25, 0.25], [0.0, 0.0, 1.0]])
CLASSES = LABELS.argmax(1)
SIGNS = np.array([[-2.0, 0.5, 1.5], [3.0, -0.25, 0.75], [-30.0, 25.0, -1.0], [9.0, 8.0, -90.0]])


def give(array: Any) -> Any:
    """Return an array as a constant variable."""
    flat = [
        paddle.full([1], one, "int64" if array.dtype == np.int64 else "float32")
        for one in array.ravel().tolist()
    ]
    return paddle.reshape(paddle.concat(flat), list(array.shape))


def weigh(x: Any) -> Any:
    return -np.log(softmax(x))[range(4), CLASSES]


SHARES = np.array([0.5, 2.0, 1.0])
KEPT = CLASSES != 2


@pytest.mark.parametrize(
    ("value", "oracle"),
    [
        (lambda x: F.leaky_relu(x, 0.1), lambda x: np.where(x > 0, x, 0.1 * x)),
        (F.elu, lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0)))),
        (F.gelu, lambda x: x * (1 + np.vectorize(math.erf)(x / 2**0.5)) / 2),
        (
            lambda x: F.gelu(x, approximate=True),
            lambda x: x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2,
        ),
        (lambda x: F.prelu(x, paddle.full([1], 0.25)), lambda x: np.where(x > 0, x, 0.25 * x)),
        (F.relu6, lambda x: np.clip(x, 0, 6)),
        (F.softplus, lambda x: np.logaddexp(0, x)),
        (lambda x: F.softplus(x, 2.0, 5.0), lambda x: np.where(x > 2.5, x, np.logaddexp(0, 2 * x) / 2)),
        (F.log_sigmoid, lambda x: -np.logaddexp(0, -x)),
        (F.swish, lambda x: x / (1 + np.exp(-x))),
        (F.silu, lambda x: x / (1 + np.exp(-x))),
        (F.mish, lambda x: x * np.tanh(np.logaddexp(0, x))),
        (F.log_softmax, lambda x: np.log(softmax(x))),
        (lambda x: F.softmax(x, axis=0 * 1 + 1), softmax),
        (lambda x: F.smooth_l1_loss(x, give(LABELS), "sum"), lambda x: _find_huber(x - LABELS, 1.0)),
        (lambda x: F.smooth_l1_loss(x, give(LABELS), "sum", 4.0), lambda x: _find_huber(x - LABELS, 4.0)),
        (
            lambda x: F.kl_div(x, give(LABELS), "batchmean") * 4.0,
            lambda x: LABELS * (np.log(np.maximum(LABELS, 1e-38)) - x),
        ),
        (lambda x: F.l1_loss(x, give(LABELS), "none"), lambda x: np.abs(x - LABELS)),
        (
            lambda x: F.cross_entropy(x, give(LABELS), soft_label=True, reduction="sum"),
            lambda x: -LABELS * np.log(softmax(x)),
        ),
        (
            lambda x: F.cross_entropy(x, give(CLASSES), label_smoothing=0.3, reduction="sum"),
            lambda x: -(np.eye(3)[CLASSES] * 0.7 + 0.1) * np.log(softmax(x)),
        ),
        (
            lambda x: F.cross_entropy(x, give(CLASSES), ignore_index=2),
            lambda x: (weigh(x) * KEPT) / KEPT.sum(),
        ),
        (
            lambda x: F.cross_entropy(x, give(CLASSES[:, None]), give(SHARES)),
            lambda x: weigh(x) * SHARES[CLASSES] / SHARES[CLASSES].sum(),
        ),
        (
            lambda x: F.binary_cross_entropy_with_logits(
                x, give(LABELS), give(SHARES), "sum", pos_weight=paddle.full([1], 3.0)
            ),
            lambda x: (np.logaddexp(0, x) - x * LABELS) * (1 + 2 * LABELS) * SHARES,
        ),
    ],
)
def test_functions_and_their_gradients_are_those_of_numpy(
    value: Callable[[Any], Any], oracle: Callable[[Any], Any]
) -> None:
    start = paddle.ParamAttr(name="start", initializer=nn.initializer.Assign(SIGNS))
    result = value(paddle.create_parameter([4, 3], "float32", attr=start))
    paddle.optimizer.SGD(learning_rate=1.0).minimize(paddle.sum(result))
    executor = run_startup()
    (found,) = executor.run(fetch_list=[result])
    np.testing.assert_allclose(np.sum(found), np.sum(oracle(SIGNS)), rtol=1e-5, atol=1e-5)
    parameters = get_parameters()
    np.testing.assert_allclose(
        SIGNS - parameters["start"], differentiate(oracle, SIGNS), rtol=1e-4, atol=2e-5
    )


def _find_huber(d: Any, delta: float) -> Any:
    return np.where(np.abs(d) < delta, d * d / 2, delta * (np.abs(d) - delta / 2))


def test_costs_without_any_label_are_zero(x: static.Variable) -> None:
    assert compute(F.cross_entropy(x, paddle.cast(x[:, :1] * 0.0 - 1, "int64"), ignore_index=-1)) == 0


def test_convolutions_have_windows_of_their_input(x: static.Variable) -> None:
    hidden = nn.PReLU(2)(nn.Conv1D(1, 2, 3, padding=1, bias_attr=False)(x[:, None]))
    paddle.optimizer.SGD(learning_rate=0.01).minimize(paddle.mean(paddle.max(hidden, axis=-1)))
    assert hidden.shape == (-1, 2, 4)
    executor = run_startup()
    executor.run(feed={"x": ROWS})
    values = get_parameters()
    (weight, slopes), padded = values.keys(), np.pad(ROWS, [(0, 0), (1, 1)])
    weights = values[weight]
    (found,) = executor.run(static.default_main_program().clone(for_test=True), {"x": ROWS}, [hidden])
    sums = np.stack([padded[:, i : i + 3] @ weights.T for i in range(4)], axis=-1)
    np.testing.assert_allclose(found, np.where(sums > 0, sums, sums * values[slopes].T), rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "parts", "total"), [(nn.LSTM, 4, -7.4677815), (nn.GRU, 3, -2.464512)], ids=["lstm", "gru"]
)
def test_states_of_cells_are_those_of_paddlepaddle(make: Any, parts: int, total: float) -> None:
    """Sums recorded with PaddlePaddle 2.6.2."""

    def draw(*shape: int) -> paddle.ParamAttr:
        values = np.random.default_rng(len(shape) + shape[0]).standard_normal(shape)
        return paddle.ParamAttr(initializer=nn.initializer.Assign(values.astype(np.float32)))

    rows = np.random.default_rng(1).standard_normal((2, 5, 3)).astype(np.float32)
    whole = 4 * parts
    layer = make(3, 4, 1, "forward", False, 0.0, draw(whole, 3), draw(whole, 4), draw(whole), draw(whole))
    states, ends = layer(static.data("x", [None, 5, 3]))
    np.testing.assert_allclose(np.sum(compute(states, rows)), total, rtol=1e-6)
    np.testing.assert_array_equal(compute(ends[-1], rows), compute(states, rows)[:, -1])
