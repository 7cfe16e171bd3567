"""Sequences by v2's names: types, lookups of each item, and one vector for all items."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pslaunch.runtime as paddle
from pslaunch.runtime import settings
from pslaunch.runtime.arrays import F32, Sequences

WORDS, DIM = 20, 3
TEXTS = [[1, 5, 1], [], [7], [2, 2]]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of another test, and log/ in a folder of this one."""
    monkeypatch.setattr(settings, "_current", None)
    monkeypatch.chdir(tmp_path)
    paddle.init()


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
    label = paddle.layer.data(name="label", type=paddle.data_type.integer_value(2))
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
    x = paddle.layer.data(name="x", type=paddle.data_type.dense_vector(2))
    with pytest.raises(ValueError, match="is a sequence, input x is not"):
        paddle.layer.concat([embed(), x])
    with pytest.raises(ValueError, match=r"input x.* is not a sequence"):
        paddle.layer.pooling(x)
    with pytest.raises(TypeError, match=r"pooling_type=3, expected one of pooling, such as pooling\.Sum\(\)"):
        paddle.layer.pooling(embed(), 3)
