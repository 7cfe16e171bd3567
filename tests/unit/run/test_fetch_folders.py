"""While one job has a folder for its results, no other job writes there."""

from __future__ import annotations

from pathlib import Path

import pytest

from pslaunch.errors import SpecError
from pslaunch.run.fetch import hold_folders


def test_folder_of_another_job_is_refused_with_its_id(tmp_path: Path) -> None:
    output, linked = tmp_path / "output", tmp_path / "link/output"
    (tmp_path / "link").symlink_to(tmp_path)
    words = r"^--fetch_output=\S+/link/output: the results of job j-1, .* go there; give another folder"
    with (
        hold_folders({"output": output, "log": tmp_path / "log"}, "j-1"),
        pytest.raises(SpecError, match=words),
        hold_folders({f"--fetch_output={linked}": linked}, "j-2"),
    ):
        pass
    with hold_folders({"output": output}, "j-3"):
        assert output.is_dir()


def test_one_job_may_have_one_folder_for_all(tmp_path: Path) -> None:
    with hold_folders({"output": tmp_path, "logs": tmp_path}, "j-1"):
        pass


def test_ids_of_any_length_are_told_apart(tmp_path: Path) -> None:
    one, other = (f"{'é' * 40}-slurm1234567-20260102-030405-1a2{end}" for end in "bc")
    with (
        hold_folders({"output": tmp_path}, one),
        hold_folders({"logs": tmp_path}, one),
        pytest.raises(SpecError, match=r"of job .*-slurm1234567-20260102-030405-1a2b, which is not over"),
        hold_folders({"output": tmp_path}, other),
    ):
        pass
