"""While one job has a folder for its results, no other job writes there."""

from __future__ import annotations

from pathlib import Path

import pytest

from pslaunch.errors import SpecError
from pslaunch.run.fetch import hold_folders


def fail(text: str) -> None:
    raise AssertionError(text)


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the locks."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state/pslaunch/results"


def test_folder_of_another_job_is_refused_with_its_id(tmp_path: Path, locks: Path) -> None:
    output, linked = tmp_path / "output", tmp_path / "link/output"
    (tmp_path / "link").symlink_to(tmp_path)
    words = r"^--fetch_output=\S+/link/output: the results of job j-1, .* go there; give another folder"
    with (
        hold_folders({"output": output, "log": tmp_path / "log"}, "j-1", fail),
        pytest.raises(SpecError, match=words),
        hold_folders({f"--fetch_output={linked}": linked}, "j-2", fail),
    ):
        pass
    with hold_folders({"output": output}, "j-3", fail):
        assert output.is_dir()
    assert [*locks.iterdir()] == []


def test_one_job_may_have_one_folder_for_all(tmp_path: Path) -> None:
    with hold_folders({"output": tmp_path, "logs": tmp_path}, "j-1", fail):
        pass


def test_folder_without_a_lock_is_used_with_a_warning(tmp_path: Path, locks: Path) -> None:
    locks.parent.mkdir(parents=True)
    locks.touch()
    warnings: list[str] = []
    with hold_folders({"output": tmp_path / "output"}, "j-1", warnings.append):
        assert len(warnings) == 1 and "would not be noticed: can't use" in warnings[0]
        assert (tmp_path / "output").is_dir()


def test_lock_that_its_holder_has_just_removed_is_made_anew(
    tmp_path: Path, locks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    lock, tries = fcntl.flock, list[int]()

    def remove_then_lock(fd: int, how: int) -> None:
        if not tries:
            next(locks.iterdir()).unlink()
        tries.append(fd)
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", remove_then_lock)
    with (
        hold_folders({"output": tmp_path}, "j-1", fail),
        pytest.raises(SpecError, match="job j-1"),
        hold_folders({"output": tmp_path}, "j-2", fail),
    ):
        pass
    assert len(tries) == 3
