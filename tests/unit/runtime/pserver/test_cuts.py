"""Snapshots of a pserver: what a trainer says of them, and what a shard sends."""

import io
import socket
from typing import Any

import pytest

from pslaunch.runtime.client.control import Control
from pslaunch.runtime.pserver.cuts import Cuts
from pslaunch.runtime.pserver.pserver_options import parse_options
from pslaunch.runtime.pserver.threads import BEGINS, RECORD, read_cut


def make_no_header() -> Any:
    raise AssertionError("no trainer has connected")


@pytest.mark.parametrize("ask", ["note", "go"])
def test_a_message_without_its_fields_ends_the_connection_alone(ask: str) -> None:
    ours, theirs = socket.socketpair()
    cuts = Cuts(parse_options([], {}), [], make_no_header, lambda: None)
    asker, trainer = cuts.add(ours, 0), Control(theirs)
    trainer.send({"ask": ask})
    assert not cuts.hear(asker)
    with pytest.raises(ConnectionError):
        trainer.receive(5.0)
    trainer.close()


def test_trainer_0_alone_chooses_the_snapshot() -> None:
    ours, theirs = socket.socketpair()
    cuts = Cuts(parse_options([], {}), [], make_no_header, lambda: None)
    asker, trainer = cuts.add(ours, 1), Control(theirs)
    trainer.send({"ask": "go", "folder": "cut-0001-000000000002"})
    assert cuts.hear(asker)
    assert trainer.receive(5.0) == {"error": "trainer 1 may not ask for go"}
    cuts.close()
    trainer.close()


@pytest.mark.parametrize("rest", [b"", b"\1", RECORD.pack(4) + b"ab" + RECORD.pack(BEGINS)[:3]])
def test_a_shard_that_ends_within_a_record_sends_no_cut(rest: bytes) -> None:
    with pytest.raises(EOFError, match="the shard has ended"):
        list(read_cut(io.BytesIO(RECORD.pack(2) + b"xy" + rest)))
