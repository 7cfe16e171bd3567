"""Progress: rate-limited datagrams that never block and never fail."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from pslaunch.runtime.process.progress import PERIOD_S, Progress
from pslaunch.runtime.shared import reports


def test_reports_are_rate_limited_and_states_are_not(tmp_path: Path) -> None:
    now_s = 0.0
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        receiver.settimeout(5)
        progress = Progress(path, clock=lambda: now_s)
        assert progress.is_due()
        progress.report(**{"pass": 1, "batch": 2, "cost": 5.5})
        assert not progress.is_due()
        now_s = PERIOD_S
        assert progress.is_due()
        progress.report_state("finished")
        assert reports.parse_progress(receiver.recv(2000)) == [{"pass": 1, "batch": 2, "cost": 5.5}]
        assert reports.parse_progress(receiver.recv(2000)) == [
            {"pass": 1, "batch": 2, "cost": 5.5, "state": "finished"}
        ]


def test_a_full_queue_and_nobody_there_are_no_errors(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    progress = Progress(path)
    progress.report_state("connected")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        for _ in range(2000):
            progress.report(batch=1)


@pytest.mark.parametrize("path", [""])
def test_without_a_path_nothing_is_due(path: str) -> None:
    progress = Progress(path)
    assert not progress.is_due()
    progress.report_state("connected")
