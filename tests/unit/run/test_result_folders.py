"""While one job has a folder for its results, no other job writes there."""

from __future__ import annotations

from pathlib import Path

import pytest

from pslaunch.errors import SpecError
from pslaunch.options.local_spec import make_local_site
from pslaunch.options.spec import JobSpec
from pslaunch.run.result_folders import hold, hold_folders

DEFAULT = frozenset(("fetch_output", "fetch_logs"))


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the locks."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state/pslaunch/results"


def job(folder: Path, default_folders: frozenset[str] = frozenset()) -> JobSpec:
    return JobSpec(
        backend="local",
        job_name="j",
        workspace=folder,
        site=make_local_site(folder),
        fetch_output=folder / "output",
        fetch_logs=folder / "log",
        default_folders=default_folders,
    )


def test_second_job_gets_folders_of_its_own_and_a_later_one_the_same_again(
    tmp_path: Path, locks: Path
) -> None:
    spec = job(tmp_path, DEFAULT)
    with hold_folders(spec, "j-1") as (first, warnings):
        assert first == spec and warnings == []
        with hold_folders(spec, "j-2") as (second, warnings):
            own = [tmp_path / "output/j-2", tmp_path / "log/j-2"]
            assert [second.fetch_output, second.fetch_logs] == own and all(path.is_dir() for path in own)
            assert warnings[0] == (
                f"{tmp_path}/output: the results of job j-1 come there, which is not over; "
                f"those of this job come into {tmp_path}/output/j-2"
            )
            assert len(warnings) == 2
    with hold_folders(spec, "j-3") as (third, warnings):
        assert third == spec and warnings == []
    assert [*locks.iterdir()] == []


def test_given_folder_of_another_job_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with (
        hold_folders(job(tmp_path, DEFAULT), "j-1"),
        pytest.raises(SpecError, match=r"--fetch_output=\S+/link/output: .* job j-1 .*; give another"),
        hold_folders(job(tmp_path / "link"), "j-2"),
    ):
        pass


def test_one_job_may_have_one_folder_for_all(tmp_path: Path) -> None:
    both = job(tmp_path)._replace(fetch_logs=tmp_path / "output")
    with hold_folders(both, "j-1") as (spec, warnings):
        assert spec == both and warnings == []


def test_folder_without_a_lock_is_used_with_a_warning(tmp_path: Path, locks: Path) -> None:
    locks.parent.mkdir(parents=True)
    locks.touch()
    with hold_folders(job(tmp_path), "j-1") as (_, warnings):
        assert len(warnings) == 2 and "would not be noticed: can't use" in warnings[0]


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
    with hold(tmp_path, "j-1", print) as none, hold(tmp_path, "j-2", print) as holder:
        assert (none, holder, len(tries)) == ("", "j-1", 3)
