"""Folders of a job of one node, made ready in tests without an agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pslaunch.node import procs
from pslaunch.node.agent.job_folders import JobFolders


def begin_job(
    workspace: Path, job_id: str = "demo-1", keep_logs: int = 3, guard_s: float = 30.0
) -> JobFolders:
    """Lock the folders for a job and make them ready. Raises Refusal.

    guard_s: for an earlier agent of this node.
    """
    order: Any = {
        "job_id": job_id, "node": 0, "nodes": 1, "dispatched": False, "launcher": "process 7 on desk",
        "keep_logs": keep_logs, "lost_after_s": guard_s - procs.KILL_LIMIT_S, "grace_s": 0.0,
        "workspace": str(workspace), "log_dir": f"{workspace}/log", "output_dir": f"{workspace}/output",
        "state_dir": f"{workspace}/.pslaunch",
    }  # fmt: skip
    folders = JobFolders(order, lambda *_: None)
    folders.enter()
    return folders
