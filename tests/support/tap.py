"""A proxy that keeps what the side that dials has said, and says again of it what a test wants."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator

from support.pservers import HOST, bind_block


class Tap:
    """Forwards connections to `target`; `said` has for each, in order, all bytes of the side that dialled."""

    def __init__(self, target: tuple[str, int]) -> None:
        (self._listener,) = bind_block(1)
        self.endpoint: tuple[str, int] = (HOST, self._listener.getsockname()[1])
        self.target = target
        self.said: list[bytearray] = []
        self._servers: list[socket.socket] = []
        self._lock = threading.Lock()  # what is inserted goes between two pieces
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def insert(self, number: int, data: bytes) -> None:
        """Say this on a connection that is there, as if it came from who dialled."""
        with self._lock:
            self._servers[number].sendall(data)

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
            for sock in (self._woken, self._listener):
                stack.enter_context(sock)
                selector.register(sock, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._woken:
                        return
                    if key.fileobj is self._listener:
                        self._accept(selector, stack)
                    else:
                        self._forward(selector, key)

    def _accept(self, selector: selectors.BaseSelector, stack: contextlib.ExitStack) -> None:
        client = stack.enter_context(self._listener.accept()[0])
        server = stack.enter_context(socket.create_connection(self.target))
        self.said.append(bytearray())
        self._servers.append(server)
        selector.register(client, selectors.EVENT_READ, (server, self.said[-1]))
        selector.register(server, selectors.EVENT_READ, (client, None))

    def _forward(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        source, (sink, kept) = key.fileobj, key.data
        assert isinstance(source, socket.socket)
        data = b""
        with contextlib.suppress(OSError):
            data = source.recv(65536)
        if kept is not None:
            kept += data
        with self._lock, contextlib.suppress(OSError):
            if data:
                sink.sendall(data)
            else:
                sink.shutdown(socket.SHUT_WR)
        if not data:
            selector.unregister(source)

    def close(self) -> None:
        """Close all connections and wait for the thread."""
        self._wake.close()
        self._thread.join()


@contextlib.contextmanager
def tapping(target: tuple[str, int]) -> Iterator[Tap]:
    """A tap before this address, closed in the end."""
    tap = Tap(target)
    try:
        yield tap
    finally:
        tap.close()
