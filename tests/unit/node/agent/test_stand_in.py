"""Words of a job that begins from a file: a slow reader gets whole lines, or a count of those left out."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pslaunch.node.agent.stand_in import StandIn
from pslaunch.node.beginning import Beginning
from pslaunch.node.job import Node, Plan
from pslaunch.node.loop import Loop
from support.lines import open_line

pytestmark = pytest.mark.timeout(60)
PIPE_BYTES = 4096


class Told:
    """A stand-in that hears of events, and the pipe for its words."""

    def __init__(self, loop: Loop, folder: Path, flags: int = 0) -> None:
        self._loop = loop
        heads, ours = socket.socketpair()
        self._fds = self._read_fd, write_fd = os.pipe2(flags)
        fcntl.fcntl(write_fd, 1031, PIPE_BYTES)  # F_SETPIPE_SZ, which Python 3.9 does not name
        self._line = open_line(loop, heads.detach(), self._hear)
        begun = Beginning(Plan(job_id="demo-1", nodes=(Node(0, "n0", "", "/ws"),)), "n0", 1, 1.0)
        self._stand_in = StandIn(loop, ours.detach(), begun, b"", "", str(folder), write_fd)
        self._answers = 0

    def _hear(self, message: dict[str, Any]) -> None:
        self._answers += message["type"] == "follow"

    def tell(self, told: Sequence[str | dict[str, Any]]) -> None:
        """Tell of events, or of notes with these texts, by one message."""
        events = [{"event": "note", "text": one} if isinstance(one, str) else one for one in told]
        self._line.send({"type": "events", "events": events})

    def settle(self) -> None:
        """Wait until all that was told is understood: this message has an answer."""
        before = self._answers
        self._line.send({"type": "leading", "port": 1, "addrs": []})
        self._loop.run(lambda: self._answers > before)

    def read(self) -> bytes:
        """Wait for words and return them."""
        self._loop.run(lambda: bool(select.select([self._read_fd], [], [], 0)[0]))
        return os.read(self._read_fd, 2 * PIPE_BYTES)

    def close(self) -> None:
        self._line.close()
        for fd in self._fds:
            os.close(fd)


@pytest.fixture
def told(loop: Loop, tmp_path: Path) -> Iterator[Told]:
    with contextlib.closing(Told(loop, tmp_path)) as told:
        yield told


def test_line_cut_by_a_full_pipe_is_completed_later(told: Told) -> None:
    texts = ["a" * (PIPE_BYTES + 1000), "left out", "b"]
    told.tell(texts[:2])
    got = told.read()
    told.tell(texts[2:])
    told.settle()
    got += told.read()
    assert got.decode().splitlines() == [
        f"pslaunch | {texts[0]}", "pslaunch | 1 lines are left out here", "pslaunch | b"
    ]  # fmt: skip


def test_gap_and_end_are_in_words(told: Told) -> None:
    gap = {"event": "gap", "process": "trainer/1", "bytes": 12}
    end = {"event": "end", "code": 7, "elapsed_s": 2.04, "reason": "trainer/0 ended", "failure": None}
    told.tell([gap, end])
    told.settle()
    assert told.read().decode().splitlines() == [
        "pslaunch | trainer/1: 12 bytes are left out here; see its log",
        "pslaunch | ended with 7 after 2.0 s: trainer/0 ended",
    ]


def test_slow_reader_gets_whole_lines_and_the_number_of_all_others(told: Told) -> None:
    texts, got = [f"{i:030d}" for i in range(3000)], b""
    for at in range(0, len(texts), 150):
        told.tell(texts[at : at + 150])
        told.settle()
        if at % 450 == 300:
            got += told.read()
    got += told.read()
    told.tell(["over"])
    got += told.read()
    *said, last = [line.removeprefix("pslaunch | ") for line in got.decode().splitlines()]
    shown = [line for line in said if line in texts]
    left_out = [int(line.split()[0]) for line in said if line.endswith("lines are left out here")]
    assert last == "over" and left_out and len(shown) + len(left_out) == len(said)
    assert shown == sorted(set(shown)) and len(shown) + sum(left_out) == len(texts)


def test_lines_of_one_message_are_written_by_one_call(loop: Loop, tmp_path: Path) -> None:
    with contextlib.closing(Told(loop, tmp_path, os.O_DIRECT)) as told:  # each write is a packet
        told.tell(["a", "b", "c"])
        assert told.read() == b"pslaunch | a\npslaunch | b\npslaunch | c\n"
