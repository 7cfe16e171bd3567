"""Folders of a job of one node, made ready in tests without an agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pslaunch.node.agent.job_folders import JobFolders


def begin_job(workspace: Path, job_id: str = "demo-1", keep_logs: int = 3) -> JobFolders:
    """Lock the folders for a job and make them ready. Raises Refusal."""
    order: Any = {
        "job_id": job_id, "node": 0, "nodes": 1, "dispatched": False, "launcher": "process 7 on desk",
        "keep_logs": keep_logs,
        "workspace": str(workspace), "log_dir": f"{workspace}/log", "output_dir": f"{workspace}/output",
        "state_dir": f"{workspace}/.pslaunch",
    }  # fmt: skip
    folders = JobFolders(order, lambda *_: None)
    folders.enter()
    return folders
