"""Sequences and sparse vectors by v2's names: types, lookups of each item, and one vector for all items."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pslaunch.runtime as paddle
from pslaunch.runtime.engine.arrays import F32, Sequences
from pslaunch.runtime.engine.parameters import Parameters
from support.models import make_vector, make_word

pytestmark = pytest.mark.usefixtures("fresh")

WORDS, DIM = 20, 3
TEXTS = [[1, 5, 1], [], [7], [2, 2]]


def embed(*, sparse: bool = False) -> paddle.layer.Layer:
    words = paddle.layer.data(name="words", type=paddle.data_type.integer_value_sequence(WORDS))
    table = paddle.attr.Param(name="table", initial_std=1.0, sparse_update=sparse)
    return paddle.layer.embedding(input=words, size=DIM, param_attr=table)


POOLINGS: list[tuple[Callable[[Any], Any], Callable[[F32], F32]]] = [
    (lambda x: paddle.layer.pooling(x), lambda rows: rows.max(axis=0)),
    (lambda x: paddle.layer.pooling(x, paddle.pooling.Max()), lambda rows: rows.max(axis=0)),
    (lambda x: paddle.layer.pooling(x, pooling_type=paddle.pooling.Avg), lambda rows: rows.mean(axis=0)),
    (lambda x: paddle.layer.pooling(x, pooling_type=paddle.pooling.Sum()), lambda rows: rows.sum(axis=0)),
    (paddle.layer.first_seq, lambda rows: rows[0]),
    (paddle.layer.last_seq, lambda rows: rows[-1]),
]


@pytest.mark.parametrize(("pool", "expected"), POOLINGS)
def test_items_of_a_sequence_become_one_vector(
    pool: Callable[[Any], Any], expected: Callable[[F32], F32]
) -> None:
    out = pool(embed())
    parameters = paddle.parameters.create(out)
    found = paddle.infer(out, parameters, [(words,) for words in TEXTS])
    table = parameters["table"]
    want = [expected(table[words]) if words else np.zeros(DIM) for words in TEXTS]
    np.testing.assert_allclose(found, np.stack(want), rtol=1e-6)
    whole = Sequences(np.concatenate(TEXTS).astype(np.int64), np.array([0, 3, 3, 4, 6]))
    np.testing.assert_array_equal(paddle.infer(out, parameters, {"words": whole}), found)


def test_vectors_of_a_sequence_go_through_layers_one_by_one() -> None:
    x = paddle.layer.data(name="x", type=paddle.data_type.dense_vector_sequence(2))
    out = paddle.layer.pooling(paddle.layer.fc(input=x, size=DIM, name="y"), paddle.pooling.Sum())
    parameters = paddle.parameters.create(out)
    given = [[[1.0, 2.0], [0.5, 1.0]], [[3.0, 4.0]]]
    found = paddle.infer(out, parameters, [(one,) for one in given])
    weight, bias = parameters["_y.w0"], parameters["_y.wbias"]
    want = [np.tanh(np.array(one) @ weight + bias).sum(axis=0) for one in given]
    np.testing.assert_allclose(found, np.stack(want), rtol=1e-5)


@pytest.mark.parametrize("sparse", [False, True])
def test_texts_are_classified_by_their_words(sparse: bool) -> None:
    def read() -> Iterator[tuple[list[int], int]]:
        rng = np.random.default_rng(1)
        for _ in range(300):
            label = int(rng.integers(2))
            words = rng.integers(10 * label, 10 * label + 10, rng.integers(1, 6))
            yield words.tolist(), label

    out = paddle.layer.fc(
        input=paddle.layer.pooling(embed(sparse=sparse), paddle.pooling.Avg()),
        size=2,
        act=paddle.activation.Softmax(),
    )
    label = make_word("label", 2)
    cost = paddle.layer.classification_cost(input=out, label=label)
    trainer = paddle.trainer.SGD(
        cost, paddle.parameters.create(cost), paddle.optimizer.AdaGrad(learning_rate=0.1)
    )
    before = trainer.test(paddle.batch(read, 32))
    trainer.train(paddle.batch(read, 32), num_passes=5)
    after = trainer.test(paddle.batch(read, 32))
    assert after.cost < 0.3 * before.cost
    assert after.metrics["classification_error_evaluator"] < 0.05


def test_a_sequence_in_place_of_a_vector_is_refused_with_its_name() -> None:
    x = make_vector("x", 2)
    with pytest.raises(ValueError, match="is a sequence, x is not"):
        paddle.layer.concat([embed(), x])
    with pytest.raises(ValueError, match=r"input x.* is not a sequence"):
        paddle.layer.pooling(x)
    with pytest.raises(TypeError, match=r"pooling_type=3, expected one of pooling, such as pooling\.Sum\(\)"):
        paddle.layer.pooling(embed(), 3)


def train_on_places(kind: Any, *, bias: bool, binary: bool, sparse: bool = False) -> tuple[F32, Parameters]:
    """Train fc on vectors beside a number, as `kind`; return its output and the parameters.

    `binary`: of 0 and 1 alone.
    """
    x = paddle.layer.data(name="x", type=kind(WORDS))
    y = make_vector("y", 1)
    attrs = [paddle.attr.Param(sparse_update=sparse), paddle.attr.Param()]
    out = paddle.layer.fc(input=[x, y], size=2, name="out", param_attr=attrs, bias_attr=bias)
    target = make_vector("target", 2)
    cost = paddle.layer.square_error_cost(input=out, label=target)
    parameters = paddle.parameters.create(cost)

    def give(places: list[int]) -> Any:
        numbers = {place: 1.0 if binary else place / 4 - 1 for place in places}
        if x.type == DENSE:
            return [numbers.get(place, 0.0) for place in range(WORDS)]
        return places if x.numbers is None else list(numbers.items())

    samples = [(give(sorted(set(text))), [float(i)], [i / 4, -0.5]) for i, text in enumerate(TEXTS)]
    optimizer = paddle.optimizer.Momentum(momentum=0, learning_rate=0.1)
    trainer = paddle.trainer.SGD(cost, parameters, optimizer)
    trainer.train(lambda: [samples], num_passes=5)
    found = paddle.infer(out, parameters, [sample[:2] for sample in samples])
    assert isinstance(found, np.ndarray)
    return found, parameters


DENSE = paddle.data_type.dense_vector(WORDS)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "kind", [paddle.data_type.sparse_binary_vector, paddle.data_type.sparse_float_vector]
)
def test_sparse_vectors_give_the_values_of_dense_ones(kind: Any, bias: bool) -> None:
    binary = kind is paddle.data_type.sparse_binary_vector
    want, dense = train_on_places(paddle.data_type.dense_vector, bias=bias, binary=binary)
    for sparse_update in (False, True):
        found, sparse = train_on_places(kind, bias=bias, binary=binary, sparse=sparse_update)
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
        assert set(sparse.names()) == set(dense.names())
        for name in dense.names():
            np.testing.assert_allclose(sparse[name], dense[name], rtol=1e-5, atol=1e-6)


def test_one_sparse_vector_without_bias_is_the_sum_of_its_rows() -> None:
    x = paddle.layer.data(name="x", type=paddle.data_type.sparse_binary_vector(WORDS))
    out = paddle.layer.fc(input=x, size=2, name="out", bias_attr=False, act=paddle.activation.Linear())
    parameters = paddle.parameters.create(out)
    found = paddle.infer(out, parameters, [([1, 5],), ([],)])
    np.testing.assert_allclose(found, [parameters["_out.w0"][[1, 5]].sum(axis=0), [0, 0]], rtol=1e-6)


def test_a_sparse_vector_in_a_wrong_place_is_refused() -> None:
    x = paddle.layer.data(name="x", type=paddle.data_type.sparse_binary_vector(WORDS))
    with pytest.raises(ValueError, match=r"input x is a sparse vector, for layer\.fc alone"):
        paddle.layer.concat([x])
    with pytest.raises(ValueError, match="input x is not a data layer of integer_value"):
        paddle.layer.embedding(x, 3)
    out = paddle.layer.fc(input=x, size=2)
    with pytest.raises(
        ValueError, match=f"data x: sample 0 of the batch has the id {WORDS}, expected .* 0 to 19"
    ):
        paddle.infer(out, paddle.parameters.create(out), [([WORDS],)])


def test_pairs_of_a_sparse_vector_are_checked() -> None:
    x = paddle.layer.data(name="x", type=paddle.data_type.sparse_float_vector(WORDS))
    out = paddle.layer.fc(input=x, size=2, bias_attr=False, act=paddle.activation.Linear())
    parameters = paddle.parameters.create(out)
    for item in ([(1, 0.5), (2,)], [1, 2], 3):
        with pytest.raises(ValueError, match=r"data x: sample 1 .*, expected a (pair of a place|list or)"):
            paddle.infer(out, parameters, [([(1, 1.0)],), (item,)])
    with pytest.raises(
        ValueError, match=f"data x: sample 0 of the batch has the id {WORDS}, expected .* 0 to 19"
    ):
        paddle.infer(out, parameters, [([(WORDS, 1.0)],)])
    with pytest.raises(ValueError, match=r"data x\.numbers: .*, expected a pair of a place and its number"):
        paddle.infer(out, parameters, [([(1, "a")],)])


def test_sparse_vectors_come_as_arrays_too() -> None:
    x = paddle.layer.data(name="x", type=paddle.data_type.sparse_float_vector(WORDS))
    out = paddle.layer.fc(input=x, size=2)
    parameters = paddle.parameters.create(out)
    places, offsets = np.array([3, 7, 3]), np.array([0, 2, 2, 3])
    numbers = np.array([[0.5], [2.0], [-1.0]], np.float32)
    want = paddle.infer(out, parameters, [([(3, 0.5), (7, 2.0)],), ([],), ([(3, -1.0)],)])
    columns = {"x": Sequences(places, offsets), "x.numbers": Sequences(numbers, offsets)}
    assert np.array_equal(paddle.infer(out, parameters, columns), want)
    columns["x.numbers"] = Sequences(numbers, np.array([0, 1, 2, 3]))
    with pytest.raises(ValueError, match=r"data x: x\.numbers has other offsets; each place has a number"):
        paddle.infer(out, parameters, columns)


def test_recurrent_layers_are_of_projected_sequences() -> None:
    text = embed()
    gru, lstm = paddle.networks.simple_gru(text, 4), paddle.networks.simple_lstm(text, 3, reverse=True)
    assert (gru.size, lstm.size, lstm.value.is_sequence) == (4, 3, True)
    parameters = paddle.parameters.create([gru, lstm])
    assert [parameters.get_shape(one.name) for one in (*gru.params, *lstm.params)] == [
        (4, 12), (1, 12), (3, 12), (1, 21),
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"layer g: expected one input of 3 \* size, size=5; it is 3"):
        paddle.layer.grumemory(embed(), 5, "g")
    with pytest.raises(ValueError, match="expected Tanh, the default"):
        paddle.layer.grumemory(embed(), act=paddle.activation.Relu())
