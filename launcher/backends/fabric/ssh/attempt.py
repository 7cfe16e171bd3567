"""One attempt to reach a host: its deadline, the boot of its channel, and its errors."""

from __future__ import annotations

import contextlib
import os
import random
import select
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from ....errors import HostError
from ....node.procs import write_all
from .boot import Boot, NoMarkerError, wait_for_marker
from .channel import STDERR_S, Channel

RETRY_FIRST_S, RETRY_LAST_S = 0.2, 2.0
SLICE_S = 0.2  # interval for noticing the end of the job while a host is silent
BOOT_END_S = 0.5  # for the end of a failed boot, and its last output
T = TypeVar("T")


class RefusedError(HostError):
    """Refusal of paramiko, or no common algorithm; the ssh binary may still succeed."""


class BusyError(Exception):
    """Connection closed before a login was tried; worth a retry."""


class Deadline:
    """A time limit for several steps; `cancel` ends it at once."""

    def __init__(self, limit_s: float, cancel: threading.Event) -> None:
        self.limit_s = limit_s
        self._end_s = time.monotonic() + limit_s
        self._cancel = cancel
        self._stops = 0

    def get_left_s(self) -> float:
        """Return the time left; never 0, which is special for sockets."""
        return 0.05 if self._cancel.is_set() else max(0.05, self._end_s - time.monotonic())

    @property
    def is_over(self) -> bool:
        return self._cancel.is_set() or (not self._stops and time.monotonic() >= self._end_s)

    def keep_trying(self, name: str, attempt: Callable[[], T]) -> T:
        """Return the result of an attempt at a host; retry while it is busy, later each time."""
        pause_s = RETRY_FIRST_S
        while True:
            try:
                return attempt()
            except BusyError as e:
                wanted_s = pause_s * random.uniform(0.5, 1.5)
                if wanted_s >= self.get_left_s() or self._cancel.wait(wanted_s):
                    raise HostError(name, "connect", f"repeatedly: {e}") from None
                pause_s = min(2 * pause_s, RETRY_LAST_S)

    @contextlib.contextmanager
    def stop_clock(self) -> Iterator[None]:
        """Suspend the limit while the user answers a question."""
        begin_s = time.monotonic()
        self._stops += 1
        try:
            yield
        finally:
            self._stops -= 1
            self._end_s += time.monotonic() - begin_s


def boot(channel: Channel, name: str, booted: Boot, deadline: Deadline) -> None:
    """Let `pslaunch.node` begin at the other end. Raises HostError; then the channel is closed."""
    writer = threading.Thread(target=_send, args=(channel.write_fd, booted.payload), daemon=True)
    writer.start()
    try:
        wait_for_marker(lambda n: _read(channel.read_fd, n, deadline), booted.marker)
        writer.join()
        return
    except NoMarkerError as e:
        failed = e
    error = _make_start_error(name, failed, channel.wait(BOOT_END_S), channel)
    channel.abort()
    writer.join(STDERR_S)  # bounded: a process left behind may hold the pipes open
    channel.line.close()
    raise error


def _send(fd: int, data: bytes) -> None:
    with contextlib.suppress(OSError):  # the answer, or its absence, has the cause
        write_all(fd, data)


def _read(fd: int, n: int, deadline: Deadline) -> bytes:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while not poll.poll(SLICE_S * 1000):
        if deadline.is_over:
            limit = f"no answer within {deadline.limit_s:g} s"
            raise NoMarkerError(b"", f"{limit}; a login file may wait for something")
    return os.read(fd, n)


def _make_start_error(name: str, failed: NoMarkerError, code: int | None, channel: Channel) -> HostError:
    said = " / ".join(text for text in (channel.tail.get_text()[-500:], failed.noise) if text)
    ours = next((line for line in said.splitlines() if line.startswith("pslaunch boot: no Python")), "")
    if ours:
        what = "install one, or set --agent_python"
        return HostError(name, "python", f"{ours.removeprefix('pslaunch boot: ')}; {what}")
    ended = f"the login shell ended with {code}" if code is not None else "the connection was closed"
    return HostError(name, "start", "; ".join(text for text in (str(failed) or ended, said) if text))
