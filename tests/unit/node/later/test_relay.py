"""Answers from a node: whole ones differ from those that were cut off."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pslaunch.node import codes, listing
from pslaunch.node.agent.job_folders import JobFolders
from pslaunch.node.later import relay
from pslaunch.node.later.relay import ANSWER_PIECE_BYTES, NOTES, AnswerWriter, pack_folder, read_pieces
from pslaunch.node.listing import EARLIER, OWNER
from pslaunch.node.loop import Loop

NODE = (sys.executable, "-P", "-m", "pslaunch.node")


def answer(*words: str) -> bytes:
    return subprocess.run([*NODE, *words], stdout=subprocess.PIPE, check=True).stdout


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "some file"
    path.write_bytes(os.urandom(ANSWER_PIECE_BYTES + 17))
    return path


def test_a_file_comes_whole(file: Path) -> None:
    assert b"".join(read_pieces(io.BytesIO(answer("read", str(file))))) == file.read_bytes()


def test_an_answer_that_was_cut_off_is_an_error(file: Path) -> None:
    whole = answer("read", str(file))
    for cut in (0, 3, 4, 1000, ANSWER_PIECE_BYTES + 4, len(whole) - 5, len(whole) - 1):
        with pytest.raises(EOFError, match="cut off"):
            list(read_pieces(io.BytesIO(whole[:cut])))
    with pytest.raises(EOFError, match="a piece of"):
        list(read_pieces(io.BytesIO(b"\xff\xff\xff\xff")))


def test_an_answer_that_lost_bytes_is_an_error(file: Path) -> None:
    file.write_bytes(bytes(3 * ANSWER_PIECE_BYTES))  # its zeros must not be read as the end
    whole = answer("read", str(file))
    for lost in (
        slice(0, 1),
        slice(10, 5000),
        slice(100, ANSWER_PIECE_BYTES),
        slice(4, ANSWER_PIECE_BYTES + 24),
    ):
        with pytest.raises(EOFError):
            list(read_pieces(io.BytesIO(whole[: lost.start] + whole[lost.stop :])))
    piece = ANSWER_PIECE_BYTES + 20
    for at in (
        slice(0, piece),
        slice(piece, 2 * piece),
    ):  # whole pieces, all alike
        with pytest.raises(EOFError, match="damaged"):
            list(read_pieces(io.BytesIO(whole[: at.start] + whole[at.stop :])))


def test_folder_is_packed_and_missing_output_is_empty(file: Path) -> None:
    folder = file.parent / "output"
    (folder / "pass-00000").mkdir(parents=True)
    (folder / "pass-00000/params.tar").write_bytes(b"values")
    whose = (str(file.parent / "state"), "demo-1")
    for path, wanted in ((folder, ["pass-00000", "pass-00000/params.tar"]), (file.parent / "no", [])):
        packed = answer("results", str(path), *whose)
        with tarfile.open(fileobj=io.BytesIO(b"".join(read_pieces(io.BytesIO(packed))))) as archive:
            assert sorted(archive.getnames()) == wanted


@pytest.mark.parametrize(
    ("state", "left_out"),
    [("log/.pslaunch", [".pslaunch", "nodefile", "output"]), (".pslaunch", [".pslaunch", "nodefile"])],
)
def test_other_files_in_a_log_folder_are_left_out(tmp_path: Path, state: str, left_out: list[str]) -> None:
    for name in ("log/.pslaunch/node-1", "log/output", "log/nodes", state):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    for name in (".pslaunch/lock", "nodefile", "output/model", "train.log", "nodes/mine.log"):
        (tmp_path / "log" / name).touch()
    packed = unpacked(answer("pack", str(tmp_path / "log"), str(tmp_path / state), "demo-1"))
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        came = {name.partition("/")[0] for name in archive.getnames()}
    assert came == {path.name for path in (tmp_path / "log").iterdir()} - set(left_out)


def test_a_file_or_log_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    for mode, command in (("read", "logs"), ("pack", "fetch")):
        done = subprocess.run(
            [*NODE, mode, str(tmp_path / "no")], capture_output=True, text=True, check=False
        )
        said = f"pslaunch {command}: {tmp_path}/no: No such file or directory\n"
        assert (done.returncode, done.stderr) == (codes.IO, said)


def unpacked(whole: bytes) -> bytes:
    return b"".join(read_pieces(io.BytesIO(whole)))


def test_entries_that_no_archive_can_hold_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "output"
    folder.mkdir()
    (folder / "model").write_text("w")
    with contextlib.ExitStack() as stack:
        for name in ("s1", "s2", "s3"):
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.bind(str(folder / name))
        os.mkfifo(folder / "pipe")
        with tarfile.open(fileobj=io.BytesIO(unpacked(answer("pack", str(folder))))) as archive:
            assert archive.getnames() == ["model", "notes"]
            notes = archive.extractfile("notes")
            assert notes and notes.read() == b"pipe, s1, s2 and 1 more: no file, folder or link"


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


def begin(loop: Loop, workspace: Path, job_id: str) -> JobFolders:
    """Prepare the folders of a job of one node."""
    order: Any = {"job_id": job_id, "node": 0, "nodes": 1, "dispatched": False, "workspace": str(workspace)}
    order |= {
        "log_dir": f"{workspace}/log",
        "output_dir": f"{workspace}/output",
        "state_dir": f"{workspace}/.pslaunch",
        "launcher": "",
    }
    ready: list[bool] = []
    made = JobFolders(
        loop,
        order,
        run_dir="",
        hand_over=lambda _: None,
        answer=lambda work: work(),
        refuse=lambda e: pytest.fail(str(e)),
        ready=lambda: ready.append(True),
    )
    made.enter()
    loop.run(lambda: bool(ready))
    return made


def results(workspace: Path, job_id: str) -> tuple[dict[str, bytes | None], list[str]]:
    """Return the files made or changed by the job, and the notes about the others."""
    whole = answer("results", f"{workspace}/output", f"{workspace}/.pslaunch", job_id)
    found: dict[str, bytes | None] = {}
    notes = ""
    with tarfile.open(fileobj=io.BytesIO(unpacked(whole))) as archive:
        for member in archive:
            source = archive.extractfile(member)
            data = source.read() if source else None
            if member.type == NOTES:
                assert data
                notes = data.decode()
            else:
                found[member.name] = data
    return found, notes.splitlines()


def test_results_are_new_or_changed_files_at_any_clock(tmp_path: Path, loop: Loop) -> None:
    output = tmp_path / "output"
    (output / "old/deep").mkdir(parents=True)
    (output / "mixed").mkdir()
    (output / "link").symlink_to("a")
    odd = os.fsdecode(b"old/new\nline \xff")
    for name in ("a", "b", "mode", "old/deep/c", odd, "mixed/kept", "mixed/again", "mixed/touched", "put"):
        (output / name).write_text("earlier")
    (tmp_path / "cache/in").mkdir(parents=True)
    (tmp_path / "cache/in/older").write_text("of before")
    first = begin(loop, tmp_path, "mine-1")
    (output / "mode").chmod(0o600)
    (output / "mixed/again").write_text("anew and longer")  # its folder stays as it was
    os.utime(output / "mixed/touched", ns=(0, 1))  # as after a clock that was set back
    (output / "copy").write_text("earlier")
    os.utime(output / "copy", (0, 0))
    (tmp_path / "cache").rename(output / "cache")
    times = (output / "put").stat()
    (tmp_path / "other").write_text("changed")
    os.utime(tmp_path / "other", ns=(times.st_atime_ns, times.st_mtime_ns))
    (tmp_path / "other").rename(output / "put")
    found, notes = results(tmp_path, "mine-1")
    assert found == {
        "cache": None, "cache/in": None, "cache/in/older": b"of before", "copy": b"earlier",
        "mixed/again": b"anew and longer", "mixed/touched": b"earlier", "put": b"changed",
    }  # fmt: skip
    assert notes == [f"a, b, link and 4 more: of an earlier job, left in {output}"]
    first.leave()
    begin(loop, tmp_path, "mine-2").leave()
    found, notes = results(tmp_path, "mine-2")
    assert found == {} and notes == [f"a, b, cache/in/older and 9 more: of an earlier job, left in {output}"]


@pytest.mark.parametrize("hindered", [False, True])
def test_unknown_earlier_state_makes_all_files_results(tmp_path: Path, loop: Loop, *, hindered: bool) -> None:
    (tmp_path / "output").mkdir()
    (tmp_path / "output/model").write_text("w")
    begin(loop, tmp_path, "mine-1").leave()
    assert results(tmp_path, "mine-1")[0] == {}
    if hindered:  # what the job before found stays, and is not believed
        (tmp_path / ".pslaunch" / f"{EARLIER}-0").mkdir()
        begin(loop, tmp_path, "mine-2").leave()
    else:
        (tmp_path / ".pslaunch" / OWNER).write_text("mine-2\n")
    assert results(tmp_path, "mine-2") == ({"model": b"w"}, [])


class Meanwhile(AnswerWriter):
    """Stream that calls a function once so many bytes were written."""

    def __init__(self, then: Callable[[], None], after_bytes: int) -> None:
        super().__init__()
        self._then, self._after_bytes = then, after_bytes
        self.data = bytearray()

    def write(self, data: Any) -> int:
        self.data += data
        if self._after_bytes and len(self.data) >= self._after_bytes:
            self._after_bytes = 0
            self._then()
        return len(data)


def packed(folder: Path, then: Callable[[], None], after_bytes: int) -> dict[str, bytes]:
    out = Meanwhile(then, after_bytes)
    pack_folder(out, str(folder))
    with tarfile.open(fileobj=io.BytesIO(out.data)) as archive:
        sources = {member.name: archive.extractfile(member) for member in archive}
        return {name: source.read() for name, source in sources.items() if source}


@pytest.mark.parametrize("name", ["model-{}", "pass-{}/model"])
def test_files_that_go_away_while_others_are_packed_are_passed_over(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "output"
    names = [name.format(n) for n in range(3)]
    for path in (folder / name for name in names):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(100_000))

    def others_go() -> None:
        for name in names:
            if name.encode() not in out.data:
                (folder / name).unlink()
                if "/" in name:
                    (folder / name).parent.rmdir()

    out = Meanwhile(others_go, 30_000)
    pack_folder(out, str(folder))
    with tarfile.open(fileobj=io.BytesIO(out.data)) as archive:
        assert [member.size for member in archive if member.isfile()] == [100_000]


def test_a_file_that_is_renamed_before_it_is_opened_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.part").write_text("w")
    (tmp_path / "params").write_text("v")
    seen = listing.list_folder

    def late(folder: str) -> Iterator[str]:
        for found in [*seen(folder)]:
            if "model.part" in found:
                (tmp_path / "model.part").rename(tmp_path / "model")
            yield found

    monkeypatch.setattr(relay, "list_folder", late)
    assert packed(tmp_path, lambda: None, 0) == {"params": b"v"}


def test_a_file_that_becomes_shorter_while_it_is_packed_is_padded_and_named(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.write_bytes(b"w" * 200_000)
    found = packed(tmp_path, lambda: os.truncate(model, 50_000), 10_240)
    data = found.pop("model")
    assert len(data) == 200_000 and set(data) == {0, ord("w")}
    assert data.rstrip(b"\0").strip(b"w") == b""
    assert found == {"notes": b"model: changed while it was read"}
