"""Further folders of a package appear at its top and are read in place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pslaunch.node.codes import Refusal
from pslaunch.node.dispatch.sender import Source
from pslaunch.node.job import Package
from pslaunch.ship.package import list_package


def test_a_further_folder_is_part_of_the_package(tmp_path: Path) -> None:
    workspace, wheels = tmp_path / "ws", tmp_path / "wheels"
    for folder in (workspace / "zz", wheels / "below"):
        folder.mkdir(parents=True)
    (workspace / "a").write_text("of the workspace")
    (wheels / "below/w.whl").write_text("a wheel")
    source = list_package(
        Package(str(workspace), extras={"own": str(wheels)}), {"XDG_CACHE_HOME": str(tmp_path)}
    )
    assert [e.path for e in source.entries] == ["a", "own", "own/below", "own/below/w.whl", "zz"]
    assert contents(source) == {"a": "of the workspace", "own/below/w.whl": "a wheel"}


def test_a_link_to_a_file_elsewhere_is_sent_as_the_file(tmp_path: Path) -> None:
    workspace, wheels = tmp_path / "ws", tmp_path / "wheels"
    for folder in (workspace, wheels):
        folder.mkdir()
    (tmp_path / "elsewhere.whl").write_text("a wheel")
    (wheels / "a.whl").symlink_to("../elsewhere.whl")
    (wheels / "b.whl").symlink_to("a.whl")
    source = list_package(
        Package(str(workspace), extras={"own": str(wheels)}), {"XDG_CACHE_HOME": str(tmp_path)}
    )
    assert contents(source) == {"own/a.whl": "a wheel", "own/b.whl": "a wheel"}
    for e in source.entries:
        if e.kind == "f":
            with os.fdopen(source.open(e), "rb") as f:
                assert f.read() == b"a wheel"


def test_refused_files_of_a_further_folder_are_named(tmp_path: Path) -> None:
    workspace, wheels = tmp_path / "ws", tmp_path / "wheels"
    for folder in (workspace, wheels):
        folder.mkdir()
    (wheels / "gone.whl").symlink_to("/no/such.whl")
    (wheels / "etc").symlink_to("/etc")
    os.mkfifo(wheels / "pipe")
    with pytest.raises(Refusal) as e:
        list_package(Package(str(workspace), extras={"own": str(wheels)}), {"XDG_CACHE_HOME": str(tmp_path)})
    for words in (
        f"{wheels} can't be sent",
        "gone.whl is a link that leads out, to /no/such.whl",
        "etc is a link that leads out, to /etc",
        "pipe is neither",
    ):
        assert words in str(e.value)


def contents(source: Source) -> dict[str, str]:
    return {e.path: Path(source.get_path(e)).read_text() for e in source.entries if e.kind == "f"}
