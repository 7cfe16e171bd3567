"""Answers from a node: whole ones differ from those that were cut off."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pslaunch.backends.here import NODE
from pslaunch.node import codes, listing
from pslaunch.node.later import relay
from pslaunch.node.later.relay import ANSWER_PIECE_BYTES, NOTES, AnswerWriter, pack_folder, read_pieces
from pslaunch.node.listing import EARLIER, OWNER
from support.folders import begin_job


def answer(*words: str) -> bytes:
    return subprocess.run([*NODE, *words], stdout=subprocess.PIPE, check=True).stdout


def open_tar(data: bytes | bytearray) -> tarfile.TarFile:
    return tarfile.open(fileobj=io.BytesIO(data))


def archive(*words: str) -> tarfile.TarFile:
    """Return the archive that a node answers with."""
    return open_tar(b"".join(read_pieces(io.BytesIO(answer(*words)).read)))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "some file"
    path.write_bytes(os.urandom(ANSWER_PIECE_BYTES + 17))
    return path


def test_a_file_comes_whole_and_an_answer_that_was_cut_off_is_an_error(file: Path) -> None:
    whole = answer("read", str(file))
    assert b"".join(read_pieces(io.BytesIO(whole).read)) == file.read_bytes()
    for cut in (0, 3, 4, 1000, ANSWER_PIECE_BYTES + 4, len(whole) - 5, len(whole) - 1):
        with pytest.raises(EOFError, match="cut off"):
            list(read_pieces(io.BytesIO(whole[:cut]).read))
    with pytest.raises(EOFError, match="a piece of"):
        list(read_pieces(io.BytesIO(b"\xff\xff\xff\xff").read))


def test_an_answer_that_lost_bytes_is_an_error(file: Path) -> None:
    file.write_bytes(bytes(3 * ANSWER_PIECE_BYTES))  # its zeros must not be read as the end
    whole = answer("read", str(file))
    piece = ANSWER_PIECE_BYTES + 20
    bytes_lost = ((0, 1), (10, 5000), (100, ANSWER_PIECE_BYTES), (4, piece + 4))
    whole_pieces = ((0, piece), (piece, 2 * piece))  # all alike
    for start, stop in bytes_lost + whole_pieces:
        with pytest.raises(EOFError, match="damaged" if (start, stop) in whole_pieces else "the answer was"):
            list(read_pieces(io.BytesIO(whole[:start] + whole[stop:]).read))


@pytest.mark.parametrize(
    ("state", "left_out"),
    [("log/.pslaunch", [".pslaunch", "nodefile", "output"]), (".pslaunch", [".pslaunch", "nodefile"])],
)
def test_other_files_in_a_log_folder_are_left_out(tmp_path: Path, state: str, left_out: list[str]) -> None:
    for name in ("log/.pslaunch/node-1", "log/output", "log/nodes", state):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    for name in (".pslaunch/lock", "nodefile", "output/model", "train.log", "nodes/mine.log"):
        (tmp_path / "log" / name).touch()
    packed = archive("pack", str(tmp_path / "log"), str(tmp_path / state), "demo-1")
    came = {name.partition("/")[0] for name in packed.getnames()}
    assert came == {path.name for path in (tmp_path / "log").iterdir()} - set(left_out)


def test_a_file_or_log_folder_that_is_not_there_is_named_and_missing_output_is_empty(tmp_path: Path) -> None:
    for mode, command in (("read", "logs"), ("pack", "fetch")):
        done = subprocess.run(
            [*NODE, mode, str(tmp_path / "no")], capture_output=True, text=True, check=False
        )
        said = f"pslaunch {command}: {tmp_path}/no: No such file or directory\n"
        assert (done.returncode, done.stderr) == (codes.IO, said)
    assert archive("results", str(tmp_path / "no"), str(tmp_path / "state"), "demo-1").getnames() == []


def test_entries_that_no_archive_can_hold_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "output"
    folder.mkdir()
    (folder / "model").write_text("w")
    with contextlib.ExitStack() as stack:
        for name in ("s1", "s2", "s3"):
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.bind(str(folder / name))
        os.mkfifo(folder / "pipe")
        packed = archive("pack", str(folder))
        assert packed.getnames() == ["model", "notes"]
        notes = packed.extractfile("notes")
        assert notes and notes.read() == b"pipe, s1, s2 and 1 more: no file, folder or link"


def results(workspace: Path, job_id: str) -> tuple[dict[str, bytes | None], list[str]]:
    """Return the files made or changed by the job, and the notes about the others."""
    packed = archive("results", f"{workspace}/output", f"{workspace}/.pslaunch", job_id)
    found: dict[str, bytes | None] = {}
    notes = b""
    for member in packed:
        source = packed.extractfile(member)
        data = source.read() if source else None
        if member.type == NOTES:
            notes = data or b""
        else:
            found[member.name] = data
    return found, notes.decode().splitlines()


def test_results_are_new_or_changed_files_at_any_clock(tmp_path: Path) -> None:
    output = tmp_path / "output"
    (output / "old/deep").mkdir(parents=True)
    (output / "mixed").mkdir()
    (output / "link").symlink_to("a")
    odd = os.fsdecode(b"old/new\nline \xff")
    for name in ("a", "b", "mode", "old/deep/c", odd, "mixed/kept", "mixed/again", "mixed/touched", "put"):
        (output / name).write_text("earlier")
    (tmp_path / "cache/in").mkdir(parents=True)
    (tmp_path / "cache/in/older").write_text("of before")
    first = begin_job(tmp_path, "mine-1")
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
    begin_job(tmp_path, "mine-2").leave()
    found, notes = results(tmp_path, "mine-2")
    assert found == {} and notes == [f"a, b, cache/in/older and 9 more: of an earlier job, left in {output}"]


@pytest.mark.parametrize("hindered", [False, True])
def test_unknown_earlier_state_makes_all_files_results(tmp_path: Path, *, hindered: bool) -> None:
    (tmp_path / "output").mkdir()
    (tmp_path / "output/model").write_text("w")
    begin_job(tmp_path, "mine-1").leave()
    assert results(tmp_path, "mine-1")[0] == {}
    if hindered:  # what the job before found stays, and is not believed
        (tmp_path / ".pslaunch" / f"{EARLIER}-0").mkdir()
        begin_job(tmp_path, "mine-2").leave()
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


def packed(out: Meanwhile, folder: Path) -> dict[str, bytes]:
    """Return the files that are packed, by name."""
    pack_folder(out, str(folder))
    made = open_tar(out.data)
    sources = {member.name: made.extractfile(member) for member in made}
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
    assert list(packed(out, folder).values()) == [bytes(100_000)]


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
    assert packed(Meanwhile(lambda: None, 0), tmp_path) == {"params": b"v"}


def test_a_file_that_becomes_shorter_while_it_is_packed_is_padded_and_named(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.write_bytes(b"w" * 200_000)
    found = packed(Meanwhile(lambda: os.truncate(model, 50_000), 10_240), tmp_path)
    data = found.pop("model")
    assert len(data) == 200_000 and set(data) == {0, ord("w")}
    assert data.rstrip(b"\0").strip(b"w") == b""
    assert found == {"notes": b"model: changed while it was read"}
