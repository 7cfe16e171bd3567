"""One program on a node: its end is told when it ends, whatever it has left behind."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pslaunch.node.loop import Loop
from pslaunch.node.program import Program
from pslaunch.node.wire import Line, Output


def test_what_is_left_behind_and_writes_on_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop()
    ours, theirs = socket.socketpair()
    fd = ours.detach()
    line = Line(loop, fd, fd, lost_after_s=60, on_message=lambda _m: None, on_lost=lambda _why: None)
    agent = SimpleNamespace(loop=loop, line=line, held={}, trouble=lambda *_: None)
    order = {
        "key": "trainer/0", "role": "trainer", "log": str(tmp_path / "log"), "cwd": str(tmp_path),
        "argv": ["echo", "last words"], "keep_ports": False, "added_env": {},
        "contract": {"PSLAUNCH_PROGRESS": str(tmp_path / "socket")},
    }  # fmt: skip
    program = Program(cast(Any, agent), 0, order)
    assert program.process is not None
    _, status = os.waitpid(program.process.pid, 0)
    left_behind = os.open(f"/proc/self/fd/{program._out}", os.O_WRONLY)
    pieces: list[Output] = []

    def write_on(piece: Output) -> bool:
        pieces.append(piece)
        if len(pieces) < 100:
            os.write(left_behind, b"more\n")
        return True

    monkeypatch.setattr(line, "send_output", write_on)
    program.exited(status)
    assert [piece.data for piece in pieces] == [b"last words\n"]
    program.finish()
    os.close(left_behind)
    line.close()
    theirs.close()
    loop.close()
