"""Calls to the cluster that take a while: repeated until a result is there, or left to a thread."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Final, TypeVar

from ...errors import ClusterError, RightsError

POLL_S: Final = 0.2
AWAY: Final = (ClusterError, RightsError)  # for its first second an API server knows no rights

T = TypeVar("T")


def try_again(limit_s: float, stop: threading.Event | None = None, every_s: float = POLL_S) -> Iterator[int]:
    """Yield the number of each try from 0 on, until the time is over or `stop` is set; the first at once."""
    end_s, stop = time.monotonic() + limit_s, stop or threading.Event()
    for number in itertools.count():
        yield number
        if time.monotonic() > end_s or stop.wait(every_s):
            return


def begin_apart(work: Callable[[], T]) -> Future[T]:
    """Begin work in a thread for which the end of this process does not wait; return its later result."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as e:
            result.set_exception(e)

    threading.Thread(target=run, daemon=True).start()
    return result
