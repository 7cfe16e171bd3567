"""The folders of a job on a node: locked for its user alone, and nothing of a dead job left."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pslaunch.node.agent.job_folders import JobFolders
from pslaunch.node.codes import Refusal
from pslaunch.node.loop import Loop


def make(
    loop: Loop,
    workspace: Path,
    run_dir: str = "",
    ready: Callable[[], None] = lambda: None,
    job_id: str = "demo-1",
) -> JobFolders:
    """Return the folders of a job of one node."""
    order: Any = {"job_id": job_id, "node": 0, "nodes": 1, "dispatched": False, "workspace": str(workspace)}
    order |= {f"{name}_dir": f"{workspace}/{name}" for name in ("log", "output", "state")}
    return JobFolders(
        loop,
        order | {"launcher": "process 7 on desk"},
        run_dir=run_dir,
        hand_over=lambda _: None,
        answer=lambda work: work(),
        refuse=lambda e: pytest.fail(str(e)),
        ready=ready,
    )


def enter(workspace: Path, run_dir: str = "") -> None:
    """Make the folders of a job of one node ready, and abandon them, as by KILL."""
    loop, ready = Loop(), list[bool]()
    made = make(loop, workspace, run_dir, lambda: ready.append(True))
    made.enter()
    loop.run(lambda: bool(ready))
    loop.close()
    os.close(made._lock_fd)


def test_refusal_of_used_folders_names_the_launcher_of_their_job(tmp_path: Path) -> None:
    with contextlib.closing(Loop()) as loop:
        ready: list[bool] = []
        first = make(loop, tmp_path, "/run/dir", lambda: ready.append(True))
        first.enter()
        loop.run(lambda: bool(ready))
        text = r"job demo-1 is using this log folder \(its launcher is process 7 on desk\); end it or wait"
        with pytest.raises(Refusal, match=text):
            make(loop, tmp_path, job_id="demo-2").enter()
        first.leave()


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
