"""Readers by their v2 names: a reader is a function that returns an iterator over samples, from the start."""

from __future__ import annotations

import functools
import itertools
import queue
import random
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from ..process import settings
from . import creator

__all__ = [
    "ComposeNotAligned", "batch", "buffered", "cache", "chain", "compose", "creator", "firstn", "map_readers",
    "shuffle", "xmap_readers",
]  # fmt: skip

Reader = Callable[[], Iterable[Any]]
State = dict[str, Any]  # what JSON can hold
_MISSING = object()
_shuffles: list[list[int]] = []  # number of calls of each reader of shuffle(), in the order of their creation


class ComposeNotAligned(ValueError):
    """Readers given to `compose` have different lengths."""


def batch(reader: Reader, batch_size: int, drop_last: bool = False) -> Callable[[], Iterator[list[Any]]]:
    """Return a reader of lists of `batch_size` samples; the last may be shorter, or dropped."""
    if batch_size < 1:
        raise ValueError(f"batch: batch_size={batch_size} is below 1")

    def read_batches() -> Iterator[list[Any]]:
        source = iter(reader())
        while part := list(itertools.islice(source, batch_size)):
            if len(part) == batch_size or not drop_last:
                yield part

    return read_batches


def shuffle(reader: Reader, buf_size: int) -> Callable[[], Iterator[Any]]:
    """Return a reader that shuffles samples within stretches of `buf_size`.

    The order depends on the seed of `init()`, the trainer and the number of calls of this reader.
    """
    calls = [0]
    _shuffles.append(calls)

    def read_shuffled() -> Iterator[Any]:
        now = settings.get_settings()
        order = random.Random(f"{now.seed}/{now.trainer_id}/{calls[0]}")
        calls[0] += 1
        for stretch in batch(reader, buf_size)():
            order.shuffle(stretch)
            yield from stretch

    return read_shuffled


def get_random_state() -> State:
    """Return the state of all that a program draws from `random`, numpy.random and readers of `shuffle`."""
    version, numbers, gauss = random.getstate()
    kind, keys, *rest = np.random.get_state()
    return {
        "random": [version, list(numbers), gauss],
        "numpy": [kind, np.asarray(keys).tolist(), *rest],
        "shuffles": [calls[0] for calls in _shuffles],
    }


def set_random_state(state: State) -> None:
    version, numbers, gauss = state["random"]
    random.setstate((version, tuple(numbers), gauss))
    np.random.set_state(tuple(state["numpy"]))
    for calls, count in zip(_shuffles, state["shuffles"], strict=False):  # others are made later, and new
        calls[0] = count


def map_readers(func: Callable[..., Any], *readers: Reader) -> Callable[[], Iterator[Any]]:
    """Return a reader of `func` of one sample per reader, until the shortest ends."""
    return lambda: map(func, *(reader() for reader in readers))


def chain(*readers: Reader) -> Callable[[], Iterator[Any]]:
    """Return a reader of all samples of the first reader, then of the second, and so on."""
    return lambda: itertools.chain.from_iterable(reader() for reader in readers)


def compose(*readers: Reader, check_alignment: bool = True) -> Callable[[], Iterator[tuple[Any, ...]]]:
    """Return a reader of tuples of each reader's next sample; items that are tuples are joined.

    Raises ComposeNotAligned if the readers have different lengths, unless `check_alignment` is False.
    """

    def read_composed() -> Iterator[tuple[Any, ...]]:
        for items in itertools.zip_longest(*(reader() for reader in readers), fillvalue=_MISSING):
            if any(item is _MISSING for item in items):
                if check_alignment:
                    raise ComposeNotAligned("compose: the readers have different lengths")
                return
            yield tuple(part for item in items for part in (item if isinstance(item, tuple) else (item,)))

    return read_composed


def firstn(reader: Reader, n: int) -> Callable[[], Iterator[Any]]:
    """Return a reader of the first `n` samples."""
    return lambda: itertools.islice(reader(), n)


def cache(reader: Reader) -> Callable[[], Iterator[Any]]:
    """Return a reader that keeps all samples in memory: `reader` is read once, on first use."""
    read = functools.cache(lambda: list(reader()))
    return lambda: iter(read())


def buffered(
    reader: Reader, size: int, end: Callable[[], object] = lambda: None
) -> Callable[[], Generator[Any, None, None]]:
    """Return a reader whose thread reads up to `size` samples ahead. Errors of `reader` are raised here.

    `end` is called at the end of reading, also an early one, so that a waiting `reader` returns.
    """

    def read_ahead() -> Generator[Any, None, None]:
        items = queue.Queue[tuple[Any, BaseException | None]]()
        room, stop = threading.Semaphore(max(size, 1)), threading.Event()
        arguments = reader, items, room, stop
        thread = threading.Thread(target=_fill, args=arguments, name="buffered", daemon=True)
        thread.start()
        try:
            while True:
                item, error = items.get()
                room.release()
                if error is not None:
                    raise error
                if item is _MISSING:
                    return
                yield item
        finally:  # also if the caller stops early: the thread must not wait for ever
            stop.set()
            room.release()
            end()
            thread.join()

    return read_ahead


def _fill(reader: Reader, items: queue.Queue[Any], room: threading.Semaphore, stop: threading.Event) -> None:
    error: BaseException | None = None
    try:
        for item in reader():
            room.acquire()
            if stop.is_set():
                return
            items.put((item, None))
    except BaseException as e:  # sys.exit() too: passed to the reading thread
        error = e
    items.put((_MISSING, error))


def xmap_readers(
    mapper: Callable[[Any], Any], reader: Reader, process_num: int, buffer_size: int, order: bool = False
) -> Callable[[], Iterator[Any]]:
    """Return a reader of `mapper` of each sample, by `process_num` threads, at most `buffer_size` ahead.

    The order is always the reader's, whatever `order` says: the same data, the same bits.
    """

    def read_mapped() -> Iterator[Any]:
        source = iter(reader())
        with ThreadPoolExecutor(process_num, "xmap") as pool:
            waiting: list[Future[Any]] = [
                pool.submit(mapper, item) for item in itertools.islice(source, max(buffer_size, process_num))
            ]
            while waiting:
                result = waiting.pop(0).result()
                waiting += [pool.submit(mapper, item) for item in itertools.islice(source, 1)]
                yield result

    return read_mapped
