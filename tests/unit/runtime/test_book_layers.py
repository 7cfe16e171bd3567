"""Layers, costs and evaluators of the book: names, values and gradients are those that numpy finds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import pslaunch.runtime as paddle
from pslaunch.runtime.engine.ops.base import Array
from support.models import make_vector, make_word

pytestmark = pytest.mark.usefixtures("fresh")

LAYER, TYPE, ACT = paddle.layer, paddle.data_type, paddle.activation
RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=(5, 4)), RNG.normal(size=(5, 8))
IDS = [2, 0, 9, 2, 5]
TEXTS = [X[:3], X[:0], X[3:]]
Params = Callable[[str], Array]


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def find_cosines(x: Array, y: Array) -> Array:
    parts = y.reshape(len(y), -1, x.shape[1])
    norms = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(parts, axis=2)
    return np.asarray((parts * x[:, None]).sum(axis=2) / norms)


def convolve(p: Params) -> Array:
    found = []
    for text in TEXTS:
        around = np.vstack([np.zeros((1, 4)), text, np.zeros((1, 4))])
        windows = np.array([around[i : i + 3].reshape(-1) for i in range(len(text))]).reshape(-1, 12)
        rows = np.tanh(windows @ p("_conv_conv_fc.w0") + p("_conv_conv_fc.wbias"))
        found.append(rows.max(axis=0) if len(rows) else np.zeros(3))
    return np.stack(found)


def mix(input: Sequence[Any], **more: Any) -> Any:
    return LAYER.mixed(input=input, name="m", **more)


def add_parts(x: Any, y: Any) -> Any:
    with LAYER.mixed(size=4, name="m", act=ACT.Tanh(), bias_attr=True) as m:
        m += LAYER.full_matrix_projection(x)
        m += LAYER.trans_full_matrix_projection(y)
    return LAYER.addto(m)


def make_text() -> Any:
    return LAYER.data("t", TYPE.dense_vector_sequence(4))


# A layer, its inputs by name, and what numpy finds with the parameters.
LAYERS: list[tuple[str, Callable[[], Any], dict[str, Any], Callable[[Params], Array]]] = [
    ("addto", lambda: LAYER.addto([make_vector("x"), make_vector("z")]), {"x": X, "z": X * X},
     lambda p: X + X * X),
    ("bias", lambda: LAYER.addto(make_vector("x"), ACT.Relu(), "a", paddle.attr.Param(initial_std=1.0)),
     {"x": X}, lambda p: np.maximum(X + p("_a.wbias"), 0)),
    ("dropout", lambda: LAYER.dropout(make_vector("x"), 0.25), {"x": X}, lambda p: X * 0.75),
    ("products", lambda: mix([LAYER.full_matrix_projection(make_vector(*of)) for of in (("x",), ("y", 8))],
                             size=3, act=ACT.Tanh(), bias_attr=True), {"x": X, "y": Y},
     lambda p: np.tanh(X @ p("_m.w0") + Y @ p("_m.w1") + p("_m.wbias"))),
    ("table, x, x times w", lambda: mix([LAYER.table_projection(make_word("w"), size=4),
                                         LAYER.identity_projection(make_vector("x")),
                                         LAYER.dotmul_projection(make_vector("x2"))]),
     {"w": np.array(IDS), "x": X, "x2": X}, lambda p: p("_m.w0")[IDS] + X + X * p("_m.w2")),
    ("transposed", lambda: mix([LAYER.identity_projection(make_vector("x2")),
                                LAYER.trans_full_matrix_projection(make_vector("y", 8))], size=4),
     {"x2": X, "y": Y}, lambda p: X + Y @ p("_m.w1").T),
    ("x times a number, items", lambda: mix([LAYER.dotmul_operator(make_vector("x"), make_vector("z"), 0.5),
                                             LAYER.scaling_projection(make_vector("x2"))]),
     {"x": X, "z": Y[:, :4], "x2": X}, lambda p: 0.5 * X * Y[:, :4] + X * p("_m.w1")),
    ("parts by +=", lambda: add_parts(make_vector("x"), make_vector("y", 8)), {"x": X, "y": Y},
     lambda p: np.tanh(X @ p("_m.w0") + Y @ p("_m.w1").T + p("_m.wbias"))),
    ("cos_sim", lambda: LAYER.cos_sim(make_vector("x"), make_vector("z")), {"x": X, "z": Y[:, :4]},
     lambda p: find_cosines(X, Y[:, :4])),
    ("cos_sim of two parts", lambda: LAYER.cos_sim(make_vector("x"), make_vector("y", 8), scale=5, size=2),
     {"x": X, "y": Y}, lambda p: 5 * find_cosines(X, Y)),
    ("convolution", lambda: paddle.networks.sequence_conv_pool(make_text(), 3, 3, name="conv"), {"t": TEXTS},
     convolve),
]  # fmt: skip


@pytest.mark.parametrize(("make", "feed", "find"), [row[1:] for row in LAYERS], ids=[r[0] for r in LAYERS])
def test_layers_have_the_values_of_numpy(
    make: Callable[[], Any], feed: dict[str, Any], find: Callable[[Params], Array]
) -> None:
    out = make()
    parameters = paddle.parameters.create(out)
    for name in parameters.names():
        parameters[name] = RNG.normal(size=parameters.get_shape(name))
    found = paddle.infer(out, parameters, list(zip(*feed.values(), strict=True)), list(feed))
    want = find(lambda name: parameters[name].astype(np.float64))
    np.testing.assert_allclose(found, want, rtol=2e-5, atol=1e-5)


def test_names_and_first_values_are_those_of_v2() -> None:
    conv = paddle.networks.sequence_conv_pool(input=make_text(), context_len=3, hidden_size=8)
    assert conv.name.startswith("__sequence_conv_pooling_")
    weight, bias = paddle.parameters.create(conv).names()
    assert (weight, bias) == (f"_{conv.name}_conv_fc.w0", f"_{conv.name}_conv_fc.wbias")
    x = make_vector("x")
    mixed = LAYER.mixed(size=3, input=LAYER.full_matrix_projection(x))
    assert mixed.name.startswith("__mixed_")
    assert paddle.parameters.create(mixed).names() == [f"_{mixed.name}.w0"]
    for made, kind in (
        (LAYER.addto(x), "addto"),
        (LAYER.cos_sim(x, x), "cos_sim"),
        (LAYER.dropout(x, 0.5), "dropout"),
        (LAYER.rank_cost(make_vector("l", 1), make_vector("r", 1), make_word("y", 2)), "rank_cost"),
        (LAYER.multi_binary_label_cross_entropy_cost(x, x), "multi_binary_label_cross_entropy"),
    ):
        assert made.name.startswith(f"__{kind}_")
        assert paddle.parameters.create(made).names() == []


def make_rank(weight: bool = False) -> Any:
    left = LAYER.fc(make_vector("x"), 1, ACT.Linear(), "s")
    inputs = left, make_vector("right", 1), make_vector("label", 1)
    return LAYER.rank_cost(*inputs, make_vector("w", 1) if weight else None)


def make_binary(label_type: Any) -> Any:
    p = LAYER.fc(make_vector("x"), 4, ACT.Sigmoid(), "s")
    return LAYER.multi_binary_label_cross_entropy_cost(p, LAYER.data("label", label_type))


def make_cosine() -> Any:
    found = LAYER.cos_sim(LAYER.fc(make_vector("x"), 4, name="s"), make_vector("z"), scale=5)
    return LAYER.square_error_cost(found, LAYER.data("label", TYPE.dense_vector(1)))


def make_mixed() -> Any:
    s, fixed = LAYER.fc(make_vector("x"), 4, ACT.Linear(), "s"), {"initial_std": 0, "is_static": True}
    with LAYER.mixed() as m:
        m += LAYER.dotmul_operator(s, make_vector("z"), scale=3)
        m += LAYER.dotmul_operator(s, s)
        m += LAYER.scaling_projection(s, paddle.attr.Param(initial_mean=2, **fixed))
        m += LAYER.trans_full_matrix_projection(s, 4, paddle.attr.Param(initial_mean=0.5, **fixed))
    return LAYER.square_error_cost(m, LAYER.data("label", TYPE.dense_vector(4)))


def cross(p: Array, y: Array) -> Array:
    return np.asarray(-(y * np.log(p) + (1 - y) * np.log(1 - p)).sum(axis=1, keepdims=True))


HALVES, WEIGHTS = np.array([[1.0], [0], [0.5], [1], [0]]), np.array([[1.0], [2], [0], [1], [3]])
PLACES = [[0, 3], [1], [], [2, 0, 1], [3]]
MARKS = np.array([[i in row for i in range(4)] for row in PLACES], float)
COSTS: list[tuple[str, Callable[[], Any], dict[str, Any], Callable[[Array], Array]]] = [
    ("rank", make_rank, {"x": X, "right": Y[:, :1], "label": HALVES},
     lambda s: np.log1p(np.exp(s - Y[:, :1])) - HALVES * (s - Y[:, :1])),
    ("weighted rank", lambda: make_rank(weight=True),
     {"x": X, "right": Y[:, :1], "label": HALVES, "w": WEIGHTS},
     lambda s: WEIGHTS * (np.log1p(np.exp(s - Y[:, :1])) - HALVES * (s - Y[:, :1]))),
    ("binary", lambda: make_binary(TYPE.dense_vector(4)), {"x": X, "label": MARKS},
     lambda s: cross(sigmoid(s), MARKS)),
    ("binary of places", lambda: make_binary(TYPE.sparse_binary_vector(4)), {"x": X, "label": PLACES},
     lambda s: cross(sigmoid(s), MARKS)),
    ("binary of one id", lambda: make_binary(TYPE.integer_value(4)), {"x": X, "label": [0, 3, 1, 1, 2]},
     lambda s: cross(sigmoid(s), np.eye(4)[[0, 3, 1, 1, 2]])),
    ("cosine", make_cosine, {"x": X, "z": Y[:, :4], "label": HALVES},
     lambda s: (5 * find_cosines(np.tanh(s), Y[:, :4]) - HALVES) ** 2),
    ("mixed", make_mixed, {"x": X, "z": Y[:, :4], "label": MARKS},
     lambda s: ((s * (3 * Y[:, :4] + s + 2) + 0.5 * s.sum(axis=1, keepdims=True) - MARKS) ** 2).sum(
         axis=1, keepdims=True)),
    ("cosine with small vectors", make_cosine, {"x": X, "z": Y[:, :4] * 1e-6, "label": HALVES},
     lambda s: (5 * find_cosines(np.tanh(s), Y[:, :4]) - HALVES) ** 2),
]  # fmt: skip


@pytest.mark.parametrize(("make", "feed", "find"), [row[1:] for row in COSTS], ids=[row[0] for row in COSTS])
def test_costs_and_their_gradients_are_those_of_numpy(
    make: Callable[[], Any], feed: dict[str, Any], find: Callable[[Array], Array]
) -> None:
    cost = make()
    parameters = paddle.parameters.create(cost)
    names, samples = list(feed), list(zip(*feed.values(), strict=True))
    first = {name: parameters[name].astype(np.float64) for name in parameters.names()}
    found = paddle.infer(cost, parameters, samples, names)
    np.testing.assert_allclose(found, find(X @ first["_s.w0"] + first["_s.wbias"]), rtol=1e-4, atol=1e-5)
    still = paddle.optimizer.Momentum(momentum=0, learning_rate=1e-2)
    paddle.trainer.SGD(cost, parameters, still).train(lambda: [samples], feeding=names)
    for name, value in first.items():
        slope = np.zeros(value.shape)
        for place in np.ndindex(*value.shape):
            ends = []
            for step in (1e-6, -1e-6):
                moved = {**first, name: value.copy()}
                moved[name][place] += step
                ends.append(find(X @ moved["_s.w0"] + moved["_s.wbias"]).sum())
            slope[place] = (ends[0] - ends[1]) / 2e-6
        np.testing.assert_allclose((value - parameters[name]) / 1e-2, slope, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("scale", [1e15, 1e-4, 3e-5, 1e-5, 1e-7])
def test_cosines_do_not_depend_on_lengths(scale: float) -> None:
    x, y = np.vstack([X, np.ones((1, 4))]), np.vstack([Y, np.ones((1, 8))])
    out = LAYER.cos_sim(make_vector("x"), make_vector("y", 8), size=2)
    samples = list(zip(x * scale, y * scale, strict=True))
    found = paddle.infer(out, paddle.parameters.create(out), samples, ["x", "y"])
    np.testing.assert_allclose(found, find_cosines(x, y), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("z", [0.0, 1e-30, 1.0])
@pytest.mark.parametrize("weight", [0.0, 1e-30, 1.0])
def test_cosines_of_zeros_have_finite_gradients(weight: float, z: float) -> None:
    cost = make_cosine()
    parameters = paddle.parameters.create(cost)
    parameters["_s.w0"] = np.full((4, 4), weight)
    samples = [(np.ones(4), np.full(4, z), [1.0])]
    want = 16.0 if weight == z == 1.0 else 1.0
    np.testing.assert_allclose(paddle.infer(cost, parameters, samples), [[want]], rtol=1e-4)
    optimizer = paddle.optimizer.Momentum(momentum=0, learning_rate=1e-3)
    paddle.trainer.SGD(cost, parameters, optimizer).train(lambda: [samples])
    assert all(np.isfinite(parameters[name]).all() for name in parameters.names())


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x, y: LAYER.mixed(size=3, input=[]), "no projection, expected input="),
        (lambda x, y: LAYER.mixed(size=3).__exit__(None), "no projection, expected input="),
        (lambda x, y: LAYER.fc(LAYER.mixed(), 3), r"\+= belongs in its with statement, and every use behind"),
        (lambda x, y: mix([one := LAYER.identity_projection(x)]).__iadd__(one), r"\+= belongs in its with"),
        (lambda x, y: LAYER.mixed().__iadd__(x), r"layer\.mixed: Layer\(name='x'.*, expected a projection"),
        (lambda x, y: LAYER.mixed(input=[x]), r"layer\.mixed: Layer\(name='x'.*, expected a projection"),
        (lambda x, y: LAYER.mixed(0, LAYER.identity_projection(x)).sise, "no attribute 'sise'$"),
        (LAYER.dotmul_operator, "x and y differ in size"),
        (lambda x, y: paddle.evaluator.auc(x, x, weight=y), "weight y has 8 numbers a sample, expected one"),
        (lambda *of: LAYER.mixed(input=[LAYER.identity_projection(one) for one in of]), r"sizes \[4, 8\]"),
        (lambda x, y: LAYER.mixed(input=LAYER.full_matrix_projection(x)), "expected one"),
        (lambda x, y: LAYER.addto([x, y]), "differ in size"),
        (lambda x, y: LAYER.cos_sim(x, y), r"b y has the size 8, expected 1 \* 4"),
        (lambda x, y: LAYER.context_projection(x, 3, padding_attr=True), "only zeros"),
        (lambda x, y: LAYER.mixed(input=LAYER.context_projection(x, 3)), "is no sequence of vectors"),
        (lambda x, y: LAYER.table_projection(x), "input x is not a data layer of integer_value"),
        (lambda x, y: LAYER.full_matrix_projection(make_word()), "input w is not a vector"),
        (lambda x, y: LAYER.rank_cost(x, y, x), "expected inputs of size 1"),
        (LAYER.multi_binary_label_cross_entropy_cost, r"label y must be dense_vector\(4\)"),
        (lambda x, y: LAYER.fc(x, 3, width=4), r"layer\.fc: got an unexpected keyword argument 'width'"),
        (lambda x, y: LAYER.dropout(x), r"layer\.dropout: missing a required argument: 'dropout_rate'"),
        (lambda x, y: paddle.evaluator.precision_recall(x, y), "input has 4 classes, label 8"),
        (lambda x, y: paddle.evaluator.precision_recall(x, y, 4), "positive_label=4, expected 0 to 3"),
        (lambda x, y: paddle.evaluator.classification_error(x, make_word(), top_k=2), "4 classes, label 10"),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[Any, Any], Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError, AttributeError), match=text):
        call(make_vector("x"), make_vector("y", 8))


def find_area(x: Array, positive: Array, weights: Array) -> float:
    above, below = (list(zip(x[some], weights[some], strict=True)) for some in (positive, ~positive))
    pairs = [(a, b, v * w) for (a, v), (b, w) in itertools.product(above, below)]
    return float(np.average([(a > b) + (a == b) / 2 for a, b, _ in pairs], weights=[w for *_, w in pairs]))


def find_scores(found: Array, labels: Array, of: int, weights: Array) -> tuple[float, float]:
    right = weights[(found == of) & (labels == of)].sum()
    counts = weights[found == of].sum(), weights[labels == of].sum()
    return tuple(float(right / n) if n else 1.0 for n in counts)  # type: ignore[return-value]


@pytest.mark.parametrize("is_weighted", [False, True])
def test_evaluators_show_what_numpy_finds_in_each_event(is_weighted: bool) -> None:
    x, label = make_vector("x", 3), make_word("label", 3)
    weight = make_vector("weight", 1) if is_weighted else None
    scores = LAYER.fc(x, 3, ACT.Softmax(), "s")
    paddle.evaluator.classification_error(scores, label, "second", weight, top_k=2)
    paddle.evaluator.precision_recall(scores, label, None, weight, "all")
    paddle.evaluator.precision_recall(scores, label, positive_label=1, weight=weight)
    cost = LAYER.classification_cost(scores, label)
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(90, 3)), rng.integers(0, 3, 90)
    weights = rng.integers(0, 9, 90) / 4 if is_weighted else np.ones(90)
    samples: list[Any] = list(zip(rows, labels.tolist(), weights[:, None], strict=True))
    samples = samples if is_weighted else [one[:2] for one in samples]
    parameters = paddle.parameters.create(cost)
    still = paddle.optimizer.Momentum(momentum=0, learning_rate=1e-30)
    trainer, events = paddle.trainer.SGD(cost, parameters, still), list[Any]()
    trainer.train(paddle.batch(lambda: iter(samples), 30), event_handler=events.append)

    def check(metrics: dict[str, float], part: slice) -> None:
        p, y = rows[part] @ parameters["_s.w0"] + parameters["_s.wbias"], labels[part]
        own_weights = weights[part]
        found, order = p.argmax(axis=1), np.argsort(-p, axis=1)
        own = next(name.removesuffix(".recall") for name in metrics if name.endswith("__.recall"))
        precision, recall = find_scores(found, y, 1, own_weights)
        means = np.mean([find_scores(found, y, i, own_weights) for i in range(3)], axis=0)
        assert own.startswith("__precision_recall_evaluator_")
        assert metrics == pytest.approx(
            {
                "classification_error_evaluator": np.mean(found != y),
                "second": np.average((order[:, :2] != y[:, None]).all(axis=1), weights=own_weights),
                f"{own}.precision": precision,
                f"{own}.recall": recall,
                f"{own}.F1-score": 2 * precision * recall / (precision + recall),
                "all.macro-average-precision": means[0],
                "all.macro-average-recall": means[1],
                "all.macro-average-F1-score": 2 * means[0] * means[1] / means.sum(),
                "all.micro-average-precision": np.average(found == y, weights=own_weights),
            }
        )

    ends = [one for one in events if isinstance(one, paddle.event.EndIteration)]
    for i, one in enumerate(ends):
        check(one.metrics, slice(30 * i, 30 * i + 30))
    assert len(ends) == 3 and isinstance(events[-1], paddle.event.EndPass)
    check(events[-1].metrics, slice(None))
    check(trainer.test(paddle.batch(lambda: iter(samples), 40)).metrics, slice(None))


@pytest.mark.parametrize("weight", [np.nan, np.inf, -1.0])
def test_a_weight_that_is_no_number_of_samples_does_not_count(weight: float) -> None:
    p, label = LAYER.fc(make_vector("x"), 1, ACT.Sigmoid(), "s"), make_word("label", 2)
    own = make_vector("w", 1)
    for evaluator in (paddle.evaluator.auc, paddle.evaluator.classification_error):
        evaluator(p, label, name=evaluator.__name__, weight=own)
    cost = LAYER.multi_binary_label_cross_entropy_cost(p, label)
    parameters = paddle.parameters.create(cost)
    parameters["_s.w0"] = np.ones((4, 1))
    trainer = paddle.trainer.SGD(cost, parameters, paddle.optimizer.Momentum(momentum=0, learning_rate=1e-30))
    rows = [(np.full(4, x), y, [w]) for x, y, w in ((1, 1, 2.0), (-1, 1, 1.0), (-2, 0, 1.0), (2, 0, weight))]
    if weight < 0:
        with pytest.raises(ValueError, match=r"evaluator\.auc: weight w has -1\.0, expected 0 or more"):
            trainer.test(lambda: [rows])
    else:
        assert trainer.test(lambda: [rows]).metrics == {"auc": 1.0, "classification_error": 0.25}


@pytest.mark.parametrize("label_type", [TYPE.dense_vector(1), TYPE.integer_value(2)])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_area_and_errors_of_one_probability(label_type: Any, is_weighted: bool) -> None:
    label = LAYER.data("label", label_type)
    p = LAYER.fc(make_vector("x"), 1, ACT.Sigmoid(), "s")
    weight = make_vector("w", 1) if is_weighted else None
    paddle.evaluator.auc(name="auc", input=p, label=label, weight=weight)
    paddle.evaluator.classification_error(p, label, name="error", threshold=0.6, weight=weight)
    paddle.evaluator.auc(name="of another label", input=p, label=make_word("other", 2))
    cost = LAYER.multi_binary_label_cross_entropy_cost(p, label)
    rng = np.random.default_rng(1)
    rows, clicks = rng.normal(size=(60, 4)), rng.integers(0, 2, 60)
    is_dense = label_type == TYPE.dense_vector(1)
    w = rng.random(60).astype(np.float32) if is_weighted else np.ones(60)
    pairs = zip(rows, clicks, w, strict=True)
    samples = [(row, [float(y)] if is_dense else int(y), [one]) for row, y, one in pairs]
    feeding = {"x": 0, "label": 1, **({"w": 2} if is_weighted else {})}
    parameters = paddle.parameters.create(cost)
    trainer = paddle.trainer.SGD(cost, parameters, paddle.optimizer.Adam(learning_rate=0.1))
    trainer.train(lambda: [samples], 3, feeding=feeding)
    found = trainer.test(lambda: [samples[:20], samples[20:]], feeding).metrics
    given = sigmoid(rows @ parameters["_s.w0"] + parameters["_s.wbias"])[:, 0]
    assert set(found) == {"auc", "error"}
    assert found["auc"] == pytest.approx(find_area(given, clicks == 1, w), abs=1e-3)
    assert found["error"] == pytest.approx(np.average((given > 0.6) != (clicks == 1), weights=w))
