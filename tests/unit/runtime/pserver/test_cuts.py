"""Snapshots of a pserver: what a trainer says of them, and what a shard sends."""

import contextlib
import dataclasses
import io
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pslaunch.runtime.client.control import Control
from pslaunch.runtime.files.manifest import MANIFEST
from pslaunch.runtime.files.objects import SetError
from pslaunch.runtime.files.saving import Header
from pslaunch.runtime.pserver.cuts import NO_TRAINER, Cuts
from pslaunch.runtime.pserver.pserver_options import parse_options
from pslaunch.runtime.pserver.threads import BEGINS, RECORD, REQUESTS, STATS, Shard, read_cut


def make_no_header() -> Any:
    raise AssertionError("no trainer has connected")


@contextlib.contextmanager
def connected(
    trainer: int, collect: Any = dict, **options: Any
) -> Iterator[tuple[Control, Callable[[], bool]]]:
    """A trainer's end of a connection, and what lets the pserver hear it."""
    ours, theirs = socket.socketpair()
    given = dataclasses.replace(parse_options([], {}), **options)
    cuts = Cuts(given, [], make_no_header, lambda: None, collect)
    asker = cuts.add(ours, trainer)
    with contextlib.closing(Control(theirs)) as control, contextlib.closing(cuts):
        yield control, lambda: cuts.hear(asker)


def test_a_note_without_its_fields_ends_the_connection_alone() -> None:
    with connected(0) as (trainer, hear):
        trainer.send({"ask": "note"})
        assert not hear()
        with pytest.raises(ConnectionError):
            trainer.receive(5.0)


def test_trainer_0_alone_chooses_the_snapshot() -> None:
    with connected(1) as (trainer, hear):
        trainer.send({"ask": "go", "folder": "cut-0001-000000000002"})
        assert hear()
        assert trainer.receive(5.0) == {"error": "trainer 1 may not ask for go"}


@pytest.mark.parametrize("trainer", [0, 1])
def test_stats_are_for_all_trainers(trainer: int) -> None:
    with connected(trainer, lambda: {"job": []}) as (other, hear):
        other.send({"ask": "stats"})
        assert hear() and other.receive(5.0) == {"job": []}


@pytest.mark.parametrize("ask", ["stats", "state", "save", "piece", "note", "go"])
def test_an_observer_has_one_answer_and_no_other_than_stats(ask: str) -> None:
    large = {"job": ["x" * (1 << 22)]}  # more than fits between two ends: its thread waits, and nobody else
    with connected(NO_TRAINER, lambda: large) as (other, hear):
        for _ in range(2):
            other.send({"ask": ask, "step": 1, "ended": False, "state": {}, "folder": "x"})
        assert not hear()
        answer = large if ask == "stats" else {"error": f"an observer may not ask for {ask}"}
        assert other.receive(5.0) == answer
        with pytest.raises(ConnectionError):
            other.receive(5.0)


def ask_with_answer(tmp_path: Path, *questions: dict[str, Any]) -> Any:
    """The answer to the last question, of a pserver with this folder of snapshots."""
    with connected(0, snapshot_dir=tmp_path) as (trainer, hear):
        for question in questions:
            trainer.send(question)
        assert hear()
        return [trainer.receive(5.0) for _ in questions][-1]


def test_a_damaged_snapshot_is_an_answer_and_not_the_end(tmp_path: Path) -> None:
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / MANIFEST).write_text("damaged")
    answer = ask_with_answer(tmp_path, {"ask": "go", "folder": "cut"}, {"ask": "state"})
    assert "is damaged" in answer["error"]


def test_only_parts_of_saves_are_dropped(tmp_path: Path) -> None:
    (path := tmp_path / "mine.bin").write_text("of the user")
    answer = ask_with_answer(
        tmp_path, {"ask": "drop", "folder": str(tmp_path), "name": path.name, "save": "mine"}
    )
    assert "error" in answer
    assert path.exists()


class Values:
    """A share whose every object is an answer."""

    def find(self, *_: object) -> str:
        return "values"


def test_a_shard_has_loaded_values_for_objects_after_a_save_and_none_of_a_refused_load(
    tmp_path: Path,
) -> None:
    header = Header(
        job_id="demo-1", epoch=0, run=7, pserver=0, pservers=1, port=0, ports_num=1, ports_num_for_sparse=0,
        num_gradient_servers=1, finished=False,
    )  # fmt: skip
    written, values = threading.Event(), Values()
    shard: Any = Shard(0, parse_options([], {}), 0.0, None, lambda *_: header, written.set)
    shard.load(values)
    shard.save(REQUESTS + 1, tmp_path, "one")
    assert written.wait(10.0) and isinstance(shard.parts[REQUESTS + 1], list)
    assert shard._find("w", False, 0, 3, 0) == "values"
    shard._share = None
    with pytest.raises(SetError, match="'w' was created before the load"):
        shard.load(values)
    assert shard._find("v", False, 0, 3, 0) is None
    shard.stop()
    assert [kind for kind, *_ in shard.join()] == [STATS] and shard.failure is None


@pytest.mark.parametrize("rest", [b"", b"\1", RECORD.pack(4) + b"ab" + RECORD.pack(BEGINS)[:3]])
def test_a_shard_that_ends_within_a_record_sends_no_cut(rest: bytes) -> None:
    with pytest.raises(EOFError, match="the shard has ended"):
        list(read_cut(io.BytesIO(RECORD.pack(2) + b"xy" + rest)))
