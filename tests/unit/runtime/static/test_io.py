"""Loaders of static mode: batches of readers, passes, and errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pslaunch.runtime as paddle
from pslaunch.runtime.paddle2 import static
from pslaunch.runtime.paddle2.io import DataLoader, GeneratorLoader
from support.static import run_startup


def read_samples() -> Iterator[tuple[Any, ...]]:
    for i in range(5):
        yield [i], np.full(2, i / 2, np.float32)


def read_arrays() -> Iterator[tuple[Any, ...]]:
    yield np.arange(4).reshape(4, 1), np.repeat(np.arange(4, dtype=np.float32) / 2, 2).reshape(4, 2)
    yield np.full((1, 1), 4), np.full((1, 2), 2.0, np.float32)


SOURCES: list[Callable[[GeneratorLoader], object]] = [
    lambda loader: loader.set_sample_generator(read_samples, 4, drop_last=False),
    lambda loader: loader.set_sample_list_generator(paddle.batch(read_samples, 4)),
    lambda loader: loader.decorate_sample_list_generator(paddle.batch(read_samples, 4)),
    lambda loader: loader.set_batch_generator(read_arrays),
    lambda loader: loader.set_batch_generator(lambda: ({"a": a, "b": b} for a, b in read_arrays())),
]


def make_loader(*, iterable: bool = False, return_list: bool = False) -> GeneratorLoader:
    variables = [static.data("a", [None, 1], "int64"), static.data("b", [None, 2])]
    return DataLoader.from_generator(variables, 2, iterable=iterable, return_list=return_list)


@pytest.mark.parametrize("source", SOURCES)
def test_passes_give_all_batches_and_end_with_eof(source: Callable[[GeneratorLoader], object]) -> None:
    loader = make_loader()
    source(loader)
    program = static.default_main_program()
    executor = static.Executor()
    for _ in range(2):
        loader.start()
        first = executor.run(program, fetch_list=["a", "b"])
        rest = executor.run(program, fetch_list=["b", "a"])
        with pytest.raises(paddle.core.EOFException):
            executor.run(program, fetch_list=["a"])
        loader.reset()
        assert [*first[0][:, 0], *rest[1][:, 0]] == [0, 1, 2, 3, 4]
        np.testing.assert_array_equal(np.concatenate([first[1], rest[0]])[:, 1], np.arange(5) / 2)


def test_pass_may_end_early() -> None:
    loader = make_loader()
    SOURCES[1](loader)
    loader.start()
    static.Executor().run(fetch_list=["a"])
    loader.reset()
    loader.start()
    (a,) = static.Executor().run(fetch_list=["a"])
    assert a[0] == 0
    loader.reset()


def test_iterable_loader_gives_feeds_or_lists() -> None:
    loader = make_loader(iterable=True)
    SOURCES[1](loader)
    found = [static.Executor().run(feed=feed, fetch_list=["a"])[0] for feed in loader()]
    assert [len(a) for a in found] == [4, 1]
    with static.program_guard(static.Program()):
        lists = make_loader(iterable=True, return_list=True)
    SOURCES[3](lists)
    assert [[array.shape for array in one[0]] for one in lists] == [[(4, 1), (4, 2)], [(1, 1), (1, 2)]]


def test_sequences_come_from_readers_too() -> None:
    words = static.data("words", [None, 1], "int64", lod_level=1)
    table = paddle.ParamAttr(initializer=paddle.nn.initializer.Assign(np.arange(5.0).reshape(5, 1)))
    total = static.nn.sequence_pool(static.nn.embedding(words, [5, 1], param_attr=table), "sum")
    loader = DataLoader.from_generator([words], iterable=False)
    loader.set_sample_list_generator(lambda: [[([1, 4],), ([],), ([3],)]])
    executor = run_startup()
    loader.start()
    (found,) = executor.run(fetch_list=[total])
    assert found.reshape(-1).tolist() == [5, 0, 3]
    loader.reset()


def start_without_reader(loader: GeneratorLoader) -> None:
    loader.start()


def run_without_start(loader: GeneratorLoader) -> None:
    SOURCES[0](loader)
    static.Executor().run(fetch_list=["a"])


def read_from(samples: object) -> Callable[[GeneratorLoader], None]:
    def act(loader: GeneratorLoader) -> None:
        loader.set_sample_list_generator(lambda: [samples])
        loader.start()
        static.Executor().run(fetch_list=["a"])

    return act


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (start_without_reader, "it has no reader yet; call set_sample_list_generator() first"),
        (run_without_start, "no started DataLoader: call its start()"),
        (read_from([([1],)]), "data b: a sample has no item 1; a batch is a list of samples"),
        (read_from(5), "the reader gave 5; a batch is a list of samples"),
        (lambda loader: loader.set_batch_generator(5), "5, expected a reader of batches"),
        (lambda _: DataLoader([1]), "io.DataLoader(dataset) is not in this runtime; DataLoader"),
        (lambda _: DataLoader.from_generator([]), "expected variables of static.data"),
        (lambda loader: iter(loader).__next__(), "call start(), then Executor.run() without feed"),
    ],
)  # fmt: skip
def test_wrong_use_is_refused_in_words(act: Callable[[GeneratorLoader], object], text: str) -> None:
    loader = make_loader()
    with pytest.raises((RuntimeError, TypeError, ValueError), match=re.escape(text)):
        act(loader)
    loader.reset()


def test_error_of_a_reader_reaches_the_program() -> None:
    def read() -> Iterator[Any]:
        yield from read_samples()
        raise OSError("no such file")

    loader = make_loader()
    loader.set_sample_generator(read, 4)
    loader.start()
    with pytest.raises(OSError, match="no such file"):
        while True:
            static.Executor().run(fetch_list=["a"])
    loader.reset()
