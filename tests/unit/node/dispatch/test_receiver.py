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
from pslaunch.node.dispatch import receiver as receive
from pslaunch.node.dispatch.manifest import (
    Entry,
    Hashes,
    ManifestError,
    Want,
    add_hashes,
    compute_digest,
    encode,
    walk_folder,
)
from pslaunch.node.dispatch.receiver import Receiver, encode_runs
from pslaunch.node.dispatch.sender import BATCH_BYTES, FIRST_BYTES, THE_MANIFEST, WINDOW_BYTES, Sender, Source
from pslaunch.node.dispatch.staging import Staging
from pslaunch.node.dispatch.window import GRANT_BYTES
from pslaunch.node.line.wire import (
    MAX_CONTROL_BYTES,
    MAX_DATA_BYTES,
    Data,
    MessageLine,
    encode_control,
)
from pslaunch.node.loop import Aside, Loop

BIG = os.urandom(3 * MAX_DATA_BYTES + 5)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "data").mkdir(parents=True)
    for i in range(100):
        (folder / f"data/{i}").write_text(f"file {i}" * i)
    (folder / "big").write_bytes(BIG)
    return folder


def listed(folder: Path) -> Source:
    return Source(str(folder), add_hashes(walk_folder(str(folder)), Hashes(f"{folder}.hashes")).entries)


class Ends:
    """A sender and a receiver with a line between them, and a record of its messages."""

    def __init__(self, source: Source, workspace: Path) -> None:
        self.loop, self.aside = Loop(), None
        near, far = socket.socketpair()
        self.pieces: list[Data] = []
        self.asked: list[Any] = []
        self.granted = 0  # bytes
        self.failures: list[Exception] = []
        self.ends: list[Exception | None] = []
        self.told: list[Any] = []
        self.largest = 0
        self.head = self.line(near.detach(), self.heard)
        self.node = self.line(far.detach(), self.ordered)
        self.receiver = Receiver(
            self.loop, str(workspace), say=self.node.send, end=self.ends.append, tell=self.told.append
        )
        self.sending = Aside(self.loop)
        self.sender = Sender(self.sending, source, self.head, fail=self.failures.append)

    def line(self, fd: int, heard: Any) -> MessageLine[Any]:
        return MessageLine(
            self.loop, fd, fd, lost_after_s=30, on_message=heard, on_lost=lambda _why: None, on_data=self.take
        )

    def heard(self, m: Any) -> None:
        if m["type"] == "lacks":
            self.asked.append(m)
            self.sender.send_lacking(m)
        elif m["type"] == "received":
            self.granted += m["bytes"]
            self.sender.grant(m)

    def ordered(self, m: Any) -> None:
        if m["type"] == "dispatch":
            self.receiver.take_offer(m)

    def take(self, piece: Data) -> None:
        self.pieces.append(piece)
        held = sum(len(piece.data) for batch in self.sender._ready for piece in batch)
        self.largest = max(self.largest, held)
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


def sent(e: Ends) -> set[int]:
    return {p.file for p in e.pieces}


def test_small_files_travel_together(source: Path, tmp_path: Path, ends: list[Ends]) -> None:
    whole = dispatched(ends, listed(source), tmp_path / "ws")
    come = sum(len(p.data) for p in whole.pieces)
    assert come == whole.sender.total_bytes + len(whole.receiver._incoming._data)  # type: ignore[union-attr]
    assert len(whole.pieces) <= 2 + -(-whole.sender.total_bytes // MAX_DATA_BYTES)


@pytest.mark.parametrize("starved_s", [60.0, -1.0])
def test_waiting_node_gets_a_larger_window_up_to_a_bound(
    source: Path, tmp_path: Path, ends: list[Ends], monkeypatch: pytest.MonkeyPatch, starved_s: float
) -> None:
    monkeypatch.setattr(receive, "STARVED_S", starved_s)
    (source / "large").write_bytes(os.urandom(3 * FIRST_BYTES))
    whole = dispatched(ends, listed(source), tmp_path / "ws")
    grown = whole.granted - sum(len(p.data) for p in whole.pieces)
    if starved_s > 0:
        assert -GRANT_BYTES < grown <= 0
    else:
        # At the least the first wait was seen; what is not granted yet at the end is less than one grant.
        assert FIRST_BYTES - GRANT_BYTES < grown <= WINDOW_BYTES - FIRST_BYTES


def test_files_that_follow_each_other_are_asked_for_in_few_words(tmp_path: Path, ends: list[Ends]) -> None:
    """Folders, links and empty files between them are no reason to name each: that can be millions."""
    source, ws = tmp_path / "source", tmp_path / "ws"
    for i in range(50):
        (source / f"{i}/deep").mkdir(parents=True)
        (source / f"{i}/deep/file").write_text(f"file {i}")
        (source / f"{i}/empty").write_text("")
        (source / f"{i}/link").symlink_to("deep")
    e = dispatched(ends, listed(source), ws)
    assert e.asked[-1]["files"][1::2] == [50 * 5 - 4]
    assert e.told[-1]["files"] == 50
    assert all((ws / f"{i}/deep/file").read_text() == f"file {i}" for i in range(50))
    for i in (7, 8, 40):
        (source / f"{i}/deep/file").write_text(f"changed {i}")
    again = dispatched(ends, listed(source), ws)
    assert again.asked[-1]["files"][1::2] == [1, 6]
    assert all((ws / f"{i}/deep/file").read_text() == f"changed {i}" for i in (7, 8, 40))


def test_damaged_rest_of_a_cut_is_sent_again(source: Path, tmp_path: Path, ends: list[Ends]) -> None:
    ws, package = tmp_path / "ws", listed(source)
    staged = ws / ".pslaunch/dispatch/staged"
    staged.mkdir(parents=True)
    (staged / f"{compute_digest(BIG)}.part").write_bytes(b"x" * 70_000)
    again = dispatched(ends, package, ws)
    assert len(again.asked) == 3 and again.asked[-1]["files"] == [0, 1]
    assert again.told[-1]["received"] == again.told[-1]["bytes"] == again.sender.total_bytes
    assert (ws / "big").read_bytes() == BIG


def test_memory_is_bounded_whatever_the_size(tmp_path: Path, ends: list[Ends]) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with (source / "huge").open("wb") as f:
        f.truncate(64 * 1024 * 1024)
    e = dispatched(ends, listed(source), tmp_path / "ws")
    assert (tmp_path / "ws/huge").stat().st_size == 64 * 1024 * 1024
    assert e.largest <= 2 * BATCH_BYTES


def test_control_is_not_held_up_by_files(source: Path, tmp_path: Path, ends: list[Ends]) -> None:
    ends.append(Ends(listed(source), tmp_path / "ws"))
    e = ends[-1]
    order: list[str] = []
    e.node._on_message = lambda m: (order.append(m["type"]), e.ordered(m))  # type: ignore[assignment,func-returns-value]
    e.loop.run(lambda: bool(e.pieces))
    e.head.send({"type": "signal"})
    e.loop.run(lambda: "signal" in order)
    assert not e.ends  # before the files were through


def test_a_file_that_changes_while_it_is_sent_is_named(
    source: Path, tmp_path: Path, ends: list[Ends]
) -> None:
    package = listed(source)
    (source / "data/50").write_text("changed since")
    ends.append(Ends(package, tmp_path / "ws"))
    ends[-1].run()
    assert "changed while it was sent" in str(ends[-1].failures[0])
    assert "data/50" in str(ends[-1].failures[0])


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
    assert incoming.take([Data(0, 0, b"CONTENT")]) == [Want(0, 0)]
    assert incoming.take([Data(1, 0, BIG)]) == []
    with pytest.raises(Refusal, match="a has come twice with another content"):
        incoming.take([Data(0, 0, b"CONTENT")])
    assert not (tmp_path / "ws/a").exists()


def test_wrong_large_content_is_requested_once_more_and_never_counts(
    incoming: Staging, tmp_path: Path
) -> None:
    incoming.take([Data(0, 0, GOOD), Data(1, 0, BIG[:50_000])])
    assert incoming.take([Data(1, 50_000, bytes(len(BIG) - 50_000))]) == [Want(1, 0)]
    with pytest.raises(Refusal, match="b has come twice with another content"):
        incoming.take([Data(1, 0, bytes(len(BIG)))])
    staged = tmp_path / "ws/.pslaunch/dispatch/staged"
    assert [p.name for p in staged.iterdir()] == [compute_digest(GOOD)]


def test_unrequested_data_is_refused(incoming: Staging) -> None:
    incoming.take([Data(0, 0, GOOD), Data(1, 0, BIG)])
    with pytest.raises(ManifestError, match="received more than"):
        incoming.take([Data(1, 0, b"x")])


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
        bytes_ = len(manifest) if size is None else size
        self.receiver.take_offer({"type": "dispatch", "digest": compute_digest(manifest), "bytes": bytes_})
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
    wait = made.receiver._aside._thread
    if wait.ident:
        wait.join(10)
    made.loop.close()


@pytest.mark.parametrize("size", [0, -1, manifest.MAX_MANIFEST_BYTES + 1, 2**70])
def test_no_length_is_believed(alone: Alone, size: int) -> None:
    alone.offer(b"x", size)
    assert "manifest" in alone.refusal()


def test_a_manifest_that_leads_out_is_refused(alone: Alone, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    listing = encode([Entry("../victim", "f", 0o644, 1, 0, compute_digest(b"x"))])
    alone.offer(listing)
    alone.receiver.take(Data(THE_MANIFEST, 0, listing))
    assert "'../victim' can't be a path" in alone.refusal()
    assert (tmp_path / "victim").read_text() == "mine"


def test_a_manifest_is_the_one_that_was_announced(alone: Alone) -> None:
    listing = encode(ENTRIES)
    alone.offer(listing)
    alone.receiver.take(Data(THE_MANIFEST, 0, listing[:-1] + b"x"))
    assert "not what was announced" in alone.refusal()


def test_data_beyond_the_grant_ends_the_transfer(alone: Alone) -> None:
    alone.offer(encode(ENTRIES))
    alone.receiver.take(Data(1, 0, bytes(WINDOW_BYTES + 1)))
    assert "received more bytes than granted" in alone.refusal()


def test_node_compares_before_the_offer(source: Path, tmp_path: Path, ends: list[Ends]) -> None:
    ws = tmp_path / "ws"
    dispatched(ends, listed(source), ws)
    (ws / "data/7").write_text("changed by a program")
    ends.append(Ends(listed(source), ws))
    ends[-1].receiver.expect()
    ends[-1].run()
    assert ends[-1].ends == [None] and len(sent(ends[-1])) == 1
    assert (ws / "data/7").read_text() == "file 7" * 7
    (source / "data/7").write_text("new")
    ends.append(Ends(listed(source), ws))
    ends[-1].receiver.expect()
    ends[-1].run()
    assert ends[-1].ends == [None] and (ws / "data/7").read_text() == "new"


@pytest.mark.parametrize("seed", range(5))
def test_encoded_runs_are_decoded_equally(tmp_path: Path, ends: list[Ends], seed: int) -> None:
    dice = random.Random(seed)
    entries = [
        Entry(f"{i:05}", "f", 0o644, dice.choice([0, 1, 100]), 0, compute_digest(str(i).encode()))
        for i in range(1000)
    ]
    wants = [
        Want(i, 7 if e.size == 100 and dice.random() < 0.1 else 0)
        for i, e in enumerate(entries)
        if e.size and dice.random() < dice.choice([0.1, 0.9])
    ]
    if seed:
        wants.append(wants.pop(dice.randrange(len(wants))))  # once more, after what it had of it was no good
    m: Any = {
        "files": encode_runs(wants, entries),
        "offsets": {str(f): offset for f, offset in wants if offset},
    }
    ends.append(Ends(Source(str(tmp_path), entries), tmp_path / "ws"))
    assert ends[-1].sender._list_wants(m) == wants


@pytest.mark.parametrize("wanted", [1, 2, 9, 10])
@pytest.mark.parametrize("passed", [1, 2, 9, 10])
def test_every_request_fits_a_message(wanted: int, passed: int) -> None:
    """Short names, and files that are wanted alternate with files that are not."""
    entries = [Entry(f"{i:03x}", "f", 0o644, 1, 0, compute_digest(str(i).encode())) for i in range(16**3)]
    wants = [Want(i, 0) for i in range(len(entries)) if i % (wanted + passed) >= passed]
    said = sum(map(len, encode_control({"type": "lacks", "files": encode_runs(wants, entries)})))
    assert said / len(encode(entries)) * manifest.MAX_MANIFEST_BYTES < MAX_CONTROL_BYTES


@pytest.mark.timeout(60)
def test_damaged_file_of_a_gone_sender_is_requested_once(alone: Alone, tmp_path: Path) -> None:
    staged = tmp_path / "ws/.pslaunch/dispatch/staged"
    staged.mkdir(parents=True)
    (staged / f"{compute_digest(BIG)}.part").write_bytes(b"x" * 70_000)
    listing = encode(ENTRIES[1:])
    alone.offer(listing)
    alone.receiver.take(Data(THE_MANIFEST, 0, listing))
    alone.loop.run(lambda: any(m.get("files") for m in alone.said))
    peer: list[Any] = []
    alone.receiver.ask_of(peer.append, alone=False)
    alone.loop.run(lambda: bool(peer))
    alone.said.clear()
    alone.receiver.take(Data(0, 70_000, BIG[70_000:]))
    alone.receiver.ask_of(None, alone=True)
    done: list[bool] = []
    alone.receiver._do(lambda: True, done.append)
    alone.loop.run(lambda: bool(done))
    assert [(m["type"], m.get("files")) for m in alone.said] == [("lacks", [0, 1])]
    assert [m["type"] for m in peer].count("lacks") == 1
    alone.receiver.take(Data(0, 0, BIG))
    alone.loop.run(lambda: bool(alone.ends))
    assert alone.ends == [None] and (tmp_path / "ws/b").read_bytes() == BIG
