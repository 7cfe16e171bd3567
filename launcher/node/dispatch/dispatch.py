"""The head's part of a dispatch: fills nodes with their missing files, reports progress to observers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from pslaunch.runtime.shared.env import TRAINER

from .. import codes, job
from ..link import JobFailure
from ..listing import show_few
from ..loop import Aside, Loop
from ..shapes import check_shape, is_count, is_port
from .data_shards import DataShards
from .manifest import MAX_NAMED, Want
from .routes import PASS_ON_BYTES, Routes
from .sender import Sender, Source

if TYPE_CHECKING:
    from ..link import Desk, Link
    from ..messages import DispatchedMsg, FillingMsg, LacksMsg, ReceivedMsg, ServingMsg
    from .manifest import Entry

    # From all entries to those of each node.
    Parts = Callable[[Sequence[Entry]], Callable[[int], list[Entry]]]
    Then = Callable[[Source], None]
    Fail = Callable[[Exception], None]
    Tell = Callable[[FillingMsg], None]


class Supply(Protocol):
    """Source of the package: a folder of the launcher's machine, or of node 0."""

    filled: frozenset[int]  # nodes that have it before others get it

    def get(self, then: Then, fail: Fail, mine: Parts | None, tell: Tell) -> None:
        """Call `then` or `fail` once the folder is listed, or filled itself.

        `mine` selects each node's entries; `tell` gets the progress of filling it.
        """


class Dispatch:
    def __init__(self, loop: Loop, desk: Desk, supply: Supply | None) -> None:
        self._loop, self._desk, self._supply = loop, desk, supply
        self._aside: Aside | None = None
        self._source: Source | None = None  # once it is listed
        self._senders: dict[int, Sender] = {}
        self._progress: dict[int, dict[str, int]] = {}  # of nodes with missing files
        self._unfilled: set[int] = set()
        self._began_s = 0.0
        self._passed_on = False  # nodes pass the package on to each other
        self._sources = Routes(self._order_serve, self._order_fetch)

    def has_to_fill(self, node: job.Node) -> bool:
        """Check if this node gets the package from us or from another node."""
        return node.dispatched and self._supply is not None and node.id not in self._supply.filled

    def begin(self, then: Callable[[], None], only: Container[int] | None = None) -> None:
        """Fill all nodes that need it, or `only` these, whose agents are new; then call `then`."""
        supply, nodes = self._supply, self._desk.placed.nodes
        if supply is None or self._desk.placed.plan.package is None:
            then()
            return
        # A folder that nodes share is filled once, with the files of all of them.
        shared = {n.id: self._desk.links[n.id].shared for n in nodes}
        first = {node: node if other is None else other for node, other in shared.items()}
        self._warn_of_shared_data_shards(first)
        filled = {first[node] for node in supply.filled}
        wanting = [n.id for n in nodes if n.dispatched and first[n.id] == n.id and n.id not in filled]
        links = [self._desk.links[node] for node in wanting if only is None or node in only]
        mine = split_by_node(self._desk.placed, first)
        self._then, self._began_s = then, self._loop.now()
        send = functools.partial(self._send, links, mine)
        if self._source:
            send(self._source)
        else:
            supply.get(send, self._fail, mine, lambda m: self.on_filling(self._desk.links[0], m))

    def _warn_of_shared_data_shards(self, first: Mapping[int, int]) -> None:
        """Warn of shared folders: all their trainers see all files. `first`: owner of each node's folder."""
        package = self._desk.placed.plan.package
        if not package or not package.data_shards:
            return
        for owner in sorted(set(first.values())):
            hosts = [self._desk.links[node].host for node, other in sorted(first.items()) if other == owner]
            if len(hosts) > 1:
                text = (
                    f"{package.data_shard_label}: {show_few(hosts, MAX_NAMED)} share one folder; "
                    "each of their trainers sees the files of all of them there"
                )
                self._desk.tell("note", level="warning", text=text)

    def _send(self, links: list[Link], mine: Parts | None, source: Source) -> None:
        self._aside = Aside(self._loop)
        self._passed_on = mine is None and len(links) > 1 and not self._source
        self._source = source
        self._unfilled = {link.node.id for link in links}
        part = mine(source.entries) if mine else None
        for link in links:
            if not link.gone and not self._desk.is_ending:
                own = source.make_part(part(link.node.id)) if part else source
                self._senders[link.node.id] = Sender(self._aside, own, link.line, fail=self._fail)
        self._end_if_filled()

    def _fail(self, e: Exception) -> None:
        code, text = codes.explain_failure(e)
        self._desk.fail(JobFailure("the package", 0, code, text))

    def on_lacks(self, link: Link, m: LacksMsg) -> None:
        sender, node = self._senders[link.node.id], link.node.id

        def answer(wants: list[Want]) -> None:
            # A node to which we send may ask again, if the rest of an earlier try is corrupt: we send it too.
            ours, missing = m["alone"] or sender.total_bytes > 0, sender.count_bytes(wants)
            if self._passed_on and not ours and missing >= PASS_ON_BYTES:
                self._sources.want(node, missing, lambda: sender.send(wants))
            else:
                sender.send(wants)
                self._sources.take_from_head(node, missing)

        def refuse(e: Exception) -> None:
            self._desk.fail(link.make_failure(codes.NODE_LOST, f"asks for {e}"))

        sender.read_request(m, answer, refuse)

    def _order_serve(self, node: int) -> None:
        link = self._desk.links[node]
        link.line.send({"type": "serve", "addr": link.node.addr})

    def _order_fetch(self, node: int, server: int, port: int) -> None:
        addrs = self._desk.links[server].addrs
        self._desk.links[node].line.send({"type": "fetch", "addrs": addrs, "port": port})

    def on_serving(self, link: Link, m: ServingMsg) -> None:
        check_shape(m["port"], is_port, "port")
        self._sources.note_serving(link.node.id, m["port"])

    def on_filling(self, link: Link, m: FillingMsg) -> None:
        node = link.node.id
        check_shape(m, {"files": is_count, "bytes": is_count, "received": is_count}, "filling")
        self._progress[node] = {"files": m["files"], "bytes": m["bytes"], "received": m["received"]}
        state = "waiting" if node in self._sources.wanting else str(m["state"])
        source = self._sources.servers.get(node)
        self._desk.tell("dispatch", node=node, state=state, source=source, **self._progress[node])

    def on_received(self, link: Link, m: ReceivedMsg) -> None:
        self._senders[link.node.id].grant(m)

    def on_dispatched(self, link: Link, _m: DispatchedMsg) -> None:
        if link.node.id not in self._unfilled:
            raise ValueError("nothing was dispatched to it")
        self._unfilled.remove(link.node.id)
        self._sources.note_filled(link.node.id)
        self._end_if_filled()

    def _end_if_filled(self) -> None:
        if self._unfilled or self._desk.is_ending or self._aside is None:
            return
        self._aside.close()
        self._aside = None
        self._desk.tell(
            "dispatch",
            node=None,
            state="done",
            nodes=len(self._progress),
            files=sum(progress["files"] for progress in self._progress.values()),
            bytes=sum(progress["bytes"] for progress in self._progress.values()),
            sent=sum(sender.total_bytes for sender in self._senders.values()),  # by the head itself
            elapsed_s=round(self._loop.now() - self._began_s, 3),
        )
        self._then()


def split_by_node(placed: job.Placed, first: Mapping[int, int]) -> Parts | None:
    """Return a function from entries to those of each node, None if all get all.

    first: owner of a node's folder, if another. Each path is matched once for all nodes.
    """
    patterns = placed.plan.package.data_shards if placed.plan.package else ()
    if not patterns:
        return None
    trainers = placed.list_processes(TRAINER)
    owners = {p.rank: first.get(p.node, p.node) for p in trainers}

    def split(entries: Sequence[Entry]) -> Callable[[int], list[Entry]]:
        find_number = DataShards(patterns).find_number
        numbers = [find_number(e.path) if e.kind != "d" else None for e in entries]
        of: dict[int | None, list[int]] = {}  # places of entries by their taker; None: everybody
        for i, n in enumerate(numbers):
            of.setdefault(None if n is None or not trainers else owners[n % len(trainers)], []).append(i)
        return lambda node: [entries[i] for i in sorted(of.get(None, []) + of.get(first.get(node, node), []))]

    return split
