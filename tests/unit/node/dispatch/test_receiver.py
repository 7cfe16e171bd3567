"""A package over a line: data sent, resuming after a cut, hostile streams."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pslaunch.node import codes
from pslaunch.node.codes import Refusal
from pslaunch.node.dispatch import manifest
from pslaunch.node.dispatch.manifest import Entry, ManifestError, Want, compute_digest, encode
from pslaunch.node.dispatch.receiver import GRANT_BYTES, Receiver
from pslaunch.node.dispatch.sender import (
    THE_MANIFEST,
    WINDOW_BYTES,
    Sender,
    Source,
    decode_numbers,
    encode_numbers,
)
from pslaunch.node.dispatch.staging import Staging
from pslaunch.node.line.wire import MAX_DATA_BYTES, Data
from pslaunch.node.loop import Aside, Loop
from support.lines import open_line
from support.packages import list_source

BIG = os.urandom(3 * MAX_DATA_BYTES + 5)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "data").mkdir(parents=True)
    for i in range(100):
        (folder / f"data/{i}").write_text(f"file {i}" * i)
    (folder / "big").write_bytes(BIG)
    return folder


def list_asked(asked: Any) -> list[int]:
    return decode_numbers(asked["files"], 10**6)


class Ends:
    """A sender and a receiver with a line between them, and a record of its messages."""

    def __init__(self, source: Source, workspace: Path) -> None:
        self.loop = Loop()
        near, far = socket.socketpair()
        self.pieces: list[Data] = []
        self.asked: list[Any] = []
        self.granted = 0  # bytes
        self.failures: list[Exception] = []
        self.ends: list[Exception | None] = []
        self.told: list[Any] = []
        self.largest = 0
        self.head = open_line(self.loop, near.detach(), self.heard)
        self.node = open_line(self.loop, far.detach(), self.ordered, on_data=self.take)
        self.receiver = Receiver(
            self.loop, str(workspace), say=self.node.send, end=self.ends.append, tell=self.told.append
        )
        self.sending = Aside(self.loop)
        self.sender = Sender(self.sending, source, self.head, fail=self.failures.append)

    def heard(self, m: Any) -> None:
        if m["type"] == "lacks":
            self.asked.append(m)
        elif m["type"] == "received":
            self.granted += m["bytes"]
        self.sender.obey(m, self.failures.append)

    def ordered(self, m: Any) -> None:
        if m["type"] == "dispatch":
            self.receiver.order_dispatch(m)

    def take(self, piece: Data) -> None:
        self.pieces.append(piece)
        self.largest = max(self.largest, sum(len(data) for _, data, _ in self.head._bulk))
        self.receiver.take(piece)

    def run(self) -> None:
        self.loop.run(lambda: bool(self.ends or self.failures or self.receiver.closed))

    def close(self) -> None:
        self.receiver.close()
        self.sending.close()
        for line in (self.head, self.node):
            line.close()
        self.loop.close()


@pytest.fixture
def ends() -> Iterator[list[Ends]]:
    """Yield a list of ends that are closed after the test."""
    made: list[Ends] = []
    yield made
    for e in made:
        e.close()


def dispatched(ends: list[Ends], source: Source, workspace: Path) -> Ends:
    ends.append(Ends(source, workspace))
    ends[-1].run()
    assert ends[-1].ends == [None], (ends[-1].ends, ends[-1].failures)
    return ends[-1]


def test_small_files_travel_together(source: Path, tmp_path: Path, ends: list[Ends]) -> None:
    package = list_source(source)
    whole = dispatched(ends, package, tmp_path / "ws")
    come = sum(len(p.data) for p in whole.pieces)
    assert come == whole.sender.total_bytes + len(package.manifest)
    assert len(whole.pieces) <= 2 + -(-whole.sender.total_bytes // MAX_DATA_BYTES)


def test_all_that_was_written_is_granted_anew(source: Path, tmp_path: Path, ends: list[Ends]) -> None:
    (source / "large").write_bytes(os.urandom(2 * WINDOW_BYTES))
    whole = dispatched(ends, list_source(source), tmp_path / "ws")
    come = sum(len(p.data) for p in whole.pieces)
    assert come - GRANT_BYTES < whole.granted <= come


def test_damaged_rest_of_a_cut_is_sent_again(source: Path, tmp_path: Path, ends: list[Ends]) -> None:
    ws, package = tmp_path / "ws", list_source(source)
    staged = ws / ".pslaunch/dispatch/staged"
    staged.mkdir(parents=True)
    (staged / f"{compute_digest(BIG)}").write_bytes(b"x" * 70_000)
    again = dispatched(ends, package, ws)
    assert len(again.asked) == 3 and list_asked(again.asked[-1]) == [0]
    assert again.told[-1]["received"] == again.told[-1]["bytes"] == again.sender.total_bytes
    assert (ws / "big").read_bytes() == BIG


def test_memory_is_bounded_whatever_the_size(tmp_path: Path, ends: list[Ends]) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with (source / "huge").open("wb") as f:
        f.truncate(64 * 1024 * 1024)
    e = dispatched(ends, list_source(source), tmp_path / "ws")
    assert (tmp_path / "ws/huge").stat().st_size == 64 * 1024 * 1024
    assert 0 < e.largest <= WINDOW_BYTES


def test_control_is_not_held_up_by_files(source: Path, tmp_path: Path, ends: list[Ends]) -> None:
    ends.append(Ends(list_source(source), tmp_path / "ws"))
    e = ends[-1]
    order: list[str] = []
    e.node._on_message = lambda m: (order.append(m["type"]), e.ordered(m))  # type: ignore[assignment,func-returns-value]
    e.loop.run(lambda: bool(e.pieces))
    e.head.send({"type": "signal"})
    e.loop.run(lambda: "signal" in order)
    assert not e.ends  # before the files were through


def test_file_that_changes_while_it_is_sent_is_named(source: Path, tmp_path: Path, ends: list[Ends]) -> None:
    package = list_source(source)
    (source / "data/50").write_text("changed since")
    ends.append(Ends(package, tmp_path / "ws"))
    ends[-1].run()
    failure = str(ends[-1].failures[0])
    assert "changed while it was sent" in failure and "data/50" in failure


# --- hostile streams: straight into the node's side ---

GOOD = b"content"
ENTRIES = [
    Entry("a", "f", 0o644, len(GOOD), 0, compute_digest(GOOD)),
    Entry("b", "f", 0o644, len(BIG), 0, compute_digest(BIG)),
]


@pytest.fixture
def incoming(tmp_path: Path) -> Iterator[Staging]:
    made = Staging(str(tmp_path / "ws"))
    assert [w.file for w in made.list_lacking(encode(ENTRIES))] == [0, 1]
    yield made
    made.close()


@pytest.mark.parametrize(
    "piece",
    [
        Data(0, 0, GOOD + BIG + b"x"),  # longer than all that was asked for
        Data(0, 1, GOOD[1:]),  # not from the start
        Data(0, 2**63, GOOD),
        Data(1, 0, BIG[:100]),  # not its turn
        Data(7, 0, GOOD),  # no such file
        Data(0, 0, b""),
    ],
    ids=["long", "offset", "far", "order", "number", "empty"],
)
def test_a_piece_that_does_not_fit_is_refused(incoming: Staging, tmp_path: Path, piece: Data) -> None:
    with pytest.raises(ManifestError):
        incoming.take([piece])
    assert not [p for p in (tmp_path / "ws").iterdir() if p.name != ".pslaunch"]


def test_wrong_content_is_requested_once_more_and_never_counts(incoming: Staging, tmp_path: Path) -> None:
    wrong = bytes(len(BIG))
    parts = [Data(1, at, wrong[at : at + MAX_DATA_BYTES]) for at in range(0, len(wrong), MAX_DATA_BYTES)]
    assert incoming.take([Data(0, 0, GOOD)]) == []
    assert incoming.take(parts) == [Want(1, 0)]
    with pytest.raises(Refusal, match="b has come twice with another content"):
        incoming.take(parts)
    staged = tmp_path / "ws/.pslaunch/dispatch/staged"
    assert [p.name for p in staged.iterdir()] == [compute_digest(GOOD)]


class Alone:
    """A receiver fed by the test."""

    def __init__(self, workspace: Path) -> None:
        self.loop = Loop()
        self.said: list[Any] = []
        self.ends: list[Exception | None] = []
        self.told: list[Any] = []
        self.receiver = Receiver(
            self.loop, str(workspace), say=self.said.append, end=self.ends.append, tell=self.told.append
        )

    def offer(self, manifest: bytes, size: int | None = None) -> None:
        size = len(manifest) if size is None else size
        self.receiver.order_dispatch({"type": "dispatch", "digest": compute_digest(manifest), "bytes": size})
        self.loop.run(lambda: bool(self.said or self.ends))

    def refusal(self) -> str:
        self.loop.run(lambda: bool(self.ends))
        assert isinstance(self.ends[0], Refusal) and self.ends[0].code == codes.IO
        return str(self.ends[0])


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Alone]:
    made = Alone(tmp_path / "ws")
    yield made
    made.receiver.close()
    made.receiver._aside._thread.join(10)
    made.loop.close()


@pytest.mark.parametrize("size", [0, -1, manifest.MAX_MANIFEST_BYTES + 1, 2**70])
def test_no_length_is_believed(alone: Alone, size: int) -> None:
    alone.offer(b"x", size)
    assert "manifest" in alone.refusal()


@pytest.mark.parametrize(
    ("change", "why"), [(0, "'../victim' can't be a path"), (1, "not what was announced")]
)
def test_wrong_manifest_is_refused(alone: Alone, tmp_path: Path, change: int, why: str) -> None:
    (tmp_path / "victim").write_text("mine")
    listing = encode([Entry("../victim", "f", 0o644, 1, 0, compute_digest(b"x"))])
    alone.offer(listing)
    alone.receiver.take(Data(THE_MANIFEST, 0, listing[:-1] + bytes([listing[-1] ^ change])))
    assert why in alone.refusal()
    assert (tmp_path / "victim").read_text() == "mine"


def test_data_beyond_the_grant_ends_the_transfer(alone: Alone) -> None:
    alone.offer(encode(ENTRIES))
    alone.receiver.take(Data(1, 0, bytes(WINDOW_BYTES + 1)))
    assert "received more bytes than granted" in alone.refusal()


@pytest.mark.parametrize("seed", range(5))
def test_encoded_numbers_are_decoded_equally(seed: int) -> None:
    dice = random.Random(seed)
    numbers = sorted(dice.sample(range(1000), dice.choice([0, 1, 10, 999])))
    assert decode_numbers(encode_numbers(numbers), 1000) == numbers


@pytest.mark.timeout(60)
def test_damaged_file_of_a_gone_sender_is_requested_once(alone: Alone, tmp_path: Path) -> None:
    staged = tmp_path / "ws/.pslaunch/dispatch/staged"
    staged.mkdir(parents=True)
    (staged / f"{compute_digest(BIG)}").write_bytes(b"x" * 70_000)
    listing = encode(ENTRIES[1:])
    alone.offer(listing)
    alone.receiver.take(Data(THE_MANIFEST, 0, listing))
    alone.loop.run(lambda: any(m.get("files") for m in alone.said))
    peer: list[Any] = []
    alone.receiver.ask_of(peer.append)
    alone.loop.run(lambda: bool(peer))
    alone.said.clear()
    alone.receiver.take(Data(0, 70_000, BIG[70_000:]))
    alone.receiver.ask_of(None)
    done: list[bool] = []
    alone.receiver._do(lambda: True, done.append)
    alone.loop.run(lambda: bool(done))
    assert [(m["type"], list_asked(m)) for m in alone.said] == [("lacks", [0])]
    assert [m["type"] for m in peer].count("lacks") == 1
    alone.receiver.take(Data(0, 0, BIG))
    alone.loop.run(lambda: bool(alone.ends))
    assert alone.ends == [None] and (tmp_path / "ws/b").read_bytes() == BIG
