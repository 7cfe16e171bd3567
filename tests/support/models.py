"""Small networks and data for tests of the trainer."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import pslaunch.runtime as paddle
from pslaunch.runtime.layer import Layer
from support import joined

WORDS = 50


def make_word(name: str = "w", size: int = 10) -> Layer:
    return paddle.layer.data(name=name, type=paddle.data_type.integer_value(size))


def make_vector(name: str = "x", size: int = 4) -> Layer:
    return paddle.layer.data(name=name, type=paddle.data_type.dense_vector(size))


def ngram_cost(
    *,
    words: int = WORDS,
    emb: int = 8,
    hidden: int = 16,
    sparse: bool = False,
    drop_rate: float = 0.0,
    make_cost: Callable[[Layer, Layer], Layer] | None = None,
) -> Layer:
    """The word2vec network in small: four words with one table, hidden layer, softmax, the fifth word.

    make_cost: makes the cost of the hidden layer and the fifth word, instead of a softmax.
    """
    attr = paddle.attr.Param(name="_proj", initial_std=0.1, learning_rate=1, l2_rate=0, sparse_update=sparse)
    data = [make_word(f"w{i}", words) for i in range(5)]
    context = [paddle.layer.embedding(input=one, size=emb, param_attr=attr) for one in data[:4]]
    hidden_layer = paddle.layer.fc(
        input=paddle.layer.concat(input=context),
        size=hidden,
        name="hidden",
        act=paddle.activation.Sigmoid(),
        layer_attr=paddle.attr.Extra(drop_rate=drop_rate),
        bias_attr=paddle.attr.Param(learning_rate=2),
    )
    if make_cost is not None:
        return make_cost(hidden_layer, data[4])
    predict = paddle.layer.fc(input=hidden_layer, size=words, name="predict", act=paddle.activation.Softmax())
    return paddle.layer.classification_cost(input=predict, label=data[4])


def ngrams(count: int, *, words: int = WORDS, seed: int = 0) -> Callable[[], Iterator[tuple[int, ...]]]:
    """A reader of 5-grams in which the last word follows from the first four."""
    rng = np.random.default_rng(seed)
    first = rng.integers(0, words, (count, 4))
    last = (first.sum(axis=1) // 4)[:, None]
    rows = [tuple(row) for row in np.concatenate([first, last], axis=1).tolist()]
    return lambda: iter(rows)


def digest(parameters: paddle.parameters.Parameters) -> str:
    """sha256 of the tar file of parameters."""
    file = io.BytesIO()
    parameters.to_tar(file)
    return hashlib.sha256(file.getvalue()).hexdigest()


def hash_set(folder: Path) -> str:
    """Return a digest of all objects of a set, with their state and steps, whatever parts they are in."""
    digest = hashlib.sha256()
    for name, saved in sorted(joined.load(folder).items()):
        digest.update(f"{name} {saved.steps} {saved.method}".encode())
        for array in (saved.keys, saved.values, saved.state):
            digest.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
