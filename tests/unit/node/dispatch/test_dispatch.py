"""The head's part of a dispatch: every node that lacks the package gets it once."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pslaunch.node.dispatch import sender as send
from pslaunch.node.dispatch.data_shards import DataShards
from pslaunch.node.dispatch.dispatch import Dispatch, split_by_node
from pslaunch.node.dispatch.manifest import Entry, decode
from pslaunch.node.dispatch.routes import PASS_ON_BYTES
from pslaunch.node.dispatch.sender import Source, encode_numbers
from pslaunch.node.line.wire import Data, MessageLine
from pslaunch.node.link import JobFailure, Link
from pslaunch.node.loop import Loop
from pslaunch.node.messages import DispatchedMsg, FillingMsg, LacksMsg, ServingMsg
from support.lines import open_line
from support.packages import job_on, list_source

FIRST = encode_numbers([0])
LACKS: LacksMsg = {"type": "lacks", "manifest": False, "files": FIRST, "offsets": {}, "alone": False}
FILLING: FillingMsg = {
    "type": "filling", "state": "sending", "files": 1, "bytes": PASS_ON_BYTES, "received": 0,
}  # fmt: skip
SERVING: ServingMsg = {"type": "serving", "port": 4000}
DISPATCHED: DispatchedMsg = {"type": "dispatched"}


class Desk:
    """A head's desk with scripted nodes, and supply of the package; the orders to the nodes are kept."""

    is_ending = False
    filled: frozenset[int] = frozenset()

    def __init__(self, folder: Path, nodes: int) -> None:
        self.events: list[dict[str, Any]] = []
        self.failed: list[str] = []
        self.over: list[bool] = []
        self.loop = Loop()
        self.placed = job_on(folder, nodes)
        self.links: dict[int, Link] = {}
        self.told: list[list[str]] = [[] for _ in range(nodes)]
        self.come = [0] * nodes  # bytes of files, to each node
        self.source = list_source(folder)
        self._lines: list[MessageLine[Any]] = []
        for node, told in zip(self.placed.nodes, self.told, strict=True):
            head, there = (self._line(s.detach(), told, node.id) for s in socket.socketpair())
            self.links[node.id] = Link(node, head, lambda: "")
            self._lines += [head, there]
        self.give(self.source)

    def give(self, source: Source) -> None:
        """Begin a dispatch of this source."""
        self.source = source
        self.dispatch = Dispatch(self.loop, self, self)
        self.dispatch.begin(lambda: self.over.append(True))

    def get(self, then: Callable[[Source], None], *_others: object) -> None:
        then(self.source)

    def fail(self, failure: JobFailure) -> None:
        self.failed.append(failure.text)

    def tell(self, event: str, **fields: Any) -> None:
        self.events.append(fields)

    def ignore(self, *_said: object) -> None: ...

    count_on = settle = start = ignore

    def _line(self, fd: int, told: list[str], node: int) -> MessageLine[Any]:
        def heard(m: Any) -> None:
            told.append(m["type"])

        def take(piece: Data) -> None:
            self.come[node] += len(piece.data)
            self.dispatch.on_received(self.links[node], {"type": "received", "bytes": len(piece.data)})

        return open_line(self.loop, fd, heard, on_data=take)

    def until(self, node: int, what: str) -> None:
        self.loop.run(lambda: what in self.told[node])

    def close(self) -> None:
        for line in self._lines:
            line.close()
        self.loop.close()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    (tmp_path / "package").mkdir()
    (tmp_path / "package/large").write_bytes(os.urandom(PASS_ON_BYTES))
    made = Desk(tmp_path / "package", 3)
    yield made
    made.close()


def test_shards_on_a_shared_folder_are_reported(desk: Desk, tmp_path: Path) -> None:
    def told() -> list[str]:
        desk.give(desk.source)
        return [e["text"] for e in desk.events if "text" in e]

    desk.placed = job_on(tmp_path, 3, "lar{}")
    for link in desk.links.values():
        link.host = link.node.name
    assert not told()
    desk.links[2].shared = 0
    assert told() == [
        "--shard: n0, n2 share one folder; each of their trainers sees the files of all of them there"
    ]
    desk.placed = job_on(tmp_path, 3)
    assert len(told()) == 1, "without shards all have the same anyway"


@pytest.mark.timeout(60)
def test_late_node_is_served_too(desk: Desk) -> None:
    first, second, third = (desk.links[i] for i in range(3))
    desk.dispatch.on_lacks(first, LACKS)
    desk.dispatch.on_dispatched(first, DISPATCHED)
    desk.dispatch.on_lacks(second, LACKS)  # it had long to look
    desk.until(0, "serve")
    desk.dispatch.on_serving(first, SERVING)
    desk.until(1, "fetch")
    desk.dispatch.on_dispatched(second, DISPATCHED)
    desk.dispatch.on_lacks(third, LACKS)
    desk.until(2, "fetch")
    desk.dispatch.on_dispatched(third, DISPATCHED)
    assert desk.over and not desk.failed
    assert [told.count("serve") for told in desk.told] == [1, 0, 0]


@pytest.mark.timeout(60)
def test_kept_manifest_is_decoded_in_a_thread(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million files take seconds, and a head that is silent for long is lost."""
    readers: list[threading.Thread] = []

    def decoded(data: bytes) -> list[Entry]:
        readers.append(threading.current_thread())
        return decode(data)

    monkeypatch.setattr(send, "decode", decoded)
    desk.give(Source(str(tmp_path / "package"), desk.source.manifest))
    for link in desk.links.values():
        desk.dispatch.on_lacks(link, {**LACKS, "files": ""})
    assert not readers
    for link in desk.links.values():
        desk.dispatch.on_lacks(link, {**LACKS, "alone": True})
    desk.loop.run(lambda: desk.come == [PASS_ON_BYTES] * 3)
    assert len(readers) == 1 and readers[0] is not threading.current_thread()


@pytest.mark.timeout(60)
def test_node_filled_by_the_head_asks_it_again(desk: Desk) -> None:
    """The node's rest of an earlier try was corrupt; another node has the package by then."""
    first, second, third = (desk.links[i] for i in range(3))
    for link in (first, second):
        desk.dispatch.on_lacks(link, LACKS)
    desk.loop.run(lambda: desk.come[0] == PASS_ON_BYTES)
    desk.dispatch.on_dispatched(third, DISPATCHED)
    desk.dispatch.on_serving(third, SERVING)
    desk.until(1, "fetch")
    desk.dispatch.on_dispatched(second, DISPATCHED)
    desk.dispatch.on_lacks(first, LACKS)
    desk.loop.run(lambda: desk.come[0] == 2 * PASS_ON_BYTES)
    assert "fetch" not in desk.told[0] and not desk.failed


def test_node_to_which_nothing_was_dispatched_is_refused(desk: Desk) -> None:
    early = Dispatch(desk.loop, desk, None)
    with pytest.raises(ValueError, match="nothing was dispatched"):
        early.on_dispatched(desk.links[0], DISPATCHED)


@pytest.mark.parametrize("name", ["files", "bytes", "received"])
@pytest.mark.parametrize("count", [-1, 2**64, 0.5])
def test_progress_beyond_counting_is_refused(desk: Desk, name: str, count: Any) -> None:
    wrong: Any = {**FILLING, name: count}
    with pytest.raises(ValueError, match=name):
        desk.dispatch.on_filling(desk.links[0], wrong)
    assert not desk.events


@pytest.mark.parametrize(
    "wrong",
    [
        {"files": encode_numbers([3])},
        {"files": "not base64"},
        {"files": "A"},
        {"files": [0]},
        {"files": encode_numbers([1]), "offsets": {"1": 1}},  # of an empty entry
        {"offsets": {"0": -1}},
        {"offsets": {"0": PASS_ON_BYTES}},
        {"offsets": [0]},
        {"files": encode_numbers([0, 1])},
    ],
)
def test_request_for_missing_files_ends_the_job(desk: Desk, tmp_path: Path, wrong: Any) -> None:
    (tmp_path / "package/sub").mkdir()
    (tmp_path / "package/sub/empty").write_text("")
    desk.give(list_source(tmp_path / "package"))
    desk.dispatch.on_lacks(desk.links[1], {**LACKS, "alone": True})
    assert not desk.failed
    desk.dispatch.on_lacks(desk.links[0], {**LACKS, "alone": True} | wrong)
    assert "asks for" in desk.failed[0]


def test_endless_repeated_requests_are_refused(desk: Desk) -> None:
    for _ in range(100):
        desk.dispatch.on_lacks(desk.links[0], {**LACKS, "alone": True})
    assert desk.failed


def test_nodes_that_share_a_folder_have_the_shards_of_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    find_number = DataShards.find_number

    def record_number(shards: DataShards, path: str) -> int | None:
        looked.append(path)
        return find_number(shards, path)

    monkeypatch.setattr(DataShards, "find_number", record_number)
    mine = split_by_node(job_on(tmp_path, 4, "data/x-{}"), {0: 2, 1: 1, 2: 2, 3: 3})
    assert mine is not None
    shards = [f"data/x-{i}" for i in range(8)]
    part = mine([Entry(name, "f" if "." in name or name in shards else "d", 0o644, 1, 0, "")
                 for name in ("data", *shards, "train.py")])  # fmt: skip
    got = {node: [e.path for e in part(node)] for node in range(4)}
    own = {0: (0, 2, 4, 6), 1: (1, 5), 2: (0, 2, 4, 6), 3: (3, 7)}
    assert got == {n: ["data", *(shards[i] for i in own[n]), "train.py"] for n in range(4)}
    assert looked == [*shards, "train.py"], "each file is looked at once for all nodes"
