"""`DataLoader.from_generator` of static mode: batches of a reader for the variables of a program."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..engine.columns import Feeder, Feeds, take_columns
from ..engine.learner import look_ahead
from ..v2.reader import batch, buffered
from .core import EOFException
from .program.program import Variable, default_main_program

__all__ = ["DataLoader"]

Reader = Callable[[], Iterable[Any]]


class LinkedFeed(dict[str, Any]):
    """A feed for Executor.run; `following` is the one after it, if it is known."""

    following: LinkedFeed | None = None


def link_feeds(feeds: Iterable[Mapping[str, Any]]) -> Iterator[LinkedFeed]:
    """Yield each feed once the next one is there. Feeds must not share arrays that change."""
    for feed, following in look_ahead(map(LinkedFeed, feeds)):
        feed.following = following
        yield feed
        feed.following = None  # a program that keeps feeds keeps no others


class DataLoader:
    """Source of GeneratorLoader, by its name in PaddlePaddle."""

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError(
            "io.DataLoader(dataset) is not in this runtime; DataLoader.from_generator(feed_list=...) takes a "
            "reader, as set_sample_list_generator(paddle.batch(reader, batch_size))"
        )

    @staticmethod
    def from_generator(
        feed_list: Sequence[Variable] | None = None,
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
        use_multiprocess: bool = False,
        drop_last: bool = True,
    ) -> GeneratorLoader:
        """Return a loader that reads up to `capacity` batches ahead.

        `use_double_buffer`, `use_multiprocess` and `drop_last` have no effect: one thread reads, and batches
        are taken as they are.
        """
        if not feed_list or not all(isinstance(one, Variable) for one in feed_list):
            raise TypeError(
                f"DataLoader.from_generator: feed_list={feed_list!r}, expected variables of static.data"
            )
        loader = GeneratorLoader(feed_list, capacity or 2, iterable=iterable, return_list=return_list)
        if not iterable:
            default_main_program().loaders.append(loader)
        return loader


class GeneratorLoader:
    """Batches of a reader for variables of a program, read ahead by a thread.

    Not iterable: start() begins a pass, each Executor.run() of the program takes a batch, at the end
    core.EOFException is raised, and reset() ends the pass. Iterable: a `for` loop gives lists of one feed.
    `end` is called at the end of a pass, so that a waiting reader returns.
    """

    def __init__(
        self,
        variables: Sequence[Variable],
        capacity: int,
        *,
        iterable: bool,
        return_list: bool,
        end: Callable[[], object] = lambda: None,
    ) -> None:
        self._variables, self._capacity, self._end = list(variables), capacity, end
        self._iterable, self._return_list = iterable, return_list
        self._read: Callable[[], Generator[Feeds, None, None]] | None = None
        self._pass: Generator[Feeds, None, None] | None = None
        self._next: Feeds | None = None  # seen by peek()

    # -- sources

    def set_sample_generator(
        self, reader: Reader, batch_size: int, drop_last: bool = True, places: object = None
    ) -> GeneratorLoader:
        """Take a reader of samples: a tuple with an item for each variable."""
        return self.set_sample_list_generator(batch(reader, batch_size, drop_last))

    def set_sample_list_generator(self, reader: Reader, places: object = None) -> GeneratorLoader:
        """Take a reader of batches: lists of samples."""
        return self._set(reader, Feeder(self._variables))

    def set_batch_generator(self, reader: Reader, places: object = None) -> GeneratorLoader:
        """Take a reader of batches: a feed for each variable, or a dict of them."""
        return self._set(reader, self._take_arrays)

    decorate_sample_generator = set_sample_generator
    decorate_sample_list_generator = set_sample_list_generator
    decorate_batch_generator = set_batch_generator

    def _set(self, reader: Reader, convert: Callable[[Any], Feeds]) -> GeneratorLoader:
        if not callable(reader):
            raise TypeError(f"DataLoader: {reader!r}, expected a reader of batches, as paddle.batch makes")
        self._read = buffered(lambda: map(convert, reader()), self._capacity, self._end)
        return self

    def _take_arrays(self, arrays: Any) -> Feeds:
        if isinstance(arrays, Mapping):
            return take_columns(self._variables, arrays)
        if len(arrays) != len(self._variables):
            raise ValueError(
                f"DataLoader: a batch has {len(arrays)} arrays for {len(self._variables)} variables"
            )
        names = [one.name for one in self._variables]
        return take_columns(self._variables, dict(zip(names, arrays, strict=True)))

    # -- passes

    def start(self) -> None:
        """Begin a pass."""
        if self._iterable:
            raise RuntimeError("DataLoader.start: this loader is iterable; use it in a `for` loop")
        if self._pass is not None:
            raise RuntimeError("DataLoader.start: a pass is going on; call reset() first")
        self._pass = self._open()

    def reset(self) -> None:
        """End the pass, and forget what was read ahead."""
        if self._pass is not None:
            self._pass.close()
        self._pass = self._next = None

    @property
    def is_started(self) -> bool:
        return self._pass is not None

    def peek(self) -> Feeds | None:
        """Return the batch that take() will return; None at the end of the pass."""
        if self._next is None and self._pass is not None:
            self._next = next(self._pass, None)
        return self._next

    def take(self) -> Feeds:
        """Return the next batch of the pass. Raises EOFException at its end."""
        feed, self._next = self.peek(), None
        if feed is None:
            raise EOFException("the data of the DataLoader is at its end: call reset(), then start() again")
        return feed

    def _open(self) -> Generator[Feeds, None, None]:
        if self._read is None:
            raise RuntimeError("DataLoader: it has no reader yet; call set_sample_list_generator() first")
        return self._read()

    def __iter__(self) -> Iterator[Any]:
        if not self._iterable:
            raise TypeError("DataLoader: iterable=False; call start(), then Executor.run() without feed")
        for feed in link_feeds(self._open()):
            yield [list(feed.values())] if self._return_list else [feed]

    def __call__(self) -> Iterator[Any]:
        return iter(self)
