"""The head's part of a dispatch: nodes get what they lack of the package, observers hear how far it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from pslaunch.runtime.shared.env import TRAINER

from .. import codes, job
from ..codes import Refusal, code_of
from ..line.wire import NONSENSE
from ..listing import show_few
from ..loop import Aside, Loop
from .data_shards import Shards
from .manifest import MAX_NAMED
from .sender import Sender, Source

if TYPE_CHECKING:
    from ..link import Desk, Link
    from ..messages import Filling, Lacks, Received
    from .manifest import Entry

    # Of all entries, those for each node.
    Parts = Callable[[Sequence[Entry]], Callable[[int], list[Entry]]]

PASS_ON_BYTES = 4 * 1024 * 1024


class Supply(Protocol):
    """Where the package comes from: a folder of the launcher's machine, or of node 0."""

    filled: frozenset[int]  # nodes that have it before others get it

    def get(
        self,
        then: Callable[[Source], None],
        failed: Callable[[Exception], None],
        mine: Parts | None,
        tell: Callable[[Filling], None],
    ) -> None:
        """Call one of the first two, once the folder has been looked at, or is filled itself.

        `mine` says which entries are for which node; `tell` hears how far it is filled, if it has to be.
        """
        ...


class Dispatch:
    """Fills nodes; `over` of each is called once its workspace is in place."""

    def __init__(self, loop: Loop, desk: Desk, supply: Supply | None) -> None:
        self._loop, self._desk, self._supply = loop, desk, supply
        self._aside: Aside | None = None
        self._senders: dict[int, Sender] = {}
        self._far: dict[int, dict[str, int]] = {}  # how far the nodes are that lacked something
        self._waiting: set[int] = set()
        self._began_s = 0.0
        self._passed_on = False  # whether nodes pass the package on to each other
        self._hungry: dict[int, Lacks] = {}  # nodes that wait for one that has it, and what they lack
        self._feeding = False  # one gets it from us
        self._spare: list[Link] = []  # nodes that have it and do not listen
        self._called = 0  # how many were asked to, and have not answered
        self._idle: dict[int, int] = {}  # nodes that listen and serve nobody, and their ports
        self._fetching: dict[int, tuple[int, int]] = {}  # nodes that get it from another

    def fills(self, node: job.Node) -> bool:
        """Whether this node is to get the package from us, or from one that did."""
        return node.dispatched and self._supply is not None and node.id not in self._supply.filled

    def begin(self, over: Callable[[], None]) -> None:
        """Fill every node that is to be filled; then call `over`."""
        supply, nodes = self._supply, self._desk.placed.nodes
        if supply is None or not self._desk.placed.plan.package:
            over()
            return
        # A folder that nodes share gets all that any of them is to have, once.
        shared = {n.id: self._desk.links[n.id].shared for n in nodes}
        first = {node: node if other is None else other for node, other in shared.items()}
        self._tell_of_shards(first)
        filled = {first[node] for node in supply.filled}
        wanting = [n.id for n in nodes if n.dispatched and first[n.id] == n.id and n.id not in filled]
        links = [self._desk.links[node] for node in wanting]
        mine = of_nodes(self._desk.placed, first)
        self._over, self._began_s = over, self._loop.now()
        self._waiting = {link.node.id for link in links}
        supply.get(
            lambda source: self._send(source, links, mine), self._failed, mine, lambda m: self.filling(0, m)
        )

    def _tell_of_shards(self, first: Mapping[int, int]) -> None:
        """Trainers of nodes that share a folder see each other's files. `first`: whose folder a node has."""
        package = self._desk.placed.plan.package
        if not package or not package.shards:
            return
        for owner in sorted(set(first.values())):
            hosts = [self._desk.links[node].host for node, other in sorted(first.items()) if other == owner]
            if len(hosts) > 1:
                text = (
                    f"{package.shard_label}: {show_few(hosts, MAX_NAMED)} share one folder; "
                    "each of their trainers sees the files of all of them there"
                )
                self._desk.tell("note", level="warning", text=text)

    def _send(self, source: Source, links: list[Link], mine: Parts | None) -> None:
        self._aside = Aside(self._loop)
        self._passed_on = mine is None and len(links) > 1
        part = mine(source.entries) if mine else None
        for link in links:
            if not link.gone and not self._desk.ending:
                own = source.part(part(link.node.id)) if part else source
                self._senders[link.node.id] = Sender(self._aside, own, link.line, failed=self._failed)
        self._maybe_over()

    def _failed(self, e: Exception) -> None:
        code, text = in_words(e)
        self._desk.fail("the package", 0, code, text)

    def lacks(self, link: Link, m: Lacks) -> None:
        """A node's answer: what is to be sent."""
        sender = self._senders.get(link.node.id)
        if sender and m.get("files"):
            sender.when_read(lambda: self._lacks(link, m))
        else:
            self._lacks(link, m)

    def _lacks(self, link: Link, m: Lacks) -> None:
        try:
            sender = self._senders[link.node.id]
            # Whom we feed may ask again, for what an earlier try left and is no good: nobody else will do.
            ours = m["alone"] or sender.total_bytes > 0
            if self._passed_on and not ours and sender.size(m) >= PASS_ON_BYTES:
                self._hungry[link.node.id] = m
            else:
                self._free(link)  # it may not have reached the one that has it
                sender.lacks(m)
            self._deal()
        except NONSENSE as e:
            self._desk.fail(
                f"node {link.node.id} ({link.host})", link.node.id, codes.NODE_LOST, f"asks for {e}"
            )

    # A large package is sent once; each node that has it passes it on to one other at a time.

    def _deal(self) -> None:
        while self._hungry and (self._idle or not self._feeding):
            node, m = next(iter(self._hungry.items()))
            del self._hungry[node]
            if self._idle:
                server, port = self._idle.popitem()
                self._fetching[node] = server, port
                addrs = self._desk.links[server].addrs
                self._desk.links[node].line.send({"type": "fetch", "addrs": addrs, "port": port})
            else:
                self._feeding = True
                self._senders[node].lacks(m)
        # Whoever comes when all others have it already has to be thought of as well.
        while self._spare and self._called < len(self._hungry):
            link = self._spare.pop()
            self._called += 1
            link.line.send({"type": "serve", "addr": link.node.addr})

    def serving(self, link: Link, port: int) -> None:
        """A node that has the package listens."""
        self._called -= 1
        self._idle[link.node.id] = port
        self._deal()

    def _free(self, link: Link) -> None:
        """This node fetches no more: who served it may serve another."""
        if link.node.id in self._fetching:
            server, port = self._fetching.pop(link.node.id)
            self._idle[server] = port

    def _pass_on(self, link: Link) -> None:
        """A node has got the package: it may give it to those that wait."""
        self._free(link)
        self._spare.append(link)
        self._deal()

    def filling(self, node: int, m: Filling) -> None:
        """How far a node is, wherever it gets the package from."""
        self._far[node] = {"files": int(m["files"]), "bytes": int(m["bytes"]), "received": int(m["received"])}
        state = "waiting" if node in self._hungry else str(m["state"])
        source, _ = self._fetching.get(node, (None, 0))
        self._desk.tell("dispatch", node=node, state=state, source=source, **self._far[node])

    def received(self, link: Link, m: Received) -> None:
        """A node has written so much."""
        if link.node.id in self._senders:
            self._senders[link.node.id].received(m)

    def dispatched(self, link: Link) -> None:
        """A node has all in place."""
        self._waiting.discard(link.node.id)
        self._pass_on(link)
        self._maybe_over()

    def _maybe_over(self) -> None:
        if self._waiting or self._desk.ending or self._aside is None:
            return
        self._aside.close()
        self._aside = None
        self._desk.tell(
            "dispatch",
            node=None,
            state="done",
            nodes=len(self._far),
            files=sum(far["files"] for far in self._far.values()),
            bytes=sum(far["bytes"] for far in self._far.values()),
            sent=sum(sender.total_bytes for sender in self._senders.values()),  # by the head itself
            elapsed_s=round(self._loop.now() - self._began_s, 3),
        )
        self._over()


def of_nodes(placed: job.Placed, first: Mapping[int, int]) -> Parts | None:
    """For each node, which entries it gets; None where all get all. `first`: whose folder a node shares."""
    patterns = placed.plan.package.shards if placed.plan.package else ()
    if not patterns:
        return None
    trainers = placed.of(TRAINER)
    ranks: dict[int, list[int]] = {}  # by whose folder it is
    for p in trainers:
        ranks.setdefault(first.get(p.node, p.node), []).append(p.rank)

    def parts(entries: Sequence[Entry]) -> Callable[[int], list[Entry]]:
        part = Shards(patterns).split(entries, len(trainers))
        return lambda node: part(ranks.get(first.get(node, node), ()))

    return parts


def in_words(e: Exception) -> tuple[int, str]:
    """Exit code and text of what kept a package from being sent."""
    if isinstance(e, Refusal):
        return e.code, str(e)
    if isinstance(e, OSError):
        return code_of(e), f"{e.filename}: {e.strerror}" if e.filename else str(e)
    return codes.IO, f"{type(e).__name__}: {e}"
