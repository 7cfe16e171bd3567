"""The gate of a head that listens: callers prove the job's secret before they get a line.

Their time and number are bounded until then (strangers.py). The head gets a message about each that fails.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence

from pslaunch.runtime.shared import prove
from pslaunch.runtime.shared.strangers import PATIENCE_S, Stranger, Strangers

from ..loop import Listener, Loop
from . import reach
from .wire import Line, Seal, Seals

PLANE = prove.Plane(b"pslaunch control plane", "head", "agent", advice="is it an agent of another job?")
OBSERVER = b"observer"  # text of a caller that is no agent
TRY_S = 3.0  # for one of several addresses
MIN_TRY_S = 0.1
LATE = 0.1  # time between two tries, as a part of the time since the first
LEAST_S, MOST_S = 0.05, 1.0  # between two tries
GATE_TICK_S = 1.0
MAX_HANDOUTS = 64  # at once; more are refused, and ask again
HANDOUT_LIMIT_S = 60.0


def make_seals(secret: bytes, nonces: bytes, *, head: bool) -> Seals:
    """Return the seals for sending and receiving, with keys of this connection alone."""
    down, up = (Seal(PLANE.compute_mac(secret, b"key of " + who, nonces)) for who in (b"head", b"agent"))
    return (down, up) if head else (up, down)


def _make_line(sock: socket.socket, seals: Seals) -> Line:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    fd = sock.detach()
    return Line(fd, fd, str, seals)


class Gate:
    """Listener at `addr`, "" for all addresses, and at `port`, or at any if that is not free.

    `check(text)` returns why a caller is refused, or ""; `admit(text, line)` takes over a proved one.
    handout: a request and its answer, no secret: whoever begins with the one gets the other, without proof.
    """

    def __init__(
        self,
        loop: Loop,
        addr: str,
        secret: bytes,
        *,
        check: Callable[[bytes], str],
        admit: Callable[[bytes, Line], None],
        note_refusal: Callable[[str], None],
        port: int = 0,
        handout: tuple[bytes, bytes] = (b"", b""),
    ) -> None:
        self._loop, self._secret, self._handout = loop, secret, handout[1]
        self._handing = 0  # at once
        self._check, self._admit, self._note_refusal = check, admit, note_refusal
        given = handout[0], self._hand_out
        self._strangers = Strangers(self._watch, self._report, handout=given, clock=loop.now)
        listener = reach.listen(addr, port)
        self.port = int(listener.getsockname()[1])
        self._listening = Listener(loop, listener, self._take, self._make_room)
        self._open = True
        self._tick()

    def _make_room(self) -> float:
        """Make room for one more caller, dropping one if possible; return the seconds to wait otherwise."""
        return 0.0 if self._strangers.has_room or self._strangers.drop_one() else PATIENCE_S

    def _take(self, sock: socket.socket, address: tuple[str, int]) -> None:
        server = prove.Server(PLANE, self._secret, self._check)
        self._strangers.take(sock, address, server, lambda: self._let_in(sock, server))

    def _let_in(self, sock: socket.socket, server: prove.Server) -> None:
        if server.buffer:
            sock.close()  # nothing may be sent before the welcome was read
            return
        seals = make_seals(self._secret, server.nonces, head=True)
        self._admit(server.text, _make_line(sock, seals))

    def _hand_out(self, sock: socket.socket) -> None:
        if self._handing >= MAX_HANDOUTS:
            sock.close()
            return
        self._handing += 1

        def send() -> None:
            with sock:
                sock.settimeout(HANDOUT_LIMIT_S)  # for all of it
                sock.sendall(self._handout)
                sock.shutdown(socket.SHUT_WR)

        def end(_result: object) -> None:
            self._handing -= 1

        self._loop.do_aside(send, end, end)

    def _watch(self, sock: socket.socket, read: Callable[[], object] | None) -> None:
        self._loop.watch(sock.fileno(), read=read)
        if read is None:
            self._listening.go_on()

    def _report(self, one: Stranger | None, why: str) -> None:
        self._note_refusal(f"{one.addr}: {why}" if one else why)

    def _tick(self) -> None:
        self._strangers.tick()
        if self._open:
            self._loop.call_after(GATE_TICK_S, self._tick)

    def close(self) -> None:
        self._open = False
        self._strangers.close()
        self._listening.close()


def dial(
    addrs: Sequence[str], port: int, secret: bytes, text: bytes, limit_s: float, *, to_come: bool = False
) -> Line:
    """Connect to a head and prove the secret, at each of its addresses in turn, within `limit_s`.

    to_come: the head may have no name, and refuse connections, for a while yet.
    Raises prove.ProofError or the last OSError.
    """
    if not addrs:
        raise ConnectionError("no address was given")
    began_s = time.monotonic()
    end_s = began_s + limit_s
    while True:
        round_s = time.monotonic()
        late_s = max(LEAST_S, (round_s - began_s) * LATE)
        failed: list[OSError | prove.ProofError] = []
        for left, addr in zip(range(len(addrs), 0, -1), addrs):
            now_s = time.monotonic()
            most_s = (end_s - now_s) / left  # each has its turn
            try_s = max(MIN_TRY_S, min(most_s, prove.TIMEOUT_S if len(addrs) == 1 else TRY_S))
            # A packet to a name without an address may be lost, and would be sent again after a second.
            connect_s = min(try_s, late_s) if to_come else try_s
            try:
                with socket.create_connection((addr, port), timeout=connect_s) as sock:
                    nonces, _ = prove.dial(sock, PLANE, secret, text, now_s + try_s)
                    return _make_line(sock, make_seals(secret, nonces, head=False))
            except (OSError, prove.ProofError) as e:  # another program may listen at a wrong address
                failed.append(e)
        only_refused = (to_come or len(addrs) == 1) and all(isinstance(e, prove.ProofError) for e in failed)
        # It listened before its address was sent: without any listener there now, it is gone.
        gone = not to_come and all(isinstance(e, ConnectionRefusedError) for e in failed)
        wait_s = max(0.0, round_s + min(late_s, MOST_S) - time.monotonic())
        if only_refused or gone or time.monotonic() + wait_s > end_s:
            raise failed[-1]
        time.sleep(wait_s)
