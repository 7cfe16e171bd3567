"""Connections that have not proved the job's secret: few at a time, for seconds, and reported in bounds.

Standard library only, Python 3.9 or later: pservers and the gates of heads have them.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections import Counter
from typing import Any, Callable

from . import env, nics, prove

MAX_UNPROVEN = 64  # at a time
PATIENCE_S = 0.5  # after this even one that knows the secret may have to make room
READ_S = 1.0  # for a refused one to read why
Address = tuple[Any, ...]
Act = Callable[[], object]
CROWD = "it did not prove the secret, and others wait"


class Stranger:
    """A connection that has not proved the secret yet; `admit` takes over its socket once it has."""

    def __init__(self, sock: socket.socket, address: Address, server: prove.Server, admit: Act, now_s: float):
        self.sock, self.server, self.admit = sock, server, admit
        self.host, self.addr = address[0], env.join_addr(*address[:2])
        self.source = find_source(self.host)
        self.since_s, self.until_s = now_s, now_s + prove.TIMEOUT_S
        self.is_refused = False


class Strangers:
    """All of one process. A silent one loses its place to any newcomer."""

    def __init__(
        self,
        watch: Callable[[socket.socket, Act | None], object],
        report: Callable[[Stranger | None, str], object],
        *,
        note_failure: Callable[[Stranger], object] = lambda _: None,
        handout: tuple[bytes, Callable[[socket.socket], object]] = (b"", lambda _: None),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """watch(sock, act): act whenever there is something to read, or no more.

        report: why one is refused, or without one a sum of such reports; note_failure: each that said what is
        no proof. handout: who begins with these bytes is given away.
        """
        self._watch, self._report, self._note_failure = watch, report, note_failure
        self._handout, self._clock = handout, clock
        self._all: dict[Stranger, None] = {}  # the oldest first
        self._refusals = prove.Refusals()

    @property
    def has_room(self) -> bool:
        return len(self._all) < MAX_UNPROVEN

    def take(self, sock: socket.socket, address: Address, server: prove.Server, admit: Act) -> None:
        """Take a connection that was accepted, with its side of the proof."""
        sock.setblocking(False)
        one = Stranger(sock, address, server, admit, self._clock())
        self._all[one] = None
        self._watch(sock, lambda: self._hear(one))
        self._hear(one)  # a process of the job has sent its first bytes by now

    def _hear(self, one: Stranger) -> None:
        if one not in self._all:  # it may have been dropped for another meanwhile
            return
        answer, why = b"", "it closed the connection before it had proved the secret"
        try:
            data = one.sock.recv(prove.MAX_BODY_BYTES)
            if data and data == self._handout[0]:
                self._forget(one)
                self._handout[1](one.sock)
                return
            if data and not one.is_refused:
                answer = one.server.feed(data)
                one.sock.sendall(answer)  # a few hundred bytes to an empty buffer
        except BlockingIOError:
            return
        except OSError as e:
            data, why = b"", e.strerror or str(e)
        if answer and one.server.failure:
            self._refuse(one)  # also if it did not wait for the answer
        elif not data:
            self._drop(one, why)
        elif one.server.proved:
            self._forget(one)
            one.admit()

    def _refuse(self, one: Stranger) -> None:
        """Let it read the reason before the connection is closed."""
        self._note_failure(one)
        self._report_one(one, one.server.failure)
        one.is_refused, one.until_s = True, min(one.until_s, self._clock() + READ_S)
        with contextlib.suppress(OSError):
            one.sock.shutdown(socket.SHUT_WR)

    def _report_one(self, one: Stranger, why: str) -> None:
        if not one.is_refused and self._refusals.admit(one.host, self._clock()):
            self._report(one, why)

    def _forget(self, one: Stranger) -> None:
        del self._all[one]
        self._watch(one.sock, None)

    def _drop(self, one: Stranger, why: str) -> None:
        self._forget(one)
        one.sock.close()
        self._report_one(one, why)

    def drop_one(self) -> bool:
        """Make room, by the oldest of the source with the most, silent if possible; return False if all stay.

        Processes of the job send their first bytes at once: silence is a stranger's.
        """
        silent = [one for one in self._all if not one.server.nonces]
        counts = Counter(one.source for one in silent or self._all)
        most = max(counts.values(), default=0)
        one = next((one for one in silent or self._all if counts[one.source] == most), None)
        if one is None or not (silent or self._clock() - one.since_s >= PATIENCE_S):
            return False
        self._drop(one, CROWD)
        return True

    def tick(self) -> None:
        """Drop those past their time, and report sums; to be called regularly."""
        now_s = self._clock()
        for one in [one for one in self._all if now_s >= one.until_s]:
            self._drop(one, f"it did not prove the secret within {prove.TIMEOUT_S:g} s")
        self.report_sums(now_s)

    def report_sums(self, now_s: float) -> None:
        for line in self._refusals.collect_sums(now_s):
            self._report(None, line)

    def close(self) -> None:
        for one in list(self._all):
            self._forget(one)
            one.sock.close()


def find_source(host: str) -> str:
    """Return a source that a stranger can't multiply: this machine, an IPv4 address, an IPv6 network."""
    if nics.is_loopback(host):
        return "this machine"
    host = host.partition("%")[0].rpartition("::ffff:")[2]
    return socket.inet_pton(socket.AF_INET6, host)[:8].hex() if ":" in host else host
