"""The folders of a job on a node: locked for its user alone."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from pathlib import Path

import pytest

from pslaunch.node.codes import Refusal, describe_error
from pslaunch.node.listing import EARLIER
from pslaunch.node.run_dir import end_leftovers, make_run_dir_name
from support.folders import begin_job

NOBODY = 65534


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


@pytest.mark.parametrize("name", ["log", "output", ".pslaunch"])
@pytest.mark.parametrize("owner", [NOBODY, 0])
def test_link_of_another_user_is_no_folder_of_a_job(tmp_path: Path, name: str, owner: int) -> None:
    if os.geteuid():
        pytest.skip("makes a link of another user")
    outside, ws = tmp_path / "outside", tmp_path / "ws"
    for folder in (outside, ws):
        folder.mkdir()
    (outside / "train.log").write_text("not ours")
    (ws / name).symlink_to(outside)
    os.lchown(ws / name, owner, owner)
    if owner == NOBODY:
        with pytest.raises(Refusal, match=f"{ws / name} can't be made: it is a link of another user"):
            begin_job(ws)
        assert [p.read_text() for p in outside.iterdir()] == ["not ours"]
    else:  # the user's own, to a larger disk
        begin_job(ws).leave()


@pytest.mark.parametrize("name", ["nodefile", ".pslaunch/lock"])
def test_our_own_files_are_no_links(tmp_path: Path, name: str) -> None:
    outside, ws = tmp_path / "outside", tmp_path / "ws"
    outside.write_text("not ours")
    (ws / ".pslaunch").mkdir(parents=True)
    (ws / name).symlink_to(outside)
    with pytest.raises(OSError, match="Too many levels") as e:
        begin_job(ws)
    assert outside.read_text() == "not ours" and outside.stat().st_mode & 0o777 == 0o644
    assert describe_error(e.value).endswith(
        f"{name}: {e.value.strerror}; a link there is not followed: remove it"
    )


def test_foreign_run_folders_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also links of another user: what is left of our jobs is looked for only in folders of our own."""
    if os.geteuid():
        pytest.skip("makes a folder of another user")
    with tempfile.TemporaryDirectory() as name:
        base, foreign = Path(name), f"pslaunch-{'22' * 6}"
        for folder in (base / "outside", base / "pslaunch-111111111111"):
            folder.mkdir()
            (folder / "guarded").touch()
            os.chown(folder, NOBODY, NOBODY)
        (base / foreign).symlink_to(base / "outside")
        os.lchown(base / foreign, NOBODY, NOBODY)
        before = sorted(base.rglob("*"))
        monkeypatch.setenv("TMPDIR", name)
        assert end_leftovers() == "" and sorted(base.rglob("*")) == before
        monkeypatch.setattr(os, "urandom", lambda _count: b"\x22" * 6)
        assert make_run_dir_name() == str(base / foreign)
        with pytest.raises(FileExistsError):
            Path(make_run_dir_name()).mkdir(0o700)


def test_logs_of_earlier_jobs_are_kept_apart_and_nothing_of_others_is_touched(tmp_path: Path) -> None:
    mine = [tmp_path / "log/mine.txt", tmp_path / "log/earlier/mine/train.log"]
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    for number in range(6):
        begin_job(tmp_path, f"demo-{number}").leave()
        (tmp_path / "log/train.log").write_text(f"demo-{number}")
    (tmp_path / "log/earlier/demo-2/notes").write_text("mine")
    begin_job(tmp_path, "demo-6").leave()
    kept = {path.parent.name: path.read_text() for path in (tmp_path / "log/earlier").glob("demo-*/*.log")}
    assert kept == {f"demo-{number}": f"demo-{number}" for number in (3, 4, 5)}
    assert (tmp_path / "log/earlier/demo-2/notes").exists()  # its log was removed, this is the user's
    assert [path.read_text() for path in mine] == ["mine", "mine"]
    assert not (tmp_path / "log/train.log").exists()


@pytest.mark.parametrize("keep_logs", [3, 0])
def test_logs_that_can_not_be_kept_are_removed_only_if_none_are_wanted(
    tmp_path: Path, keep_logs: int
) -> None:
    begin_job(tmp_path, "demo-1").leave()
    log, earlier = tmp_path / "log/train.log", tmp_path / "log/earlier"
    log.write_text("demo-1")
    earlier.write_text("mine")
    text = f"logs of earlier jobs can't be kept in {earlier}: (Not a directory|File exists); .*--keep_logs 0"
    with pytest.raises(Refusal, match=text) if keep_logs else contextlib.nullcontext():
        begin_job(tmp_path, "demo-2", keep_logs=keep_logs).leave()
    assert log.exists() == bool(keep_logs) and earlier.read_text() == "mine"


def test_a_link_that_leads_nowhere_is_a_log_as_others(tmp_path: Path) -> None:
    begin_job(tmp_path, "demo-1").leave()
    (tmp_path / "log/train.log").symlink_to("nowhere")
    begin_job(tmp_path, "demo-2").leave()
    assert (tmp_path / "log/earlier/demo-1/train.log").is_symlink()


def test_logs_that_may_fill_the_disk_are_not_kept(tmp_path: Path) -> None:
    begin_job(tmp_path, "demo-1").leave()
    disk = os.statvfs(tmp_path)
    with (tmp_path / "log/train.log").open("wb") as f:
        f.truncate(min(2 * disk.f_bavail * disk.f_frsize, 2**43))  # sparse
    begin_job(tmp_path, "demo-2").leave()
    assert not [*(tmp_path / "log").rglob("train.log")]


def test_another_agent_of_a_node_waits_for_what_guards_it_and_goes_on_with_its_files(tmp_path: Path) -> None:
    first = begin_job(tmp_path)
    (tmp_path / "log/train.log").write_text("of the epoch before")
    (tmp_path / "output/model").write_text("of the epoch before")
    waiting = threading.Timer(0.3, first.leave)
    waiting.start()
    second = begin_job(tmp_path)
    waiting.join()
    assert (tmp_path / "log/train.log").read_text() == "of the epoch before"
    assert "model" not in (tmp_path / ".pslaunch" / EARLIER).read_text()
    with pytest.raises(Refusal, match="job demo-1 is using this log folder"):
        begin_job(tmp_path, guard_s=0.1)
    second.leave()
