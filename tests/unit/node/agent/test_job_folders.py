"""The folders of a job on a node: locked for its user alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from pslaunch.node.codes import Refusal
from support.folders import begin_job


def test_refusal_of_used_folders_names_the_launcher_of_their_job(tmp_path: Path) -> None:
    first = begin_job(tmp_path)
    text = r"job demo-1 is using this log folder \(its launcher is process 7 on desk\); end it or wait"
    with pytest.raises(Refusal, match=text):
        begin_job(tmp_path, "demo-2")
    first.leave()


def test_no_other_user_can_take_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / ".pslaunch/lock"
    lock.parent.mkdir()
    lock.touch(0o644)  # of an earlier version
    begin_job(tmp_path).leave()
    assert lock.stat().st_mode & 0o777 == 0o600
