"""Programs in pods by an exec of the API: their standard input and output as one socket."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from select import POLLIN, POLLOUT, poll
from typing import Any, Final

from ...node.line.wire import NONSENSE
from .api import ANSWER_S, CONNECT_S, Cluster, begin_apart
from .api_errors import explain_connection
from .patch import CONTAINER

IN, OUT, ERRORS, STATUS = range(4)  # channels: the first byte of each message
PIECE_BYTES: Final = 128 * 1024
SAID_BYTES: Final = 2000
MAX_FRAME_BYTES: Final = 4 * 1024 * 1024  # servers send 32 KiB
LIMIT_S: Final = CONNECT_S + ANSWER_S  # for a connection
END_S: Final = 2.0  # for the status of a program after its output
AGAIN = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class PodExec:
    """A program in a pod. `fd` is its input and output; the taker closes it, which closes the input there."""

    def __init__(self, cluster: Cluster, pod: str, argv: Sequence[str]) -> None:
        """Start it. Raises PslaunchError."""
        self._websocket = _connect(cluster, pod, argv)
        self._ours, theirs = socket.socketpair()
        self.fd = theirs.detach()
        self._said = {ERRORS: b"", STATUS: b""}  # the last of standard error, and the end as JSON
        self._incoming, self._outgoing = b"", b""  # what a side has not taken yet
        self._channel = OUT  # of a message that continues
        self._over = threading.Event()
        for end in (self._ours, self._websocket.sock):
            end.setblocking(False)
        self._buffer = self._websocket.frame_buffer
        self._recv, self._buffer.recv = self._buffer.recv, self._receive_bytes
        threading.Thread(target=self._run, daemon=True).start()

    def describe_end(self) -> str:
        """Return its last words on standard error, or the reason of its end."""
        self._over.wait(END_S)
        words = self._said[ERRORS].decode("utf-8", "replace").strip().splitlines()
        with contextlib.suppress(ValueError, TypeError, LookupError, RecursionError):
            words = words or [str(json.loads(self._said[STATUS])["message"] or "")]
        return "; ".join(words[-2:])

    # --- the thread ---

    def _run(self) -> None:
        """Copy between the websocket and our socket, until either ends."""
        from websocket import WebSocketException

        with contextlib.suppress(OSError, WebSocketException):
            while True:
                self._wait()
                if not self._outgoing:
                    self._take()
                self._outgoing = _push(self._websocket.sock, self._outgoing)
                if not self._incoming and not self._receive():
                    break
                self._incoming = _push(self._ours, self._incoming)
            self._ours.setblocking(True)
            self._ours.sendall(self._incoming)
        self._over.set()
        self._ours.close()
        self._websocket.shutdown()

    def _wait(self) -> None:
        remote = self._websocket.sock
        if not self._incoming and isinstance(remote, ssl.SSLSocket) and remote.pending():
            return
        waiting = poll()
        waiting.register(self._ours, (0 if self._outgoing else POLLIN) | (POLLOUT if self._incoming else 0))
        waiting.register(remote, (0 if self._incoming else POLLIN) | (POLLOUT if self._outgoing else 0))
        waiting.poll()

    def _take(self) -> None:
        with contextlib.suppress(*AGAIN):
            data = self._ours.recv(PIECE_BYTES)
            if not data:
                raise ConnectionResetError
            self._outgoing = _make_frame(bytes([IN]) + data)

    def _receive_bytes(self, size: int) -> bytes:
        if (self._buffer.length or 0) > MAX_FRAME_BYTES:
            raise ConnectionError(f"a frame of {self._buffer.length} bytes")
        return bytes(self._recv(size))

    def _receive(self) -> bool:
        """Take a frame; return False at the end."""
        from websocket import ABNF

        try:
            frame = self._websocket.recv_frame()
        except AGAIN:
            return True
        data = frame.data
        if frame.opcode == ABNF.OPCODE_CLOSE:
            return False
        if frame.opcode == ABNF.OPCODE_PING:
            if len(self._outgoing) < 2 * PIECE_BYTES:  # else nobody reads
                self._outgoing += _make_frame(data, ABNF.OPCODE_PONG)
        elif data and frame.opcode in (ABNF.OPCODE_BINARY, ABNF.OPCODE_TEXT, ABNF.OPCODE_CONT):
            if frame.opcode != ABNF.OPCODE_CONT:
                self._channel, data = data[0], data[1:]
            if self._channel == OUT:
                self._incoming = data
            elif self._channel in self._said:
                self._said[self._channel] = (self._said[self._channel] + data)[-SAID_BYTES:]
        return True


def _push(sock: socket.socket, data: bytes) -> bytes:
    """Send as much as a socket takes; return the rest."""
    with contextlib.suppress(*AGAIN):
        while data:
            data = data[sock.send(data) :]
    return data


def has_answered(fd: int, limit_s: float) -> bool:
    """Wait for the first byte of a program's output, which stays there; return False without any."""
    waiting = poll()
    waiting.register(fd, POLLIN)
    if not waiting.poll(limit_s * 1000):
        return False
    with socket.socket(fileno=os.dup(fd)) as there:
        return bool(there.recv(1, socket.MSG_PEEK))


def _make_frame(data: bytes, kind: int | None = None) -> bytes:
    from websocket import ABNF

    return bytes(ABNF.create_frame(data, ABNF.OPCODE_BINARY if kind is None else kind).format())


def _connect(cluster: Cluster, pod: str, argv: Sequence[str]) -> Any:
    """Return the websocket of an exec."""
    from kubernetes.client import ApiException
    from kubernetes.stream.ws_client import create_websocket, get_websocket_url
    from websocket import WebSocketBadStatusException, WebSocketException

    settings, streams = cluster.api.configuration, ("stdin", "stdout", "stderr")
    words = [("container", CONTAINER), *((name, "true") for name in streams), *(("command", w) for w in argv)]
    url = get_websocket_url(f"{settings.host}{cluster.locate('Pod', pod)}/exec", words)
    with cluster.translate(f"run a program in pod {pod}"):
        headers = {one["key"]: one["value"] for one in settings.auth_settings().values()}
        try:
            return _call_in_time(lambda: create_websocket(settings, url, headers))
        except WebSocketBadStatusException as e:
            refused = ApiException(e.status_code, str(e).partition(" -+-+- ")[0])
            refused.body = (e.resp_body or b"").decode("utf-8", "replace")
            raise refused from e
        except (WebSocketException, *NONSENSE) as e:  # of a handshake
            raise explain_connection(str(e), cluster.place) from e


def _call_in_time(connect: Callable[[], Any]) -> Any:
    """Return the websocket that `connect` returns. The library's connect has no limit; a late one is closed.

    Raises TimeoutError, and all errors of `connect`.
    """
    made = begin_apart(connect)
    try:
        return made.result(LIMIT_S)
    except TimeoutError:
        made.add_done_callback(lambda late: late.exception() or late.result().shutdown())
        raise TimeoutError(f"no answer within {LIMIT_S:g} s") from None
