"""Records of jobs for the tests of later shells."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from pslaunch.node.job import Node
from pslaunch.node.later import record
from pslaunch.node.messages import JobRecord


@pytest.fixture
def note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Return a function that writes a record; heads of running jobs answer."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    head = socket.socket(socket.AF_UNIX)
    head.bind(str(tmp_path / "head"))
    head.listen()
    node = Node(0, "localhost", "127.0.0.1").place_in(str(tmp_path))._asdict()

    def write(job: str, state: str, *, end: str = ".json", **fields: Any) -> None:
        path = Path(record.get_folder()) / (job + end)
        fixed: Any = {"job": job, "backend": "fabric" if "reach" in fields else "local", "nodes": 1}
        fixed |= {"started": 0.0, "processes": [], "places": [node], "socket": str(tmp_path / "head")}
        record.write_record(str(path), cast(JobRecord, {**fixed, "state": state, **fields}))

    with head:
        yield write
