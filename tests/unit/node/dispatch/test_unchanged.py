"""The fast path recognizes an untouched workspace and notices every change."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pslaunch.node.dispatch import unchanged as seen
from pslaunch.node.dispatch.into_place import MANIFEST, Store
from pslaunch.node.dispatch.manifest import compute_digest
from pslaunch.node.dispatch.staging import Staging
from pslaunch.node.line.wire import Data
from support.packages import list_source


@pytest.fixture
def package(tmp_path: Path) -> bytes:
    """Return the manifest of a folder with every kind of entry."""
    folder = tmp_path / "package"
    (folder / "data").mkdir(parents=True)
    (folder / "data/a\nb").write_text("first")
    (folder / os.fsdecode(b"\xff")).write_text("second")
    (folder / "link").symlink_to("data")
    return list_source(folder).manifest


@pytest.fixture
def store(tmp_path: Path, package: bytes) -> Store:
    """Return a workspace filled with the package."""
    incoming = Staging(str(tmp_path / "ws"))
    contents = {compute_digest(text): text for text in (b"first", b"second")}
    for want in incoming.list_lacking(package):
        incoming.take([Data(want.file, 0, contents[incoming.listed[want.file].content])])
    incoming.place()
    incoming.remember()
    incoming.close()
    return Store(str(tmp_path / "ws"))


def test_untouched_workspace_is_known_without_its_manifest(store: Store, package: bytes) -> None:
    (Path(store.workspace) / "made by a program").write_text("this is none of the package's business")
    assert seen.glance(store) == compute_digest(package)
    again = Staging(store.workspace)
    assert again.compare(compute_digest(package)) == []
    before = Path(store.path, MANIFEST).stat()
    again.place()
    again.remember()
    assert Path(store.path, MANIFEST).stat() == before and seen.glance(store) == compute_digest(package)


def rewrite(path: Path) -> None:
    st = path.stat()
    path.write_text("FIRST")
    os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns))  # as programs do that cover their tracks


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize(
    "change",
    [
        lambda ws: rewrite(ws / "data/a\nb"),
        lambda ws: (ws / "data/a\nb").chmod(0o755),
        lambda ws: (ws / "data/a\nb").unlink(),
        lambda ws: shutil.rmtree(ws / "data"),
        lambda ws: (ws / "data").chmod(0o700),
        lambda ws: ((ws / "data").rename(ws / "moved"), (ws / "data").symlink_to("moved")),
        lambda ws: ((ws / "link").unlink(), (ws / "link").symlink_to("elsewhere")),
        lambda ws: ((ws / "link").unlink(), (ws / "link").mkdir()),
        lambda ws: (ws / ".pslaunch/dispatch" / MANIFEST).write_bytes(b""),
        lambda ws: (ws / ".pslaunch/dispatch" / MANIFEST).unlink(),
        lambda ws: (ws / ".pslaunch/dispatch" / seen.SEEN).unlink(),
        lambda ws: (ws / ".pslaunch/dispatch" / seen.SEEN).write_bytes(b"[1, 2]"),
        lambda ws: cut(ws / ".pslaunch/dispatch" / seen.SEEN),  # by a power cut
    ],
)
def test_every_change_ends_the_fast_path(store: Store, change: Callable[[Path], object]) -> None:
    change(Path(store.workspace))
    assert seen.glance(store) == ""


def test_wrong_workspace_keeps_no_fingerprints(store: Store, package: bytes) -> None:
    incoming = Staging(store.workspace)
    incoming.list_lacking(package)
    incoming.place()
    rewrite(Path(store.workspace) / "data/a\nb")
    incoming.remember()
    assert seen.glance(store) == ""
