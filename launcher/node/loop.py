"""The event loop of one thread: ready descriptors, due timers, signals; the silence of a peer.

Decisions are elsewhere, pure (supervisor.py, job.py), and called with a clock value.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import os
import queue
import selectors
import signal
import socket
import threading
import time
from collections.abc import Iterable
from typing import Any, Callable, TypeVar

Callback = Callable[[], object]
PAUSE_S = 2.0  # between two measurements, due once a second: this process itself stood still
REST_S = 0.5  # of a listener without free descriptors; the backlog is served afterwards
T = TypeVar("T")
Then = Callable[[T], object]
Fail = Callable[[Exception], object]


def ignore(_result: object) -> None:
    """Do nothing with a result or an error."""


class Timer:
    """A call due at a time, until it is cancelled."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callback) -> None:
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        self.callback = None


class Aside:
    """A thread beside a loop for slow work with files, one piece after the other."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._jobs: queue.SimpleQueue[Callable[[], Callback] | None] = queue.SimpleQueue()
        self._over: queue.SimpleQueue[Callback] = queue.SimpleQueue()
        self._read_fd, self._write_fd = os.pipe()
        loop.watch(self._read_fd, read=self._tell)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def do(self, work: Callable[[], T], then: Then[T] = ignore, fail: Fail = ignore) -> None:
        """Do `work` in the thread; the loop then calls `then` with its result, or `fail` with its error."""

        def run() -> Callback:
            try:
                return functools.partial(then, work())
            except Exception as e:  # border of a thread
                return functools.partial(fail, e)

        self._jobs.put(run)

    def _run(self) -> None:
        while run := self._jobs.get():
            self._over.put(run())
            os.write(self._write_fd, b".")
        os.close(self._write_fd)

    def _tell(self) -> None:
        if os.read(self._read_fd, 1):
            self._over.get()()
        else:
            self._loop.watch(self._read_fd)
            os.close(self._read_fd)

    def close(self) -> None:
        """End the thread after the work it has got."""
        self._jobs.put(None)


class Loop:
    """An event loop that handles ready descriptors before due timers.

    So a process that was stopped for a while reads what its peers have sent meanwhile before it judges
    their silence.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        uptime: Callable[[], float] = functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME),
    ) -> None:
        """uptime: includes sleep of the machine, which a monotonic clock leaves out."""
        self.now, self._uptime = clock, uptime
        self._round_s = uptime()  # end of the last wait
        self._pause_s, self._pause_end_s = 0.0, float("-inf")
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._signal_pipe: tuple[int, int] | None = None
        self._on_signal: dict[int, Callback] = {}
        self._handlers_before: dict[int, Any] = {}
        self._signalled = False  # by signals during a callback

    def watch(self, fd: int, *, read: Callback | None = None, write: Callback | None = None) -> None:
        """Call `read` or `write` whenever `fd` is ready for it; stop watching with neither."""
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
        timer = Timer(callback)
        heapq.heappush(self._timers, (at_s, next(self._order), timer))
        return timer

    def call_after(self, delay_s: float, callback: Callback) -> Timer:
        return self.call_at(self.now() + delay_s, callback)

    def call_every(self, period_s: float, callback: Callback) -> None:

        def repeat() -> None:
            self.call_after(period_s, repeat)
            callback()

        self.call_after(period_s, repeat)

    def do_aside(self, work: Callable[[], T], then: Then[T], fail: Fail = ignore) -> None:
        """Do slow `work` as `Aside.do` does, in a thread of its own."""
        thread = Aside(self)
        thread.do(work, then, fail)
        thread.close()

    def handle_signals(self, handlers: dict[int, Callback]) -> None:
        """Call back from the loop after a signal. Signals ignored at our start stay ignored."""
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
            # The byte in the pipe does the work. Children would inherit SIG_IGN.
            before = signal.signal(number, self._note_signal)
            self._handlers_before.setdefault(number, before)

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

    def describe_pause(self, lost_after_s: float) -> str:
        """Return in words a pause that has just ended, and so long that peers may have given us up."""
        is_over = self._uptime() - self._pause_end_s > lost_after_s
        if is_over or self._pause_s < lost_after_s / 2:
            return ""
        return f"did not run for {self._pause_s:.0f} s (stopped, or its machine asleep?)"

    def run_once(self, limit_s: float = 3600.0) -> None:
        """Wait for the next event, at most `limit_s`, and handle it."""
        due = self._timers[0][0] - self.now() if self._timers else limit_s
        wait_s = max(0.0, min(due, limit_s))
        ready, began_s, self._round_s = self._selector.select(wait_s), self._round_s, self._uptime()
        if self._round_s - began_s - wait_s > PAUSE_S:
            self._pause_s, self._pause_end_s = self._round_s - began_s - wait_s, self._round_s
        for key, mask in ready:
            if self._signalled:
                self._read_signals()
            read, write = key.data
            # An earlier callback of this round may have stopped watching this descriptor.
            if mask & selectors.EVENT_READ and read and self._is_watched(key.fd, read, 0):
                read()
            if mask & selectors.EVENT_WRITE and write and self._is_watched(key.fd, write, 1):
                write()
        now = self.now()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if timer.callback:
                timer.callback()

    def _is_watched(self, fd: int, callback: Callback, which: int) -> bool:
        key = self._selector.get_map().get(fd)
        return key is not None and key.data[which] == callback

    def run(self, until: Callable[[], bool], after_each: Iterable[Callback] = ()) -> None:
        """Handle events until `until()` is true; call all of `after_each` after each round."""
        while not until():
            self.run_once()
            for callback in after_each:
                callback()

    def close(self) -> None:
        """Close the descriptors and restore the signal handlers that were there before."""
        if self._signal_pipe is not None:
            signal.set_wakeup_fd(-1)
            for number, before in self._handlers_before.items():
                signal.signal(number, before)
            for fd in self._signal_pipe:
                os.close(fd)
            self._signal_pipe = None
        self._selector.close()


class Listener:
    """Acceptor: `take(sock, address)` gets each connection, after any pause that `rest_s()` returns."""

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        take: Callable[[socket.socket, Any], None],
        rest_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Take over `listener`, which must not block."""
        self._loop, self._listener, self._take, self._rest_s = loop, listener, take, rest_s
        self._open = True
        self.go_on()

    def go_on(self) -> None:
        if self._open:
            self._loop.watch(self._listener.fileno(), read=self._accept)

    def _accept(self) -> None:
        for_s = self._rest_s()
        if for_s <= 0:
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # gone again, or no free descriptors, which would repeat at once
                for_s = REST_S
            else:
                self._take(sock, address)
                return
        self._loop.watch(self._listener.fileno())
        self._loop.call_after(for_s, self.go_on)

    def close(self) -> None:
        """Accept no more. May be called twice."""
        if self._open:
            self._open = False
            self._loop.watch(self._listener.fileno())
            self._listener.close()


class Silence:
    """Seconds since the last sign of life, without a pause of our own.

    After a pause of the whole machine, the first process to wake finds all peers silent: they get time to
    send something before they are judged. Only one pause is subtracted in one silence, so that a process
    that is always slow still notices lost peers.
    """

    def __init__(self, now_s: float) -> None:
        self.hear(now_s)

    def hear(self, now_s: float) -> None:
        self.heard_s = self._measured_s = now_s
        self._pause_s = 0.0

    def measure(self, now_s: float) -> float:
        since_s, self._measured_s = now_s - self._measured_s, now_s
        if since_s > PAUSE_S and not self._pause_s:
            self._pause_s = since_s
        return now_s - self.heard_s - self._pause_s
