"""A small job's events for the tests of views, a clock, and a terminal of one size."""

from __future__ import annotations

from typing import Any

import pytest

JOB = {
    "event": "job", "job": "w2v-1a2b", "name": "w2v", "epoch": 0, "workspace": "/ws", "backend": "local",
    "server": "bundled", "why": "train.py asks for no role",
    "nodes": [{"id": 0, "name": "localhost"}],
    "processes": [
        {"process": "pserver/0", "node": 0, "log": "/ws/log/server.log"},
        {"process": "trainer/0", "node": 0, "log": "/ws/log/train.log"},
        {"process": "trainer/1", "node": 0, "log": "/ws/log/train.1.log"},
    ],
}  # fmt: skip
FAILURE = {
    "what": "trainer/1", "node": 0, "code": 3, "signal": None, "text": "", "log": "/ws/log/train.1.log",
    "tail": ["Traceback:", "ValueError: x"], "advice": "look at the log",
}  # fmt: skip
RUNNING = {"event": "process", "process": "trainer/1", "node": 0, "state": "running", "pid": 12}
EXITED = {**RUNNING, "state": "exited", "code": 3, "signal": None, "text": ""}
PROGRESS = {"event": "progress", "process": "trainer/1"}
FAILED = {"event": "end", "code": 3, "reason": "trainer/1 failed", "elapsed_s": 65.0, "failure": FAILURE}


def line(process: str, text: str, *, more: bool = False) -> dict[str, Any]:
    return {"event": "line", "process": process, "text": text, "more": more}


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def dispatched(
    node: int | None, received: int, of: int, time: float = 0.0, **more: object
) -> dict[str, object]:
    return {"event": "dispatch", "node": node, "state": "sending", "files": 1, "received": received,
            "bytes": of, "time": time, "source": None, **more}  # fmt: skip


def set_size(columns: int, lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TERM": "xterm", "COLUMNS": str(columns), "LINES": str(lines)}.items():
        monkeypatch.setenv(name, value)
