"""The word2vec example's network next to the same one in numpy alone: `python bench/ngram.py`.

Four words of 2,073, embedding 32, hidden layer 256 with sigmoid, softmax, AdaGrad with L2; no dropout, made
up words. The numpy program is what one would write by hand for this network and nothing else, each array
kept between steps, one thread of BLAS on both sides.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import pslaunch.runtime as paddle
from exchange import Address, Case, start_pserver
from turns import Table, Turn, make_fresh_folder, parse_turns, start_workers, take_turns

WORDS, EMBEDDING, HIDDEN, CONTEXT = 2073, 32, 256, 4
RATE, L2, EPSILON = 3e-2, 8e-4, 1e-6
STEPS = 40  # of a turn
F32 = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


def make_batches(size: int) -> list[Ids]:
    """Made up 5-grams, [size, 5] each; frequent words are frequent."""
    rng = np.random.default_rng(1)
    return [np.minimum(rng.zipf(1.2, (size, CONTEXT + 1)) - 1, WORDS - 1) for _ in range(STEPS)]


# --- numpy alone ---


class Numpy:
    """Forward, backward and AdaGrad, by hand."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)

        def make_array(rows: int, columns: int, std: float) -> F32:
            return rng.normal(0, std, (rows, columns)).astype(np.float32)

        self.table = make_array(WORDS, EMBEDDING, 0.001)
        self.hidden, self.hidden_bias = (
            make_array(CONTEXT * EMBEDDING, HIDDEN, 0.06),
            make_array(1, HIDDEN, 0),
        )
        self.next, self.next_bias = make_array(HIDDEN, WORDS, 0.06), make_array(1, WORDS, 0)
        self.sums = {id(p): np.zeros_like(p) for p in (self.table, *self.dense)}
        self.scratch = {id(p): np.empty_like(p) for p in self.dense}

    @property
    def dense(self) -> tuple[F32, F32, F32, F32]:
        return self.hidden, self.hidden_bias, self.next, self.next_bias

    def step(self, batch: Ids) -> float:
        """One batch; returns its cost."""
        n = len(batch)
        words, target = batch[:, :CONTEXT], batch[:, CONTEXT]
        embedded = self.table[words].reshape(n, -1)
        out = embedded @ self.hidden
        out += self.hidden_bias
        hidden = 1 / (1 + np.exp(-out))
        scores = hidden @ self.next
        scores += self.next_bias
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=1, keepdims=True)
        rows = np.arange(n)
        cost = float(-np.log(scores[rows, target]).mean())
        scores[rows, target] -= 1
        grad_hidden = scores @ self.next.T
        grad_hidden *= hidden * (1 - hidden)
        grads = (embedded.T @ grad_hidden, grad_hidden.sum(0), hidden.T @ scores, scores.sum(0))
        row_grads = (grad_hidden @ self.hidden.T).reshape(-1, EMBEDDING)
        for value, grad in zip(self.dense, grads, strict=True):
            self.learn(value, grad.reshape(value.shape))
        self.learn_rows(words.ravel(), row_grads)
        return cost

    def learn(self, value: F32, grad: F32) -> None:
        total, scratch = self.sums[id(value)], self.scratch[id(value)]
        total += np.multiply(grad, grad, out=scratch)
        grad += np.multiply(value, L2, out=scratch)
        np.sqrt(np.add(total, EPSILON, out=scratch), out=scratch)
        np.divide(grad, scratch, out=scratch)
        value -= np.multiply(scratch, RATE, out=scratch)

    def learn_rows(self, ids: Ids, grads: F32) -> None:
        """Rows of the same word are added up first."""
        order = np.argsort(ids, kind="stable")
        keys, first = np.unique(ids[order], return_index=True)
        grad = np.add.reduceat(grads[order], first, axis=0)
        total = self.sums[id(self.table)]
        total[keys] += grad * grad
        self.table[keys] -= RATE * grad / np.sqrt(total[keys] + EPSILON)


@contextmanager
def run_by_hand(size: int, _address: Address | None) -> Iterator[Callable[[], None]]:
    network, data = Numpy(), make_batches(size)

    def take_turn() -> None:
        for batch in data:
            network.step(batch)

    yield take_turn


# --- ours ---


def build_cost() -> Any:
    def make_word(name: str) -> Any:
        return paddle.layer.data(name=name, type=paddle.data_type.integer_value(WORDS))

    table = paddle.attr.Param(name="_proj", initial_std=0.001, learning_rate=1, l2_rate=0, sparse_update=True)
    embedded = [
        paddle.layer.embedding(input=make_word(f"w{i}"), size=EMBEDDING, param_attr=table)
        for i in range(CONTEXT)
    ]
    hidden = paddle.layer.fc(
        input=paddle.layer.concat(input=embedded), size=HIDDEN, act=paddle.activation.Sigmoid()
    )
    predicted = paddle.layer.fc(input=hidden, size=WORDS, act=paddle.activation.Softmax())
    return paddle.layer.classification_cost(input=predicted, label=make_word("next"))


@contextmanager
def run_by_runtime(size: int, address: Address | None) -> Iterator[Callable[[], None]]:
    """The v2 API, with a pserver or without."""
    pserver = {"pservers": f"{address[0]}:{address[1]}"} if address else {}
    paddle.init(num_gradient_servers=1, trainer_count=1, **pserver)
    cost = build_cost()
    optimizer = paddle.optimizer.AdaGrad(
        learning_rate=RATE, regularization=paddle.optimizer.L2Regularization(L2)
    )
    parameters = paddle.parameters.create(cost)
    trainer = paddle.trainer.SGD(cost, parameters, optimizer, is_local=address is None)
    data = [[tuple(row) for row in batch.tolist()] for batch in make_batches(size)]
    yield lambda: trainer.train(lambda: iter(data), num_passes=1)


# --- contenders ---

KINDS = {"numpy": run_by_hand, "alone": run_by_runtime, "pserver": run_by_runtime}


@contextmanager
def start_contender(kind: str, size: int, folder: Path) -> Iterator[Turn]:
    """A process of its own; a turn is the seconds of an example."""
    with ExitStack() as stack:
        serving = start_pserver(Case(what="step", size=0)) if kind == "pserver" else None
        address = stack.enter_context(serving) if serving else None
        turn = stack.enter_context(start_workers([partial(KINDS[kind], size, address)], folder))
        yield lambda: turn() / (STEPS * size)


def main() -> None:
    """Print one table."""
    turns = parse_turns(__doc__, 9)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    table = Table("N-gram model, examples a second", beside=f"numpy {np.__version__} alone")
    for size in (32, 512):
        with ExitStack() as stack:
            folder = stack.enter_context(make_fresh_folder())
            names = {kind: stack.enter_context(start_contender(kind, size, folder)) for kind in KINDS}
            times = take_turns(names, turns)
        for kind, name in (("alone", "no pserver"), ("pserver", "1 pserver, 1 trainer")):
            table.add_speeds(f"batch {size}, {name}", times[kind], times["numpy"])


if __name__ == "__main__":
    main()
