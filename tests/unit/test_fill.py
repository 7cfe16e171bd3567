"""Copies of a workspace for the nodes of a simulated cluster."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pslaunch.node.fill import fill


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    (folder / "data").mkdir(parents=True)
    (folder / "data/a.txt").write_text("a")
    (folder / "train.py").write_text("1")
    (folder / "train.py").chmod(0o755)
    for own in ("log", "output", ".pslaunch"):
        (folder / own).mkdir()
        (folder / own / "old").touch()
    return folder


def test_a_copy_is_as_the_source_without_what_is_the_nodes_own(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    (target / "log").mkdir(parents=True)
    (target / "log/train.log").touch()
    (target / "gone.txt").touch()
    (target / "folder").mkdir()
    fill(str(target), str(source))
    assert sorted(p.name for p in target.iterdir()) == ["data", "log", "train.py"]
    assert (target / "data/a.txt").read_text() == "a"
    assert (target / "train.py").stat().st_mode & 0o777 == 0o755
    assert [p.name for p in (target / "log").iterdir()] == ["train.log"]


def test_links_lead_to_the_same_place(source: Path, tmp_path: Path) -> None:
    (tmp_path / "far.txt").write_text("far")
    (source / "near").symlink_to("data/a.txt")
    (source / "far").symlink_to("../far.txt")
    target = tmp_path / "deep/er/copy"
    fill(str(target), str(source))
    assert (target / "near").readlink() == Path("data/a.txt")
    assert (target / "far").read_text() == "far"


def test_a_workspace_inside_the_source_is_no_part_of_its_copy(source: Path) -> None:
    target = source / "mylogs/.pslaunch/nodes/1/ws"
    fill(str(target), str(source))
    assert not (target / "mylogs").exists() and (target / "train.py").exists()


def test_what_can_not_be_copied_is_named(source: Path, tmp_path: Path) -> None:
    os.mkfifo(source / "pipe")
    with pytest.raises(OSError, match="neither file, folder nor link") as e:
        fill(str(tmp_path / "copy"), str(source))
    assert e.value.filename == str(source / "pipe")
