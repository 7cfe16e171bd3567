"""The other end of PSLAUNCH_PROGRESS: what processes of a test report."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pslaunch.runtime.shared.reports import MAX_PROGRESS_BYTES, parse_progress

Report = dict[str, int | float | str]


@contextlib.contextmanager
def heard(folder: Path) -> Iterator[Callable[[], list[Report]]]:
    """Whatever is started, or reports, inside tells it here; yields what gives the reports since the last."""
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver,
        pytest.MonkeyPatch.context() as monkeypatch,
    ):
        path = str(folder / "progress")
        receiver.bind(path)
        receiver.setblocking(False)
        monkeypatch.setenv("PSLAUNCH_PROGRESS", path)

        def reports() -> list[Report]:
            found = []
            with contextlib.suppress(BlockingIOError):
                while True:
                    found += parse_progress(receiver.recv(MAX_PROGRESS_BYTES))
            return found

        yield reports
