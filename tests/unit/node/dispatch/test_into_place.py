"""Atomic update of a workspace, interrupted at any step."""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pslaunch.node.codes import Refusal
from pslaunch.node.dispatch import into_place as place
from pslaunch.node.dispatch.into_place import Store
from pslaunch.node.dispatch.manifest import Hashes
from pslaunch.node.dispatch.sender import Source
from pslaunch.node.dispatch.staging import Staging
from pslaunch.node.line.wire import Data
from support.disks import fill, small_disk
from support.packages import list_source

Tree = dict[str, Any]


def build(folder: Path, tree: Tree) -> None:
    """Make files (text), executable files (bytes), folders (dict) and links (Path)."""
    folder.mkdir(exist_ok=True)
    for name, what in tree.items():
        path = folder / name
        if isinstance(what, dict):
            build(path, what)
        elif isinstance(what, Path):
            path.symlink_to(what)
        else:
            path.write_bytes(what.encode() if isinstance(what, str) else what)
            path.chmod(0o644 if isinstance(what, str) else 0o755)
            os.utime(path, ns=(10**18, 10**18 + len(what)))


def pending(ws: Path) -> bool:
    """Return whether a cut has left a journal."""
    return (ws / ".pslaunch/dispatch" / place.JOURNAL).exists()


def state(folder: Path) -> dict[str, tuple[str, ...]]:
    """Return everything that a program sees of a workspace."""
    found: dict[str, tuple[str, ...]] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name.startswith(".pslaunch"):
            continue
        st = path.lstat()
        mode = oct(stat.S_IMODE(st.st_mode))
        if path.is_symlink():
            found[name] = ("link", str(path.readlink()))
        elif path.is_dir():
            found[name] = ("folder", mode)
        else:
            found[name] = ("file", mode, path.read_text(), str(st.st_mtime_ns))
    return found


def dispatch(source: Path, workspace: Path) -> list[int]:
    """Do what both ends do, without a line between them; returns the files that were sent."""
    package = list_source(source)
    entries = package.entries
    incoming = Staging(str(workspace))
    wants = incoming.list_lacking(package.manifest)
    for want in wants:
        content = (source / entries[want.file].path).read_bytes()
        assert incoming.take([Data(want.file, want.offset, content[want.offset :])]) == []
    assert incoming.is_whole
    incoming.place()
    incoming.close()
    return [want.file for want in wants]


OLD: Tree = {
    "train.py": "old", "same": "same", "gone": "gone", "mode": "m", "was_file": "f", "was_link": Path("same"),
    "was_folder": {"in": "in"}, "gone_folder": {"deep": {"x": "x"}}, "kept_folder": {"theirs": "theirs"},
    "moved": "moved content", "link": Path("same"), "twice": "double",
}  # fmt: skip
NEW: Tree = {
    "train.py": "newer", "same": "same", "mode": b"m", "was_file": {"now": "folder"}, "was_link": "file now",
    "was_folder": "a file", "elsewhere": {"moved": "moved content"}, "link": Path("train.py"),
    "twice": "double", "thrice": "double", "a": {"b": {"c": "new", "e": ""}, "b-c": "new"}, "empty": "",
}  # fmt: skip


@pytest.fixture
def old(tmp_path: Path) -> Path:
    build(tmp_path / "old", OLD)
    return tmp_path / "old"


@pytest.fixture
def new(tmp_path: Path) -> Path:
    build(tmp_path / "new", NEW)
    return tmp_path / "new"


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    return tmp_path / "ws"


def with_programs_files(workspace: Path) -> None:
    """Add files of programs, which every dispatch keeps."""
    (workspace / "kept_folder/written").write_text("by a program")
    (workspace / "result").write_text("by a program")
    (workspace / "log").mkdir()
    (workspace / "log/train.log").write_text("log")


def test_only_lacking_files_are_sent(old: Path, new: Path, ws: Path) -> None:
    assert dispatch(old, ws)
    assert state(ws) == state(old)
    assert dispatch(old, ws) == []
    sent = {list_source(new).entries[i].path for i in dispatch(new, ws)}
    # One of two equal files is sent, and no moved or copied file; an empty file needs no bytes.
    assert sent == {"train.py", "was_file/now", "was_link", "was_folder", "a/b/c"} or sent == {
        "train.py", "was_file/now", "was_link", "was_folder", "a/b-c",
    }  # fmt: skip
    assert state(ws) == state(new)


def test_files_of_programs_stay(old: Path, new: Path, ws: Path) -> None:
    dispatch(old, ws)
    with_programs_files(ws)
    (ws / "gone").write_text("changed by a program")
    (ws / "train.py").write_text("changed too")
    dispatch(new, ws)
    found = state(ws)
    for name in ("result", "kept_folder/written", "log/train.log", "gone"):
        assert name in found, name
    assert "kept_folder/theirs" not in found and "gone_folder" not in found
    assert found["train.py"] == state(new)["train.py"]


def test_a_file_that_programs_changed_is_sent_again(old: Path, ws: Path) -> None:
    dispatch(old, ws)
    (ws / "train.py").write_text("bad")  # as long as before
    os.utime(ws / "train.py", ns=(10**18, 10**18 + 3))
    (ws / "mode").chmod(0o600)
    (ws / "gone_folder/deep").rename(ws / "gone_folder/other")
    dispatch(old, ws)
    assert {k: v for k, v in state(ws).items() if "other" not in k} == state(old)


def test_a_read_only_folder_is_filled_and_emptied(ws: Path, tmp_path: Path) -> None:
    build(tmp_path / "old", {"ro": {"x": "x", "y": "y"}})
    build(tmp_path / "new", {"ro": {"x": "z"}})
    for name in ("old", "new"):
        (tmp_path / name / "ro").chmod(0o555)
    dispatch(tmp_path / "old", ws)
    dispatch(tmp_path / "new", ws)
    assert state(ws) == state(tmp_path / "new")
    assert state(ws)["ro"] == ("folder", "0o555")


# --- cut at every step ---

STEPS = ("rename", "unlink", "rmdir", "mkdir", "symlink", "fchmod", "utime", "ftruncate", "fsync", "write")


def cut_at(n: int, work: Callable[[], object]) -> bool:
    """Do the work in a process that ends as by SIGKILL at its n-th step; return True if it finished."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    left = [n]

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            if not left[0]:
                os._exit(9)
            left[0] -= 1
            return call(*args, **kwargs)

        return step

    try:
        for name in STEPS:
            setattr(os, name, counted(getattr(os, name)))
        work()
        os._exit(0)
    finally:
        os._exit(3)


def test_a_cut_leaves_the_old_workspace_or_the_new_one_never_half(
    old: Path, new: Path, tmp_path: Path
) -> None:
    seen, n, over = set(), 0, False
    while not over:
        ws = tmp_path / f"ws{n}"
        dispatch(old, ws)
        with_programs_files(ws)
        before = state(ws)
        over = cut_at(n, lambda ws=ws: dispatch(new, ws))  # type: ignore[misc]
        if not pending(ws):
            assert state(ws) in (before, expected(new, before)), n
        place.finish(str(ws))
        assert not pending(ws)
        seen.add(state(ws) == before)
        assert state(ws) in (before, expected(new, before)), n
        dispatch(new, ws)  # and after it all is as if nothing had been
        assert state(ws) == expected(new, before), n
        n += 1
    assert n > 40 and seen == {True, False}


def expected(new: Path, before: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    programs = ("kept_folder", "kept_folder/written", "result", "log", "log/train.log")
    return dict(sorted({**state(new), **{name: before[name] for name in programs}}.items()))


def test_a_cut_while_a_cut_is_mended(old: Path, new: Path, tmp_path: Path) -> None:
    n, over = 0, False
    while not over:
        ws = tmp_path / f"ws{n}"
        dispatch(old, ws)
        open_journal(new, ws)
        over = cut_at(n, lambda ws=ws: place.finish(str(ws)))  # type: ignore[misc]
        place.finish(str(ws))
        assert state(ws) == state(new), n
        n += 1
    assert n > 20


def open_journal(new: Path, ws: Path) -> None:
    """Interrupt a dispatch just after the journal was opened."""
    real = place._move
    place._move = lambda *_: os._exit(9)
    try:
        assert not cut_at(10**6, lambda: dispatch(new, ws))
    finally:
        place._move = real
    assert pending(ws)


# --- what programs put in the way ---


@pytest.mark.parametrize(
    ("new", "theirs"),
    [
        ({"folder": "a file", "file": "ours"}, "folder/result"),
        ({"folder": {"in": "in"}, "file": Path("folder")}, "file"),
        ({"folder": {"in": "in"}, "file": {"in": "in"}}, "file"),
    ],
)
def test_file_of_a_program_in_the_way_is_refused_before_anything_changes(
    ws: Path, tmp_path: Path, new: Tree, theirs: str
) -> None:
    build(tmp_path / "old", {"folder": {"in": "in"}, "file": "ours"})
    build(tmp_path / "new", new)
    dispatch(tmp_path / "old", ws)
    (ws / theirs).write_text("weeks of training")
    before = state(ws)
    with pytest.raises(Refusal, match=f"programs put {theirs} into"):
        dispatch(tmp_path / "new", ws)
    assert state(ws) == before and not pending(ws)
    (ws / theirs).unlink()
    dispatch(tmp_path / "old", ws)
    dispatch(tmp_path / "new", ws)  # as it was put there, it goes
    assert state(ws) == state(tmp_path / "new")


def test_what_vanishes_meanwhile_is_not_in_the_way(
    ws: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path / "old", {"folder": {"in": "in"}})
    build(tmp_path / "new", {"folder": "a file"})
    dispatch(tmp_path / "old", ws)
    monkeypatch.setattr(os, "listdir", lambda _folder: ["gone", "in"])
    old, new = list_source(tmp_path / "old").entries, list_source(tmp_path / "new").entries
    assert place.survey(str(ws), new, old, Hashes(os.devnull)).conflicts == []


def test_copy_of_a_changing_file_is_not_trusted(ws: Path, tmp_path: Path) -> None:
    build(tmp_path / "old", {"a": "GOODxxxx"})
    build(tmp_path / "new", {"b": "GOODxxxx"})
    dispatch(tmp_path / "old", ws)
    incoming = Staging(str(ws))
    assert incoming.list_lacking(list_source(tmp_path / "new").manifest) == []  # it is there already, as a
    (ws / "a").write_text("EVILxxxx")
    with pytest.raises(Refusal, match="has changed since it was listed"):
        incoming.place()
    incoming.close()
    assert dispatch(tmp_path / "new", ws) == [0] and (ws / "b").read_text() == "GOODxxxx"


def test_a_disk_that_becomes_full_is_described_as_it_was_then(tmp_path: Path) -> None:
    build(tmp_path / "new", {"a": "a" * 60_000, "b": "b" * 60_000})
    package = list_source(tmp_path / "new")
    with small_disk(tmp_path / "small") as disk:
        incoming = Staging(str(disk / "ws"))
        first, second = incoming.list_lacking(package.manifest)
        incoming.take([Data(first.file, 0, b"a" * 60_000)])
        fill(disk)
        with pytest.raises(Refusal, match="has 0 bytes free and the package needs 60,000 more"):
            incoming.take([Data(second.file, 0, b"b" * 60_000)])
        incoming.close()


def test_staged_file_is_trusted_by_its_content_alone(ws: Path, tmp_path: Path) -> None:
    build(tmp_path / "new", {"b": "GOODxxxx"})
    entries = list_source(tmp_path / "new").entries
    Store(str(ws)).close()
    for content, sent in ((b"EVILxxxx", [0]), (b"GOODxxxx", [])):
        (ws / ".pslaunch/dispatch/staged" / entries[0].content).write_bytes(content)
        (ws / "b").unlink(missing_ok=True)
        assert dispatch(tmp_path / "new", ws) == sent and (ws / "b").read_text() == "GOODxxxx"


def test_a_part_of_an_earlier_try_is_not_sent_for_the_file_in_its_place(ws: Path, tmp_path: Path) -> None:
    build(tmp_path / "new", {"b": "GOODxxxx"})
    dispatch(tmp_path / "new", ws)
    entries = list_source(ws).entries
    staged = ws / ".pslaunch/dispatch/staged" / entries[0].content
    staged.write_bytes(b"GOOD")
    for ready, sent in ((4, b"GOOD"), (8, b"GOODxxxx")):  # still on its way; in its place
        source = Source(str(ws), entries, str(staged.parent), count_ready={entries[0]: ready}.__getitem__)
        with os.fdopen(source.open(entries[0]), "rb") as f:
            assert f.read() == sent


def test_an_empty_file_is_as_the_last_manifest_says(ws: Path, tmp_path: Path) -> None:
    build(tmp_path / "old", {"run.sh": ""})
    build(tmp_path / "new", {"run.sh": b""})
    dispatch(tmp_path / "old", ws)
    (ws / "run.sh").unlink()
    incoming = Staging(str(ws))
    for source in ("old", "new"):  # as a receiver does that looks before it knows what is offered
        assert incoming.list_lacking(list_source(tmp_path / source).manifest) == []
    incoming.place()
    incoming.close()
    assert state(ws) == state(tmp_path / "new")


@pytest.mark.parametrize("trap", ["was_file", "a", "elsewhere"])
def test_a_link_in_the_way_is_replaced_not_followed(
    old: Path, new: Path, ws: Path, tmp_path: Path, trap: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "now").write_text("not ours")
    dispatch(old, ws)
    (ws / trap).unlink(missing_ok=True)
    (ws / trap).symlink_to(outside)
    dispatch(new, ws)
    assert state(ws) == {**state(new), **{k: v for k, v in state(ws).items() if k == "kept_folder"}}
    assert [p.name for p in outside.iterdir()] == ["now"]
    assert (outside / "now").read_text() == "not ours"


def test_a_link_in_place_of_a_folder_keeps_removal_inside(
    old: Path, new: Path, ws: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    build(outside, {"deep": {"x": "x"}})
    dispatch(old, ws)
    (ws / "gone_folder").rename(ws / "aside")
    (ws / "gone_folder").symlink_to(outside)
    dispatch(new, ws)
    assert (outside / "deep/x").read_text() == "x"


def test_our_own_folder_is_no_link(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "ws/.pslaunch").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        Store(str(tmp_path / "ws"))
    assert not list((tmp_path / "outside").iterdir())
