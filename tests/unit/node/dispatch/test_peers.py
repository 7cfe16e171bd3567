"""A node gets a package from another one, or the rest of it from the head."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pslaunch.node.dispatch.filling import Filling
from pslaunch.node.dispatch.peers import REQUEST, Serving
from pslaunch.node.dispatch.sender import Sender, Source, encode_numbers
from pslaunch.node.line import gate
from pslaunch.node.line.wire import Data, Line
from pslaunch.node.loop import Aside, Loop
from support.lines import open_line
from support.packages import list_source
from support.process import open_below

SECRET = b"s" * 32
SIZE = 12_000_000


class Nodes:
    """A head that sends only the rest, a node that has the package, as `served`, and another without it."""

    def __init__(
        self, source: Source, workspace: Path, secret: bytes = SECRET, served: Source | None = None
    ) -> None:
        self.loop = Loop()
        near, far = socket.socketpair()
        self.ends: list[Exception | None] = []
        self.told: list[Any] = []
        self.come = 0
        self.stop_after_bytes = 2 * SIZE
        self.head = open_line(self.loop, near.detach(), self.heard)
        self.node = open_line(self.loop, far.detach(), self.ordered, on_data=self.count)
        self.filling = Filling(
            self.loop, str(workspace), secret, say=self.say, answer=lambda work: work(),
            refuse=self.ends.append,
        )  # fmt: skip
        self.take, self.filling.take = self.filling.take, self.count  # type: ignore[method-assign]
        self.serving = Serving(self.loop, "127.0.0.1", SECRET, served or source)
        self.secret = secret
        self.aside = Aside(self.loop)
        self.sender = Sender(self.aside, source, self.head, fail=self.ends.append)

    def say(self, m: Any) -> None:
        if m["type"] == "dispatched":
            self.ends.append(None)
        elif m["type"] == "filling":
            self.told.append(m)
        else:
            self.node.send(m)

    def count(self, piece: Data) -> None:
        self.come += len(piece.data)
        if self.come > self.stop_after_bytes:
            self.stop_after_bytes = 2 * SIZE
            self.serving.close()
        self.take(piece)

    def heard(self, m: Any) -> None:
        if m["type"] == "lacks" and not m["alone"]:
            self.head.send({"type": "fetch", "addrs": ["127.0.0.1"], "port": self.serving.port})
        else:
            self.sender.obey(m, self.ends.append)

    def ordered(self, m: Any) -> None:
        if m["type"] == "dispatch":
            self.filling.order_dispatch(m)
        elif m["type"] == "fetch":
            self.filling.order_fetch(m)

    def close(self) -> None:
        self.serving.close()
        self.filling.close()
        self.aside.close()
        self.head.close()
        self.node.close()
        self.loop.close()


@pytest.fixture
def source(tmp_path: Path) -> Source:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "large").write_bytes(os.urandom(SIZE))
    (folder / "small").write_text("small")
    return list_source(folder)


@pytest.fixture(params=[SECRET, b"x" * 32], ids=["secret", "wrong"])
def nodes(source: Source, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Nodes]:
    with contextlib.closing(Nodes(source, tmp_path / "ws", request.param)) as made:
        yield made


def whole(source: Source, workspace: Path) -> bool:
    folder = workspace.parent / "source"
    return all((workspace / e.path).read_bytes() == (folder / e.path).read_bytes() for e in source.entries)


def test_head_sends_nothing_while_another_node_does(nodes: Nodes, source: Source, tmp_path: Path) -> None:
    nodes.loop.run(lambda: bool(nodes.ends))
    assert nodes.ends == [None] and whole(source, tmp_path / "ws")
    # Without the job's secret nothing is had from another node.
    assert nodes.sender.total_bytes == (0 if nodes.secret == SECRET else SIZE + 5)
    assert nodes.told[-1]["received"] == nodes.told[-1]["bytes"] == SIZE + 5


def test_head_sends_the_rest_after_the_loss_of_the_other_node(
    nodes: Nodes, source: Source, tmp_path: Path
) -> None:
    nodes.stop_after_bytes = SIZE // 2
    nodes.loop.run(lambda: bool(nodes.ends))
    assert nodes.ends == [None] and whole(source, tmp_path / "ws")
    if nodes.secret == SECRET:
        assert 0 < nodes.sender.total_bytes <= SIZE // 2 + 5 * 1024 * 1024
    assert nodes.told[-1]["received"] == nodes.told[-1]["bytes"] == SIZE + 5


def test_content_damaged_on_the_disk_of_the_other_node_comes_from_the_head(
    source: Source, tmp_path: Path
) -> None:
    shutil.copytree(tmp_path / "source", tmp_path / "other")
    large = source.entries[0]
    with (tmp_path / "other" / large.path).open("r+b") as f:
        f.write(bytes(100))
    os.utime(f.name, ns=(large.mtime_ns, large.mtime_ns))
    served = Source(str(tmp_path / "other"), source.entries)
    with contextlib.closing(Nodes(source, tmp_path / "ws", served=served)) as nodes:
        nodes.loop.run(lambda: bool(nodes.ends))
        assert nodes.ends == [None] and whole(source, tmp_path / "ws")
        assert nodes.sender.total_bytes >= SIZE


@pytest.mark.timeout(60)
@pytest.mark.parametrize("first", ["peer", "server"])
def test_peer_that_leaves_while_served_is_forgotten(source: Source, tmp_path: Path, first: str) -> None:
    loop, folder = Loop(), tmp_path / "source"
    serving = Serving(loop, "127.0.0.1", SECRET, source)
    reached: list[Line] = []
    loop.do_aside(lambda: gate.dial(["127.0.0.1"], serving.port, SECRET, REQUEST, 3.0), reached.append)
    loop.run(lambda: bool(reached))
    come: list[Data] = []
    line = open_line(loop, reached[0], on_data=come.append)
    line.send({"type": "lacks", "manifest": False, "files": encode_numbers([0]), "offsets": {}})
    loop.run(lambda: bool(come))
    assert open_below(folder)
    if first == "peer":
        line.close()
        loop.run(lambda: not open_below(folder) and not serving._peers)
    serving.close()
    loop.run(lambda: not open_below(folder))
    assert not serving._peers
    line.close()
    loop.close()
