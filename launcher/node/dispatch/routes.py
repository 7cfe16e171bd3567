"""Sources of a package for nodes that lack it: the head for one, then other nodes. Pure.

Each source serves one node at a time. A node that has the whole package serves any other, so small packages
spread by doubling. A node that still receives passes a large one on at once: so nodes form a chain, which
takes the time of one transfer and of what is on its way in each link; doubling takes one in each round.
"""

from __future__ import annotations

from collections.abc import Callable

PASS_ON_BYTES = 4 * 1024 * 1024  # a smaller package is sent by the head to each node
LINK_BYTES = 4 * 1024 * 1024  # a further link of a chain costs as much time as these


class Routes:
    """Sources of all nodes of one dispatch; each change gives the orders that follow.

    serve: this node shall listen for another; fetch: a node shall get the package from a server at this port.
    """

    def __init__(self, serve: Callable[[int], None], fetch: Callable[[int, int, int], None]) -> None:
        self._serve, self._fetch = serve, fetch
        # Nodes without a source, their missing bytes, and what lets the head send to them.
        self.wanting: dict[int, tuple[int, Callable[[], None]]] = {}
        self._head_sends = False  # to one of them
        self._links: dict[int, int] = {}  # of nodes that can serve: links of their chain that still grow
        self._missing: dict[int, int] = {}  # bytes of nodes that have a source and are not filled
        self._asked: set[int] = set()  # nodes ordered to listen
        self._ports: dict[int, int] = {}  # of nodes that listen
        self.servers: dict[int, int] = {}  # of nodes that fetch

    def want(self, node: int, missing: int, send: Callable[[], None]) -> None:
        self.wanting[node] = missing, send
        self._assign()

    def take_from_head(self, node: int, missing: int) -> None:
        """Note that the head sends to a node, which may have lost its server."""
        self.servers.pop(node, None)
        self._begin(node, missing, 1)
        self._assign()

    def note_serving(self, node: int, port: int) -> None:
        """Use a node that listens. Raises ValueError if it was not asked to."""
        if node not in self._asked or node in self._ports:
            raise ValueError("it was not asked to serve")
        self._ports[node] = port
        self._assign()

    def note_filled(self, node: int) -> None:
        self.wanting.pop(node, None)
        self.servers.pop(node, None)
        self._missing.pop(node, None)
        self._links[node] = 0
        self._assign()

    def _begin(self, node: int, missing: int, links: int) -> None:
        self._links[node], self._missing[node] = links, missing

    def _assign(self) -> None:
        idle = self._ports.keys() - self.servers.values()
        while self.wanting:
            node, (missing, send) = next(iter(self.wanting.items()))
            servers = sorted((self._links[server], server) for server in idle if self._pays(server))
            if servers:
                links, server = servers[0]
                idle.remove(server)
                self.servers[node] = server
                self._begin(node, missing, links + 1)
                self._fetch(node, server, self._ports[server])
            elif not self._head_sends:
                self._head_sends = True
                self._begin(node, missing, 1)
                send()
            else:
                break
            del self.wanting[node]
        # Also for a node that asks after all others are filled.
        asked = len(self._asked - self._ports.keys())
        for node in self._links:
            if asked < len(self.wanting) and node not in self._asked and self._pays(node):
                self._asked.add(node)
                asked += 1
                self._serve(node)

    def _pays(self, server: int) -> bool:
        """Check that a further link after this node takes less time than the rest of its own transfer."""
        return server not in self._missing or self._links[server] < self._missing[server] // LINK_BYTES
