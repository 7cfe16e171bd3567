"""A package goes down a chain of nodes while it still comes: a head and the dispatch of each node."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pslaunch.node.dispatch.dispatch import Dispatch
from pslaunch.node.dispatch.filling import Filling
from pslaunch.node.line.wire import Data, MessageLine
from pslaunch.node.link import Link
from pslaunch.node.loop import Loop
from support.desk import QuietDesk
from support.lines import open_line
from support.packages import job_on, list_source
from support.process import open_below

SECRET = b"s" * 32
MB = 1 << 20
SIZE = 20 * MB


class Node:
    """A node's part, with a line to the head; orders to fetch are held back."""

    def __init__(self, loop: Loop, workspace: Path, fd: int, fetches: list[tuple[Node, Any]]) -> None:
        self.workspace, self.fetches = workspace, fetches
        self.refused: list[Exception] = []
        self.come = 0  # bytes from the head
        self.line = open_line(loop, fd, self.obey, lost_after_s=60, on_data=self.take)
        self.filling = Filling(
            loop, str(workspace), SECRET, say=self.line.send, answer=lambda work: work(),
            refuse=self.refused.append,
        )  # fmt: skip

    def obey(self, m: Any) -> None:
        if m["type"] == "fetch":
            self.fetches.append((self, m))
        elif m["type"] != "hello":
            getattr(self.filling, f"order_{m['type']}")(m)

    def take(self, piece: Data) -> None:
        self.come += len(piece.data)
        self.filling.take(piece)

    @property
    def received(self) -> int:
        receiver = self.filling._receiver
        return receiver._progress["received"] if receiver else SIZE

    def damage(self) -> None:
        """Change the beginning of the content that is coming."""
        staged = self.workspace / ".pslaunch/dispatch/staged"
        (part,) = (path for path in staged.iterdir() if path.stat().st_size > 100)
        with part.open("r+b") as f:
            f.write(bytes(100))


class Chain(QuietDesk):
    """A head and its nodes on one loop, from the offer of the package to the end."""

    def __init__(self, tmp_path: Path, count: int) -> None:
        super().__init__()
        self.folder = tmp_path / "package"
        self.loop = Loop()
        self.placed = job_on(self.folder, count)
        self.links: dict[int, Link] = {}
        self.nodes: list[Node] = []
        self.fetches: list[tuple[Node, Any]] = []  # in order: each from an earlier one, or the first node
        self.source = list_source(self.folder)
        for place in self.placed.nodes:
            near, far = (s.detach() for s in socket.socketpair())
            self.links[place.id] = Link(place, self.listen(near, place.id), lambda: "")
            self.links[place.id].addrs = ["127.0.0.1"]
            self.nodes.append(Node(self.loop, tmp_path / f"ws{place.id}", far, self.fetches))
        self.dispatch = Dispatch(self.loop, self, self)

    def listen(self, fd: int, node: int) -> MessageLine[Any]:
        def heard(m: Any) -> None:
            if m["type"] != "hello":
                getattr(self.dispatch, f"on_{m['type']}")(self.links[node], m)

        return open_line(self.loop, fd, heard, lost_after_s=60)

    def until(self, is_so: Callable[[], bool]) -> None:
        self.loop.run(lambda: is_so() or bool(self.failed) or any(n.refused for n in self.nodes))
        assert not self.failed and not any(n.refused for n in self.nodes)

    def close(self) -> None:
        for node in self.nodes:
            node.filling.close()
            node.line.close()
        for link in self.links.values():
            link.line.close()
        self.loop.run(lambda: not any(open_below(node.workspace) for node in self.nodes))
        self.loop.close()


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "a").write_text("small")
    (folder / "b").write_bytes(os.urandom(SIZE - 10))
    (folder / "c").write_text("other")
    with contextlib.closing(Chain(tmp_path, 4)) as made:
        yield made


@pytest.mark.timeout(180)
def test_content_damaged_on_a_disk_of_the_chain_never_counts(chain: Chain) -> None:
    """But on that disk itself, where nobody reads it again."""
    chain.dispatch.begin(lambda: chain.over.append(True))
    chain.until(lambda: len(chain.fetches) == 3)
    (second, m), *others = chain.fetches
    second.filling.order_fetch(m)
    chain.until(lambda: second.received > SIZE // 4)
    assert second.received < SIZE
    second.damage()
    for node, m in others:
        node.filling.order_fetch(m)
    chain.until(lambda: bool(chain.over))
    assert others[0][0].come > SIZE // 2  # from the head, as its source's content was wrong
    content = (chain.folder / "b").read_bytes()
    for node in chain.nodes:
        assert (node is second) == ((node.workspace / "b").read_bytes() != content)
