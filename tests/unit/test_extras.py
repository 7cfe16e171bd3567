"""Folders that go along with a package stand at its top, and are read where they are."""

from __future__ import annotations

from pathlib import Path

from pslaunch.node.job import Package
from pslaunch.package import look


def test_a_further_folder_is_part_of_the_package(tmp_path: Path) -> None:
    workspace, wheels = tmp_path / "ws", tmp_path / "wheels"
    for folder in (workspace / "zz", wheels / "below"):
        folder.mkdir(parents=True)
    (workspace / "a").write_text("of the workspace")
    (wheels / "below/w.whl").write_text("a wheel")
    source = look(Package(str(workspace), extras={"own": str(wheels)}), {"XDG_CACHE_HOME": str(tmp_path)})
    assert [e.path for e in source.entries] == ["a", "own", "own/below", "own/below/w.whl", "zz"]
    read = {e.path: Path(source.path(e)).read_text() for e in source.entries if e.kind == "f"}
    assert read == {"a": "of the workspace", "own/below/w.whl": "a wheel"}
