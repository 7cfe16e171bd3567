"""Answers from a node: whole ones are told from those that were cut off or changed."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest

from pslaunch.node import codes
from pslaunch.node.premises import OWNER
from pslaunch.node.relay import NOTES, PIECE_BYTES, pieces
from support.process import poll_until

NODE = (sys.executable, "-P", "-m", "pslaunch.node")


def answer(*words: str) -> bytes:
    return subprocess.run([*NODE, *words], stdout=subprocess.PIPE, check=True).stdout


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "some file"
    path.write_bytes(os.urandom(PIECE_BYTES + 17))
    return path


def test_a_file_comes_whole(file: Path) -> None:
    assert b"".join(pieces(io.BytesIO(answer("read", str(file))))) == file.read_bytes()


def test_what_was_cut_off_or_changed_is_no_answer(file: Path) -> None:
    whole = answer("read", str(file))
    for cut in (0, 3, 4, 1000, PIECE_BYTES + 4, len(whole) - 33, len(whole) - 1):
        with pytest.raises(EOFError, match="cut off"):
            list(pieces(io.BytesIO(whole[:cut])))
    changed = bytearray(whole)
    changed[100] ^= 1
    with pytest.raises(EOFError, match="changed"):
        list(pieces(io.BytesIO(changed)))
    with pytest.raises(EOFError, match="a piece of"):
        list(pieces(io.BytesIO(b"\xff\xff\xff\xff")))


def test_what_is_in_a_folder_is_packed_and_nothing_where_there_is_none(file: Path) -> None:
    folder = file.parent / "output"
    (folder / "pass-00000").mkdir(parents=True)
    (folder / "pass-00000/params.tar").write_bytes(b"values")
    for path, wanted in ((folder, ["pass-00000", "pass-00000/params.tar"]), (file.parent / "no", [])):
        packed = answer("pack", str(path))
        with tarfile.open(fileobj=io.BytesIO(b"".join(pieces(io.BytesIO(packed))))) as archive:
            assert archive.getnames() == wanted


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = subprocess.run([*NODE, "read", str(tmp_path / "no")], capture_output=True, text=True, check=False)
    assert (
        done.returncode == codes.IO
        and done.stderr == f"pslaunch read: {tmp_path}/no: No such file or directory\n"
    )


def test_what_another_job_left_is_no_answer(file: Path) -> None:
    state = file.parent / "state"
    whose = (str(state), "mine-1")
    assert b"".join(pieces(io.BytesIO(answer("read", str(file), *whose)))) == file.read_bytes()
    state.mkdir()
    (state / OWNER).write_text("mine-1\n")
    assert b"".join(pieces(io.BytesIO(answer("read", str(file), *whose)))) == file.read_bytes()
    (state / OWNER).write_text("other-2\n")
    for words in (("read", str(file)), ("pack", str(file.parent))):
        done = subprocess.run([*NODE, *words, *whose], capture_output=True, check=False)
        assert (done.returncode, done.stdout) == (codes.IO, b"")
        assert b"is of job other-2 now, no longer of mine-1" in done.stderr


def test_a_relay_carries_both_ways_until_a_side_closes(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()

        def shout() -> None:
            sock = server.accept()[0]
            with sock:
                while data := sock.recv(PIECE_BYTES):
                    sock.sendall(data.upper())

        thread = threading.Thread(target=shout)
        thread.start()
        done = subprocess.Popen(
            [*NODE, "relay", str(tmp_path / "s")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        with done:
            assert done.stdin and done.stdout
            done.stdin.write(b"words")
            done.stdin.flush()
            assert done.stdout.read(5) == b"WORDS"
            done.stdin.close()
            assert done.wait() == 0
        thread.join()


def test_of_results_only_what_the_job_has_changed_is_packed_and_the_rest_is_named(tmp_path: Path) -> None:
    output, state = tmp_path / "output", tmp_path / "state"
    state.mkdir()
    (output / "old/deep").mkdir(parents=True)
    (output / "mixed").mkdir()
    for name in ("a", "b", "old/deep/c", "old/new\nline", "mixed/kept", "mixed/again"):
        (output / name).write_text("earlier")
    probe = tmp_path / "probe"
    poll_until(lambda: probe.write_text("") or ticked(probe, output), describe="the clock of files goes on")
    (state / OWNER).write_text(f"mine-1\n{probe.stat().st_ctime_ns}\n")
    (output / "mixed/again").write_text("anew")  # its folder stays as it was
    (output / "made").mkdir()
    shutil.copystat(output / "a", output / "made")
    (output / "copy").write_text("earlier")
    shutil.copystat(output / "a", output / "copy")  # as of a file that was copied with its times
    with tarfile.open(
        fileobj=io.BytesIO(unpacked(answer("results", str(output), str(state), "mine-1")))
    ) as t:
        assert t.getnames() == ["copy", "made", "mixed/again", "notes"]
        notes = t.extractfile("notes")
        assert notes and t.getmember("notes").type == NOTES
        assert notes.read().decode() == (f"a, b, mixed/kept and 2 more: of an earlier job, left in {output}")
    (state / OWNER).write_text("mine-1\n")  # where the time of its begin is not known, all is its own
    with tarfile.open(
        fileobj=io.BytesIO(unpacked(answer("results", str(output), str(state), "mine-1")))
    ) as t:
        assert len(t.getnames()) == 11 and "notes" not in t.getnames()


def ticked(probe: Path, folder: Path) -> bool:
    return probe.stat().st_ctime_ns > max(p.stat().st_ctime_ns for p in (folder, *folder.rglob("*")))


def unpacked(whole: bytes) -> bytes:
    return b"".join(pieces(io.BytesIO(whole)))


def test_what_no_archive_can_hold_is_named(tmp_path: Path) -> None:
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
