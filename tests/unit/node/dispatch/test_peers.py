"""A node gets a package from another one, or the rest of it from the head."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pslaunch.node.dispatch.manifest import Hashes, add_hashes, walk_folder
from pslaunch.node.dispatch.peers import Fetching, Serving
from pslaunch.node.dispatch.receiver import Receiver
from pslaunch.node.dispatch.sender import Sender, Source
from pslaunch.node.line import gate
from pslaunch.node.line.gate import Seals
from pslaunch.node.line.wire import HEADER, MAX_DATA_BYTES, Data, MessageLine, encode_data_head
from pslaunch.node.loop import Aside, Loop, ignore
from support.process import open_below

SECRET = b"s" * 32
SIZE = 12_000_000


class Tamperer:
    """A way to a port on which one byte of what comes back is changed."""

    def __init__(self, port: int, at: int) -> None:
        """`at`: place of the byte in the frame of a piece."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port, self._target, self._at = self._listener.getsockname()[1], port, at
        self.tampered = 0
        self._threads = [threading.Thread(target=self._run)]
        self._threads[0].start()

    def _run(self) -> None:
        with self._listener, contextlib.suppress(OSError):
            client = self._listener.accept()[0]
            with client, socket.create_connection(("127.0.0.1", self._target)) as server:
                up = threading.Thread(target=self._forward, args=(client, server, False))
                self._threads.append(up)
                up.start()
                self._forward(server, client, True)
                up.join()

    def _forward(self, source: socket.socket, target: socket.socket, tampers: bool) -> None:
        begin = encode_data_head(Data(0, 0, bytes(MAX_DATA_BYTES)))[: HEADER.size]
        with contextlib.suppress(OSError):
            while data := bytearray(source.recv(1 << 16)):
                found = data.find(begin) if tampers and not self.tampered else -1
                if 0 <= found < len(data) - self._at:
                    data[found + self._at] ^= 1
                    self.tampered += 1
                target.sendall(data)
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()


class Nodes:
    """A head that sends only the rest, a node that has the package, and another without it."""

    def __init__(self, source: Source, workspace: Path, secret: bytes) -> None:
        self.loop = Loop()
        near, far = socket.socketpair()
        self.ends: list[Exception | None] = []
        self.told: list[Any] = []
        self.come, self.gone = 0, False
        self.stop_after_bytes = 2 * SIZE
        head, node = near.detach(), far.detach()
        self.head: MessageLine[Any] = MessageLine(
            self.loop, head, head, lost_after_s=30, on_message=self.heard, on_lost=print
        )
        self.node: MessageLine[Any] = MessageLine(
            self.loop, node, node, lost_after_s=30, on_message=self.ordered, on_lost=print,
            on_data=lambda piece: self.receiver.take(piece),
        )  # fmt: skip
        self.receiver = Receiver(
            self.loop, str(workspace), say=self.node.send, end=self.ends.append, tell=self.told.append
        )
        self.take, self.receiver.take = self.receiver.take, self.count  # type: ignore[method-assign]
        self.serving = Serving(self.loop, "127.0.0.1", SECRET, source)
        self.port = self.serving.port
        self.fetching: Fetching | None = None
        self.secret = secret
        self.aside = Aside(self.loop)
        failed = self.ends.append
        self.sender = Sender(self.aside, source, self.head, fail=failed)

    def count(self, piece: Data) -> None:
        self.come += len(piece.data)
        if self.come > self.stop_after_bytes:
            self.stop_after_bytes = 2 * SIZE
            self.gone = True
            self.serving.close()
        self.take(piece)

    def heard(self, m: Any) -> None:
        if m["type"] == "received":
            self.sender.grant(m)
        elif m["type"] == "lacks" and m["alone"]:
            self.sender.send_lacking(m)
        elif m["type"] == "lacks":
            self.head.send({"type": "fetch", "port": self.port})

    def ordered(self, m: Any) -> None:
        if m["type"] == "dispatch":
            self.receiver.take_offer(m)
        elif m["type"] == "fetch":
            self.fetching = Fetching(self.loop, self.receiver, ["127.0.0.1"], m["port"], self.secret)

    def close(self) -> None:
        if not self.gone:
            self.serving.close()
        if self.fetching:
            self.fetching.close()
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
    return Source(str(folder), add_hashes(walk_folder(str(folder)), Hashes(f"{folder}.hashes")).entries)


@pytest.fixture(params=[SECRET, b"x" * 32], ids=["secret", "wrong"])
def nodes(source: Source, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Nodes]:
    made = Nodes(source, tmp_path / "ws", request.param)
    yield made
    made.close()


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


@pytest.mark.timeout(60)
@pytest.mark.parametrize("at", [HEADER.size, 1000], ids=["head", "content"])
@pytest.mark.parametrize("nodes", [SECRET], indirect=True, ids=["secret"])
def test_byte_changed_on_its_way_never_counts(nodes: Nodes, source: Source, tmp_path: Path, at: int) -> None:
    with contextlib.closing(Tamperer(nodes.serving.port, at)) as tamperer:
        nodes.port = tamperer.port
        nodes.loop.run(lambda: bool(nodes.ends))
        assert nodes.ends == [None] and whole(source, tmp_path / "ws")
        assert tamperer.tampered == 1
        assert nodes.sender.total_bytes  # the head sent the rest, or again
        assert nodes.told[-1]["received"] == nodes.told[-1]["bytes"]
        assert nodes.fetching
        nodes.fetching.close()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("first", ["peer", "server"])
def test_peer_that_leaves_while_served_is_forgotten(source: Source, tmp_path: Path, first: str) -> None:
    loop, folder = Loop(), tmp_path / "source"
    serving = Serving(loop, "127.0.0.1", SECRET, source)
    reached: list[tuple[int, Seals]] = []

    def dial() -> None:
        reached.append(gate.dial(["127.0.0.1"], serving.port, SECRET, b'{"files": true}', 3.0))

    loop.do_aside(dial, ignore)
    loop.run(lambda: bool(reached))
    fd, seals = reached[0]
    come: list[Data] = []
    line: MessageLine[Any] = MessageLine(
        loop, fd, fd, lost_after_s=30, on_message=lambda _m: None, on_lost=lambda _why: None,
        on_data=come.append, seals=seals,
    )  # fmt: skip
    line.send({"type": "lacks", "manifest": False, "files": [0, 1], "offsets": {}})
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
