"""Answers of several nodes: all are asked at the same time, and read in order."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from ..errors import ClusterError, HostError, NodeLostError

QUESTIONS_AT_ONCE = 16  # questions at the same time
AHEAD = 16  # pieces of an answer that wait here
NOT_ASKED_AGAIN = (HostError, ClusterError, NodeLostError)  # of a node that is not asked again


class Question(NamedTuple):
    """Question to a node, which answers one at a time."""

    node: object
    ask: Callable[[], Iterator[bytes]]


@contextlib.contextmanager
def ask_all(questions: Sequence[Question]) -> Iterator[list[Generator[bytes]]]:
    """Ask several nodes at the same time; yield their answers, to be read in this order or closed.

    An answer raises the error of its question. After an early end of the block, questions that wait for
    a node go on until its backend is released.
    """
    answers = [_Answer() for _ in questions]
    last: dict[object, Future[Exception | None]] = {}
    pool = ThreadPoolExecutor(QUESTIONS_AT_ONCE)
    try:
        for (node, ask), answer in zip(questions, answers, strict=True):
            last[node] = pool.submit(answer.take, ask, last.get(node))
        yield [answer.read() for answer in answers]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for answer in answers:
            answer.leave()


class _Answer:
    """Pieces of an answer on their way from a thread."""

    def __init__(self) -> None:
        self._pieces: queue.Queue[bytes | Exception | None] = queue.Queue(AHEAD)
        self._left = False

    def take(
        self, ask: Callable[[], Iterator[bytes]], before: Future[Exception | None] | None
    ) -> Exception | None:
        """Take all pieces from the node, in a thread; return the error of a node that is not asked again.

        before: the question to the same node that comes first.
        """
        try:
            if before and (silence := before.result()):
                raise silence
            for piece in ask():
                self._pieces.put(piece)
                if self._left:
                    return None
            self._pieces.put(None)
        except Exception as e:
            self._pieces.put(e)
            return e if isinstance(e, NOT_ASKED_AGAIN) else None
        return None

    def read(self) -> Generator[bytes]:
        """Yield the pieces. Raises the error of the question."""
        try:
            while (piece := self._pieces.get()) is not None:
                if isinstance(piece, Exception):
                    raise piece
                yield piece
        finally:
            self.leave()

    def leave(self) -> None:
        self._left = True
        with contextlib.suppress(queue.Empty):  # room for the last piece, which ends the thread
            self._pieces.get_nowait()
