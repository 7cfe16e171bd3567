"""Proxies on the way to a listener, which cut connections or keep what was said."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator, Sequence

from support.pservers import HOST, bind_block


class CuttingProxy:
    """Forwards to `target`; the k-th connection is cut after `cuts[k]` bytes from the client.

    A negative number counts bytes from the server. Connections beyond the list are never cut.
    """

    def __init__(self, listener: socket.socket, target: tuple[str, int], cuts: Sequence[int]) -> None:
        self._listener, self.target = listener, target
        self.endpoint: tuple[str, int] = (HOST, listener.getsockname()[1])
        self.cuts = list(cuts)  # of the connections to come
        self.cut = 0  # connections that were cut
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
            stack.enter_context(self._woken)
            stack.enter_context(self._listener)
            selector.register(self._woken, selectors.EVENT_READ)
            selector.register(self._listener, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._woken:
                        return
                    if key.fileobj is self._listener:
                        self._accept(selector, stack)
                    elif selector.get_map().get(key.fd) is key:  # not of a connection closed just now
                        self._forward(selector, key)

    def _accept(self, selector: selectors.BaseSelector, stack: contextlib.ExitStack) -> None:
        client = stack.enter_context(self._listener.accept()[0])
        server = stack.enter_context(socket.create_connection(self.target))
        limit = self.cuts.pop(0) if self.cuts else None
        left = {"up": limit if limit and limit > 0 else None, "down": -limit if limit and limit < 0 else None}
        selector.register(client, selectors.EVENT_READ, (client, server, "up", left))
        selector.register(server, selectors.EVENT_READ, (server, client, "down", left))

    def _forward(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        source, sink, way, left = key.data
        try:
            data = source.recv(min(65536, left[way] or 65536))
            self._pass_on(sink, way, data)
        except OSError:
            data = b""
        if left[way] is not None:
            left[way] -= len(data)
        if not data or left[way] == 0:
            self.cut += left[way] == 0
            for sock in (source, sink):
                selector.unregister(sock)
                sock.close()

    def _pass_on(self, sink: socket.socket, way: str, data: bytes) -> None:
        sink.sendall(data)

    def close(self) -> None:
        """Close all connections and wait for the thread."""
        self._wake.close()
        self._thread.join()


class Tap(CuttingProxy):
    """Cuts nothing; `said` has for each connection, in order, all bytes of the side that dialled."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.said: list[bytearray] = []
        self._servers: list[socket.socket] = []
        self._lock = threading.Lock()  # what is inserted goes between two pieces
        super().__init__(bind_block(1)[0], target, ())

    def insert(self, number: int, data: bytes) -> None:
        """Say this on a connection that is there, as if it came from who dialled."""
        with self._lock:
            self._servers[number].sendall(data)

    def _pass_on(self, sink: socket.socket, way: str, data: bytes) -> None:
        with self._lock:
            if way == "up":
                if sink not in self._servers:
                    self._servers.append(sink)
                    self.said.append(bytearray())
                self.said[self._servers.index(sink)] += data
            sink.sendall(data)


@contextlib.contextmanager
def cutting(endpoints: Sequence[tuple[str, int]], cuts: Sequence[int]) -> Iterator[list[CuttingProxy]]:
    """A proxy before the first port of each pserver, all with the same cuts."""
    proxies = []
    try:
        for endpoint in endpoints:
            proxies.append(CuttingProxy(bind_block(1)[0], endpoint, cuts))
        yield proxies
    finally:
        for proxy in proxies:
            proxy.close()
