"""Words of a job that begins from a file: a slow reader gets whole lines, or a count of those left out."""

from __future__ import annotations

import fcntl
import os
import select
import socket
from pathlib import Path
from typing import Any

import pytest

from pslaunch.node import job
from pslaunch.node.agent.stand_in import StandIn
from pslaunch.node.beginning import Beginning
from pslaunch.node.job import Count, Limits, Node, Plan, Role
from pslaunch.node.line.wire import MessageLine
from pslaunch.node.loop import Loop

PIPE_BYTES = 4096


def plan_job() -> job.Plan:
    nodes = (Node(0, "n0", "", "/ws", "/ws/log", "/ws/output", "/ws/.pslaunch"),)
    return Plan(
        job_id="demo-1", name="demo", epoch=0, backend="k8s", server="bundled", why="given",
        roles=(Role("trainer", Count("per_node", 1), ("python", "train.py")),),
        port=None, ports_num=1, ports_num_for_sparse=0, trainer_count=1, use_gpu=False, added_env={},
        flags={}, limits=Limits(5.0, 30.0, 60.0, None, 60.0), nodes=nodes,
    )  # fmt: skip


@pytest.mark.timeout(60)
def test_line_cut_by_a_full_pipe_is_completed_later(tmp_path: Path) -> None:
    loop = Loop()
    heads, ours = socket.socketpair()
    read_fd, write_fd = os.pipe()
    fcntl.fcntl(write_fd, 1031, PIPE_BYTES)  # F_SETPIPE_SZ, which Python 3.9 does not name
    fd = heads.detach()
    line: MessageLine[Any] = MessageLine(
        loop, fd, fd, lost_after_s=30, on_message=lambda _m: None, on_lost=print
    )
    stand_in = StandIn(
        loop, ours.detach(), Beginning(plan_job(), "n0", "n0", 1, 1.0), b"", "", str(tmp_path), write_fd
    )
    texts = ["a" * (PIPE_BYTES + 1000), "left out", "b"]
    notes = [{"n": n, "time": 0, "event": "note", "text": text} for n, text in enumerate(texts)]
    line.send({"type": "events", "events": notes[:2]})
    loop.run(lambda: bool(select.select([read_fd], [], [], 0)[0]))
    got = os.read(read_fd, 2 * PIPE_BYTES)
    line.send({"type": "events", "events": notes[2:]})
    line.send({"type": "over", "code": 0})
    loop.run(lambda: stand_in.code is not None)
    got += os.read(read_fd, 2 * PIPE_BYTES)
    assert got.decode().splitlines() == [
        f"pslaunch | {texts[0]}", "pslaunch | 1 lines are left out here", "pslaunch | b"
    ]  # fmt: skip
    line.close()
    loop.close()
    for end in (read_fd, write_fd):
        os.close(end)
