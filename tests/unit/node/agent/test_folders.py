"""The folders of a job on a node: locked for its user alone, and nothing of a dead job left."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pslaunch.node.agent.folders import Premises
from pslaunch.node.loop import Loop


def enter(workspace: Path, run_dir: str = "") -> None:
    """Make the folders of a job of one node ready, and abandon them, as by KILL."""
    order: Any = {"job_id": "demo-1", "node": 0, "nodes": 1, "dispatched": False, "workspace": str(workspace)}
    order |= {f"{name}_dir": f"{workspace}/{name}" for name in ("log", "output", "state")}
    loop, ready = Loop(), list[bool]()
    made = Premises(
        loop,
        order,
        run_dir=run_dir,
        hand_over=lambda _: None,
        answer=lambda work: work(),
        refuse=lambda e: pytest.fail(str(e)),
        ready=lambda: ready.append(True),
    )
    made.enter()
    loop.run(lambda: bool(ready))
    loop.close()
    os.close(made._lock_fd)


def test_no_other_user_can_take_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / "state/lock"
    lock.parent.mkdir()
    lock.touch(0o644)  # of an earlier version
    enter(tmp_path)
    assert lock.stat().st_mode & 0o777 == 0o600


def test_the_run_folder_of_a_job_that_was_killed_is_removed_and_no_other(tmp_path: Path) -> None:
    left, other = tmp_path / f"pslaunch-{'0' * 12}", tmp_path / "pslaunch-notes"
    for run_dir in (left, other):
        run_dir.mkdir()
        enter(tmp_path, str(run_dir))
    assert not left.exists()
    enter(tmp_path)
    assert other.exists()
