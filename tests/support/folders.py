"""Folders of a job of one node, made ready in tests without an agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pslaunch.node.agent.job_folders import JobFolders
from pslaunch.node.loop import Loop


def begin_job(loop: Loop, workspace: Path, job_id: str = "demo-1") -> JobFolders:
    """Lock the folders for a job and make them ready. Raises Refusal."""
    order: Any = {
        "job_id": job_id, "node": 0, "nodes": 1, "dispatched": False, "launcher": "process 7 on desk",
        "workspace": str(workspace), "log_dir": f"{workspace}/log", "output_dir": f"{workspace}/output",
        "state_dir": f"{workspace}/.pslaunch",
    }  # fmt: skip
    ready: list[bool] = []
    folders = JobFolders(
        loop,
        order,
        hand_over=lambda *_: None,
        answer=lambda work: work(),
        refuse=lambda e: pytest.fail(str(e)),
        ready=lambda: ready.append(True),
    )
    folders.enter()
    loop.run(lambda: bool(ready))
    return folders
