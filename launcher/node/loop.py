"""One thread's events: descriptors that are ready, timers that are due, signals that came.

Not for decisions: those are pure (supervise.py, job.py) and called from here with a clock value.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import queue
import selectors
import signal
import threading
import time
from collections.abc import Iterable
from typing import Callable, Optional

from .silence import PAUSE_S

Callback = Callable[[], None]
Done = Callable[[Optional[Exception]], None]


class Timer:
    """A call that is due at a time; `cancel` takes it back."""

    __slots__ = ("at_s", "callback")

    def __init__(self, at_s: float, callback: Callback) -> None:
        self.at_s = at_s
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        self.callback = None


class Aside:
    """One thread beside a loop, for slow work with files: does one after the other, and tells the loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._jobs: queue.SimpleQueue[tuple[Callback, Done] | None] = queue.SimpleQueue()
        self._over: queue.SimpleQueue[tuple[Done, Exception | None]] = queue.SimpleQueue()
        self._read_fd, self._write_fd = os.pipe()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._started = False
        loop.watch(self._read_fd, read=self._tell)

    def do(self, work: Callback, done: Done) -> None:
        """`done` is called from the loop, with what `work` raised."""
        if not self._started:
            self._started = True
            self._thread.start()
        self._jobs.put((work, done))

    def _run(self) -> None:
        while job := self._jobs.get():
            failed = None
            try:
                job[0]()
            except Exception as e:  # the border of a thread: `done` tells it
                failed = e
            self._over.put((job[1], failed))
            os.write(self._write_fd, b".")
        os.close(self._write_fd)

    def _tell(self) -> None:
        if not os.read(self._read_fd, 1):
            self._loop.watch(self._read_fd)
            os.close(self._read_fd)
            return
        done, failed = self._over.get()
        done(failed)

    def close(self) -> None:
        """End the thread once it has done what it was given; nothing is told any more after that."""
        if self._started:
            self._jobs.put(None)
        else:
            os.close(self._write_fd)


def _uptime() -> float:
    """Return seconds since the machine was started, its sleep included; a monotonic clock leaves that out."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Loop:
    """Calls back for ready descriptors first, due timers after.

    In that order, so that a process that was stopped for a while reads what its peers have sent
    meanwhile before it judges their silence.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, uptime: Callable[[], float] = _uptime
    ) -> None:
        self.now, self._uptime = clock, uptime
        self._round_s = uptime()  # when the last round had waited
        self._stood_s, self._stood_until_s = 0.0, float("-inf")
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._signal_pipe: tuple[int, int] | None = None
        self._on_signal: dict[int, Callback] = {}
        self._signalled = False  # some came during a callback

    def watch(self, fd: int, *, read: Callback | None = None, write: Callback | None = None) -> None:
        """Call `read` or `write` whenever `fd` is ready for it; with neither, stop watching."""
        events = (selectors.EVENT_READ if read else 0) | (selectors.EVENT_WRITE if write else 0)
        known = fd in self._selector.get_map()
        if not events:
            if known:
                self._selector.unregister(fd)
        elif known:
            self._selector.modify(fd, events, (read, write))
        else:
            self._selector.register(fd, events, (read, write))

    def call_at(self, at_s: float, callback: Callback) -> Timer:
        timer = Timer(at_s, callback)
        heapq.heappush(self._timers, (at_s, next(self._order), timer))
        return timer

    def call_after(self, delay_s: float, callback: Callback) -> Timer:
        return self.call_at(self.now() + delay_s, callback)

    def every(self, period_s: float, callback: Callback) -> None:
        """Call back once a period for as long as the loop runs."""

        def again() -> None:
            self.call_after(period_s, again)
            callback()

        self.call_after(period_s, again)

    def aside(self, work: Callback, done: Done) -> None:
        """Do slow `work` with files in a thread; `done` is called from the loop with what it raised."""
        thread = Aside(self)

        def over(failed: Exception | None) -> None:
            thread.close()
            done(failed)

        thread.do(work, over)

    def on_signals(self, handlers: dict[int, Callback]) -> None:
        """Call back from the loop when a signal came. Signals ignored at our start stay ignored."""
        if self._signal_pipe is None:
            read_fd, write_fd = os.pipe()
            for fd in (read_fd, write_fd):
                os.set_blocking(fd, False)
            self._signal_pipe = read_fd, write_fd
            signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
            self.watch(read_fd, read=self._read_signals)
        for number, callback in handlers.items():
            if signal.getsignal(number) is signal.SIG_IGN and number != signal.SIGCHLD:
                continue
            self._on_signal[number] = callback
            # The byte in the pipe does the work. Not SIG_IGN, which children would inherit.
            signal.signal(number, self._note_signal)

    def _note_signal(self, _number: int, _frame: object) -> None:
        self._signalled = True

    def _read_signals(self) -> None:
        assert self._signal_pipe is not None
        self._signalled = False
        with contextlib.suppress(BlockingIOError):
            for number in dict.fromkeys(os.read(self._signal_pipe[0], 4096)):
                callback = self._on_signal.get(number)
                if callback:
                    callback()

    def stood_s(self, within_s: float) -> float:
        """Return how long this process or machine stood still last, if that ended within so many seconds."""
        return self._stood_s if self._uptime() - self._stood_until_s <= within_s else 0.0

    def run_once(self, limit_s: float = 3600.0) -> None:
        """Wait for the next thing to happen, at most `limit_s`, and handle it."""
        due = self._timers[0][0] - self.now() if self._timers else limit_s
        wait_s = max(0.0, min(due, limit_s))
        ready, began_s, self._round_s = self._selector.select(wait_s), self._round_s, self._uptime()
        if self._round_s - began_s - wait_s > PAUSE_S:
            self._stood_s, self._stood_until_s = self._round_s - began_s - wait_s, self._round_s
        for key, mask in ready:
            if self._signalled:
                self._read_signals()
            read, write = key.data
            # A callback may have stopped the watching of a descriptor that was ready in the same round.
            if mask & selectors.EVENT_READ and read and self._watched(key.fd, read, 0):
                read()
            if mask & selectors.EVENT_WRITE and write and self._watched(key.fd, write, 1):
                write()
        now = self.now()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if timer.callback:
                timer.callback()

    def _watched(self, fd: int, callback: Callback, which: int) -> bool:
        key = self._selector.get_map().get(fd)
        return key is not None and key.data[which] == callback

    def run(self, until: Callable[[], bool], after_each: Iterable[Callback] = ()) -> None:
        """Handle events until `until()` holds, calling all of `after_each` after each round."""
        while not until():
            self.run_once()
            for callback in after_each:
                callback()

    def close(self) -> None:
        """Give back the descriptors; signal handlers go back to their defaults."""
        if self._signal_pipe is not None:
            signal.set_wakeup_fd(-1)
            for number in self._on_signal:
                signal.signal(
                    number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler
                )
            for fd in self._signal_pipe:
                os.close(fd)
            self._signal_pipe = None
        self._selector.close()
