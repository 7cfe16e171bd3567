"""The folder that is sent: ignored and refused files, links to mounted folders, further folders."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pslaunch.node import codes
from pslaunch.node.codes import Refusal
from pslaunch.node.dispatch import manifest as manifest_module
from pslaunch.node.dispatch.dispatch import split_by_node
from pslaunch.node.dispatch.manifest import Entry, decode, encode
from pslaunch.node.dispatch.sender import Source
from pslaunch.node.dispatch.staging import Staging
from pslaunch.node.job import Package
from pslaunch.node.line.wire import Data
from pslaunch.node.loop import Loop
from pslaunch.ship import package as package_module
from pslaunch.ship.package import PackageFolder, list_package
from support.packages import job_on


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "ws"
    (path / "data/deep").mkdir(parents=True)
    for name in ("train.py", "data/a.txt", "data/b.bin", "data/deep/c.bin", "data/deep/keep.bin"):
        (path / name).write_text(name)
    return path


def paths(package: Package) -> list[str]:
    return [e.path for e in list_package(package, {}).entries]


def read(source: Source, e: Entry) -> bytes:
    with os.fdopen(source.open(e), "rb") as f:
        return f.read()


def test_ignored_files_stay_here(folder: Path) -> None:
    (folder / ".pslaunchignore").write_text("# not these\n*.bin\n!keep.bin\n/data/a.*\nleft/\n")
    (folder / "left").mkdir()
    (folder / "left/far").symlink_to("/etc")  # would be refused
    assert paths(Package(str(folder))) == [
        ".pslaunchignore", "data", "data/deep", "data/deep/keep.bin", "train.py",
    ]  # fmt: skip


def test_large_folders_of_tools_are_named_with_their_sizes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package_module, "HEAVY_BYTES", 3000)
    for name in (".git/a", ".git/b/c", "src/__pycache__/d", "src/__pycache__/.venv/e", "src/x"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(bytes(1500))
    (folder / "node_modules").write_bytes(bytes(5000))
    said: list[str] = []
    for _ in range(2):  # also where the list is kept
        list_package(Package(str(folder)), {"XDG_CACHE_HOME": str(folder)}, said.append)
    assert said[0].startswith(f"{folder} is sent with .git/ (3.0 kB), __pycache__/ (3.0 kB); ")
    assert said == [said[0]] * 2 and "a line in .pslaunchignore leaves it out" in said[0]
    with contextlib.closing(Loop()) as loop:
        came: list[object] = []
        PackageFolder(loop, Package(str(folder)), said.append).get(came.append, came.append)
        loop.run(lambda: bool(came))
    assert said.pop() == said[0]
    (folder / ".pslaunchignore").write_text(".git\n__pycache__\n")
    list_package(Package(str(folder)), {}, said.append)
    assert len(said) == 2


LIST = """
import sys
from pslaunch.node.job import Package
from pslaunch.ship.package import list_package
print(*(e.path for e in list_package(Package(sys.argv[1]), {}).entries), file=sys.stderr)
"""


def test_the_launchers_own_output_stays_here(folder: Path) -> None:
    """Leave out the output of `pslaunch … > job.log` in the workspace: it grows while it is sent."""
    with (folder / "job.log").open("w") as log:
        argv = [sys.executable, "-c", LIST, str(folder)]
        done = subprocess.run(argv, stdout=log, stderr=subprocess.PIPE, text=True, check=True)
    assert "train.py" in done.stderr.split() and "job.log" not in done.stderr.split()


def test_all_links_that_lead_out_are_named_with_advice(folder: Path) -> None:
    (folder / "one").symlink_to("/etc")
    (folder / "data/two").symlink_to("../../elsewhere")
    with pytest.raises(Refusal) as e:
        list_package(Package(str(folder)), {})
    assert e.value.code == codes.USAGE
    for word in ("one is a link that leads out, to /etc", "data/two is a link", "--link NAME=PATH"):
        assert word in str(e.value)


def test_a_link_to_a_mounted_folder_replaces_the_local_one(folder: Path) -> None:
    (folder / "one").symlink_to("/etc")
    package = Package(str(folder), links={"one": "/mnt/one", "data/deep": "/mnt/deep", "new/er": "/mnt/x"})
    entries = list_package(package, {}).entries
    links = {e.path: e.content for e in entries if e.kind == "m"}
    assert links == package.links
    assert [e.path for e in entries] == [
        "data", "data/a.txt", "data/b.bin", "data/deep", "new", "new/er", "one", "train.py",
    ]  # fmt: skip
    assert decode(encode(entries)) == entries


def test_links_that_can_not_be_placed_are_refused(folder: Path, tmp_path: Path) -> None:
    package = Package(str(folder), links={"train.py/x": "/mnt"}, link_label="p.toml:3: link")
    with pytest.raises(Refusal, match=r"^p.toml:3: link train\.py/x=/mnt: train\.py is not a folder of"):
        list_package(package, {})
    (folder / ".pslaunch").rename(folder / "old")
    (folder / ".pslaunch").symlink_to(tmp_path)
    with pytest.raises(Refusal, match=r"\.pslaunch is a link"):
        list_package(Package(str(folder)), {})


def test_hashes_of_a_read_only_folder_are_kept_in_the_users_caches(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    for path in folder.rglob("*"):
        os.utime(path, (1, 1))
    list_package(Package(str(folder)), {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert not (folder / ".pslaunch").exists() and (tmp_path / "cache/pslaunch").is_dir()


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A further folder of the package."""
    path = tmp_path / "wheels"
    path.mkdir()
    return path


def contents(source: Source) -> dict[str, str]:
    return {e.path: read(source, e).decode() for e in source.entries if e.kind == "f"}


def test_a_further_folder_is_part_of_the_package(folder: Path, wheels: Path) -> None:
    (folder / ".pslaunchignore").write_text("data\n")
    (wheels / "below").mkdir()
    (wheels / "below/w.whl").write_text("a wheel")
    source = list_package(Package(str(folder), extras={"own": str(wheels)}), {})
    assert [e.path for e in source.entries if e.kind == "d"] == ["own", "own/below"]
    assert contents(source) == {
        ".pslaunchignore": "data\n", "own/below/w.whl": "a wheel", "train.py": "train.py",
    }  # fmt: skip


def test_refused_files_of_a_further_folder_are_named(folder: Path, wheels: Path) -> None:
    (wheels / "gone.whl").symlink_to("/no/such.whl")
    (wheels / "etc").symlink_to("/etc")
    os.mkfifo(wheels / "pipe")
    with pytest.raises(Refusal) as e:
        list_package(Package(str(folder), extras={"own": str(wheels)}), {})
    for words in (
        f"{wheels} can't be sent",
        "gone.whl is a link that leads out, to /no/such.whl",
        "etc is a link that leads out, to /etc",
        "pipe is neither",
    ):
        assert words in str(e.value)


LISTING = ".pslaunch/listing"


@pytest.fixture
def listed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Return the folder's manifest, which is cached."""
    (folder / "link").symlink_to("data")
    monkeypatch.setattr(manifest_module, "SETTLED_NS", -1)  # as if all files were older
    manifest = list_package(Package(str(folder)), {}).manifest
    assert (folder / LISTING).read_bytes().endswith(manifest)
    return manifest


def test_an_unchanged_folder_is_listed_without_reading_it(
    folder: Path, listed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package_module, "add_hashes", None)
    again = list_package(Package(str(folder)), {})
    assert again.manifest == listed and again.entries == decode(listed)


@pytest.mark.parametrize(
    "change",
    [
        lambda f: (f / "train.py").write_text("another"),
        lambda f: (f / "train.py").chmod(0o700),
        lambda f: (f / "data").chmod(0o700),
        lambda f: (f / "train.py").unlink(),
        lambda f: (f / "new").touch(),
        lambda f: ((f / "link").unlink(), (f / "link").symlink_to("train.py")),
        lambda f: (f / ".pslaunchignore").write_text("train.py"),
    ],
)
def test_every_change_of_a_folder_is_listed(
    folder: Path, listed: bytes, change: Callable[[Path], object]
) -> None:
    change(folder)
    assert list_package(Package(str(folder)), {}).entries != decode(listed)


def test_a_cached_manifest_serves_its_package_alone(folder: Path, listed: bytes) -> None:
    assert list_package(Package(str(folder), links={"mnt": "/mnt"}), {}).manifest != listed
    assert list_package(Package(str(folder)), {}).manifest == listed
    (folder / LISTING).write_bytes((folder / LISTING).read_bytes()[:-1])
    assert list_package(Package(str(folder)), {}).manifest == listed


def test_a_pattern_that_fits_no_file_is_refused(folder: Path) -> None:
    (folder / "data/x-0").write_text("x")
    with pytest.raises(Refusal, match=r"^p.toml:2: shard=x-\{\} fits no file in .*/ws") as e:
        shards = ("data/x-{}", "x-{}")
        list_package(Package(str(folder), data_shards=shards, data_shard_label="p.toml:2: shard"), {})
    assert e.value.code == codes.USAGE


def test_node_0_keeps_the_shards_of_others_for_them(tmp_path: Path) -> None:
    folder = tmp_path / "ws"
    folder.mkdir()
    for i in range(4):
        (folder / f"x-{i}").write_text(f"shard {i}")
    (folder / "same-as-1").write_text("shard 1")
    source = list_package(Package(str(folder)), {})
    mine = split_by_node(job_on(folder, 2, "x-{}"), {})
    assert mine is not None
    node = Staging(str(tmp_path / "node0"), lambda entries: mine(entries)(0))
    wants = node.list_lacking(source.manifest)
    assert {source.entries[w.file].path for w in wants} == {"same-as-1", "x-0", "x-2", "x-3"}
    for want in wants:
        node.take([Data(want.file, 0, (folder / source.entries[want.file].path).read_bytes())])
    node.place()
    assert sorted(p.name for p in (tmp_path / "node0").glob("[!.]*")) == ["same-as-1", "x-0", "x-2"]
    forward = Source(str(tmp_path / "node0"), node.listed, str(tmp_path / "node0/.pslaunch/dispatch/staged"))
    for e in forward.make_part(mine(forward.entries)(1)).entries:
        assert read(forward, e) == (folder / e.path).read_bytes()
    node.close()
    again = Staging(str(tmp_path / "node0"), lambda entries: mine(entries)(0))
    assert again.list_lacking(source.manifest) == []  # a second time nothing travels
    again.close()
