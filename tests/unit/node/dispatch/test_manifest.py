"""Manifest of a folder: encoding, decoding and refusals."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslaunch.node.dispatch import manifest
from pslaunch.node.dispatch.manifest import (
    Entry,
    Hashes,
    ManifestError,
    add_hashes,
    compute_digest,
    decode,
    encode,
    walk_folder,
)

EMPTY = compute_digest(b"")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "ws"
    (path / "data").mkdir(parents=True)
    (path / "data/a.txt").write_text("a")
    (path / "train.py").write_text("1")
    (path / "train.py").chmod(0o755)
    for own in (*sorted(manifest.KEPT - {"nodefile", "nodes"}), "data/log"):
        (path / own).mkdir()
        (path / own / "old").touch()
    return path


def hashes(tmp_path: Path) -> Hashes:
    return Hashes(str(tmp_path / "hashes"))


def file(path: str, content: str = EMPTY, size: int = 0) -> Entry:
    return Entry(path, "f", 0o644, size, 5, content)


def test_walk_leaves_out_the_nodes_own_files(folder: Path, tmp_path: Path) -> None:
    walked = walk_folder(str(folder))
    entries = add_hashes(walked, hashes(tmp_path))
    assert not walked.problems
    assert [(e.path, e.kind) for e in entries] == [
        ("data", "d"), ("data/a.txt", "f"), ("data/log", "d"), ("data/log/old", "f"), ("train.py", "f"),
    ]  # fmt: skip
    program = entries[-1]
    assert (program.mode, program.size) == (0o755, 1)
    assert program.content == compute_digest(b"1")


class Together(Hashes):
    """Hashes of two files that wait for each other."""

    both = threading.Barrier(2)

    def get_hash(self, path: str, st: os.stat_result) -> str:
        self.both.wait(60)
        return super().get_hash(path, st)


def test_large_files_are_hashed_at_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    large = {name: os.urandom(manifest.LARGE_BYTES + 5) for name in ("x", "y")}
    (folder / "train.py").unlink()
    for name, content in large.items():
        (folder / name).write_bytes(content)
    for path in ("data/a.txt", "data/log/old"):
        (folder / path).unlink()
    found = add_hashes(walk_folder(str(folder)), Together(str(tmp_path / "hashes")))
    assert {e.path: e.content for e in found if e.kind == "f"} == {
        name: compute_digest(content) for name, content in large.items()
    }


def test_a_manifest_comes_back_as_it_was(folder: Path, tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(folder) + b"/na\xffme \n")).touch()
    (folder / "near").symlink_to("data/a.txt")
    entries = add_hashes(walk_folder(str(folder)), hashes(tmp_path))
    assert decode(encode(entries)) == entries


def test_every_unsendable_file_is_named(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(folder / "sock"))
    (folder / "data/far").symlink_to("/etc")
    problems = "; ".join(walk_folder(str(folder)).problems)
    for name in ("pipe is neither", "sock is neither", "data/far is a link that leads out, to /etc"):
        assert name in problems


def test_links_inside_are_kept_and_lead_nowhere_else(folder: Path) -> None:
    (folder / "near").symlink_to("data/a.txt")
    (folder / "data/whole").symlink_to(folder / "train.py")
    (folder / "data/round").symlink_to(f"../../{folder.name}/train.py")
    (folder / "dangling").symlink_to("data/none")
    links = {e.path: e.content for e in walk_folder(str(folder)).others if e.kind == "l"}
    assert links == {
        "near": "data/a.txt", "data/whole": "../train.py", "data/round": "../train.py",
        "dangling": "data/none",
    }  # fmt: skip


def test_links_out_of_the_folder_stay_if_nodes_see_the_same_files(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "far.txt").write_text("far")
    (folder / "far").symlink_to("../far.txt")
    walked = walk_folder(str(folder), links_out=True)
    assert not walked.problems
    assert ("m", str(tmp_path / "far.txt")) in [(e.kind, e.content) for e in walked.others]


def test_folders_that_are_left_out_are_not_entered(folder: Path, tmp_path: Path) -> None:
    (folder / "data/secret").mkdir(mode=0)
    seen = []

    def ignored(path: str, is_folder: bool) -> bool:
        seen.append((path, is_folder))
        return path == "data/secret"

    found = add_hashes(walk_folder(str(folder), ignored=ignored, skip=("data/log",)), hashes(tmp_path))
    assert [e.path for e in found] == ["data", "data/a.txt", "train.py"]
    assert ("data/secret", True) in seen


def test_hashes_are_kept_and_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("one")
    os.utime(path, (1, 1))
    known = hashes(tmp_path)
    st_ = path.stat()
    known.trust(st_, "0" * 64)  # what nobody would compute
    known.save()
    assert hashes(tmp_path).get_hash(str(path), st_) == "0" * 64
    path.write_text("two")
    os.utime(path, (1, 1))  # the same size and time: only ctime tells
    assert hashes(tmp_path).get_hash(str(path), path.stat()) == compute_digest(b"two")


def test_a_file_that_was_just_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("one")
    known = hashes(tmp_path)
    os.utime(path)
    known.learn(path.stat(), "0" * 64)
    assert known.get_known(manifest.make_key(path.stat())) == ""


@pytest.mark.parametrize("text", ["", "x", "1 2 3\n", "\0" * 100, "a " + "b" * 64, "\udcff"])
def test_damaged_cache_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "hashes").write_bytes(text.encode("utf-8", "surrogateescape"))
    (tmp_path / "f").write_text("f")
    assert hashes(tmp_path).get_hash(str(tmp_path / "f"), (tmp_path / "f").stat()) == compute_digest(b"f")


BAD = [
    [file("../x")],
    [file("/x")],
    [file("a/../x")],
    [file("a")] * 2,
    [file("b"), file("a")],
    [file("a/x")],  # no folder a
    [file("a"), file("a/x")],  # a file with something in it
    [Entry("a", "l", 0o777, 0, 0, "b"), file("a/x")],  # through a link
    [file(".")],
    [file("")],
    [file("x/")],
    [file("log")],
    [file(".pslaunch")],
    [Entry(".pslaunch", "d", 0o755, 0, 0, "")],
    [file("x", "../" + "0" * 61)],  # a hash names a file of ours
    [file("x", EMPTY.upper())],
    [file("x", size=-1)],
    [file("x", size=2**63)],
    [Entry("x", "d", 0o755, 1, 0, "")],
    [Entry("x", "l", 0o777, 0, 0, "../out")],
    [Entry("x", "l", 0o777, 0, 0, "/etc")],
    [Entry("x", "m", 0o777, 0, 0, "in")],
    [Entry("x", "b", 0o644, 0, 0, "")],
    [Entry("x", "f", 0o4755, 0, 0, EMPTY)],
]


@pytest.mark.parametrize("entries", BAD, ids=lambda e: e[-1].path)
def test_no_path_leads_out(entries: list[Entry]) -> None:
    with pytest.raises(ManifestError):
        decode(encode(entries))


@given(st.binary(max_size=300))
def test_random_bytes_are_refused_as_manifest(noise: bytes) -> None:
    with pytest.raises(ManifestError):
        decode(noise)


@given(st.data())
def test_a_changed_byte_is_refused_or_safe(data: st.DataObject) -> None:
    good = encode(
        [Entry("a", "d", 0o755, 0, 0, ""), file("a/x", size=7), Entry("l", "l", 0o777, 0, 0, "a/x")]
    )
    at = data.draw(st.integers(0, len(good) - 1))
    changed = good[:at] + bytes([data.draw(st.integers(0, 255))]) + good[at + 1 :]
    try:
        entries = decode(changed)
    except ManifestError:
        return
    for e in entries:
        assert not e.path.startswith(("/", "../")) and "/../" not in e.path
