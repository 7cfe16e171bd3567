"""Programs that a later shell starts on a node of a job: a relay to the head, records of jobs, files.

`relay SOCKET` or `relay JOB` carries bytes to and from the head. The others answer on standard output in
pieces: a length (u32, little endian), a hash, and so many bytes, at last a length of 0 with its hash, which
reveals a truncated answer. The hash is of the piece and its number: mpirun may lose output on its way.
Failures end with 74 and a reason on standard error, unlike a cut line. `read`, `pack` and `results` take,
after the path, the state folder and the id of the job: files of a later job are refused.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import select
import struct
import tarfile
from _blake2 import blake2b  # hashlib would load OpenSSL: megabytes
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Callable

from .. import codes
from ..listing import EARLIER, EARLIER_LOGS, KEPT_JOBS, OWNER, UNFETCHED, list_folder, read_lines, show_few
from ..procs import complain, connect, write_all
from . import record

ANSWER_PIECE_BYTES = 64 * 1024
LENGTH = struct.Struct("<I")
HASH_BYTES = 16
NOTES = b"P"  # type of an entry of an archive; tar reserves capitals for private use
OF_LOGS = ("read", "pack")  # modes that read logs
NAMES_SHOWN = 3  # shown of many


def main(mode: str, words: Sequence[str]) -> int:
    """Run one of the modes and return its exit code."""
    command = mode
    try:
        if mode == "relay":
            return relay(words[0] if words[0][0] in "/@" else find_socket(words[0]))
        answer, (command, write) = AnswerWriter(), MODES[mode]
        whose = words[1:]
        if whose and mode in OF_LOGS:
            words = [_find_logs(mode, *words), *whose]
        _check_owner(*words)
        write(answer, *words)
        _check_owner(*words)  # another job may have begun meanwhile
        answer.finish()
        with contextlib.suppress(OSError, IndexError):
            os.unlink(os.path.join(os.path.expanduser(words[1]), UNFETCHED + mode))
        return 0
    except codes.Refusal as e:
        complain(f"{command}: {e}")
        return e.code
    except BrokenPipeError:
        return 0
    except OSError as e:
        complain(f"{command}: {e.filename or ' '.join(words)}: {e.strerror}")
        return codes.IO


def find_socket(job_id: str) -> str:
    """Return the socket of the head that leads a job here. Raises OSError."""
    with open(os.path.join(record.get_folder(), f"{job_id}.json"), encoding="utf-8") as f:
        return str(json.load(f)["socket"])


def relay(path: str) -> int:
    """Carry bytes between standard input and output and a Unix socket, until either side closes."""
    with connect(path) as sock:
        while True:
            for fd in select.select([0, sock.fileno()], [], [])[0]:
                data = os.read(fd, ANSWER_PIECE_BYTES)
                if not data:
                    return 0
                if fd == 0:
                    sock.sendall(data)
                else:
                    write_all(1, data)


class AnswerWriter(io.RawIOBase):
    """Stream to standard output in pieces."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for at in range(0, len(view), ANSWER_PIECE_BYTES):
            self._write_piece(bytes(view[at : at + ANSWER_PIECE_BYTES]))
        return len(view)

    def _write_piece(self, piece: bytes) -> None:
        write_all(1, LENGTH.pack(len(piece)) + _compute_hash(next(self._numbers), piece) + piece)

    def finish(self) -> None:
        self._write_piece(b"")


class DamagedError(EOFError):
    """Bytes of an answer were lost or changed on its way."""


def _compute_hash(number: int, piece: bytes) -> bytes:
    return blake2b(piece, digest_size=HASH_BYTES, salt=struct.pack("<Q", number)).digest()


def read_pieces(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Yield the bytes written into an AnswerWriter, in their order. Raises EOFError if any are missing.

    `read` returns at most the requested number of bytes, none at the end.
    """
    for number in itertools.count():
        (size,) = LENGTH.unpack(_read_exactly(read, LENGTH.size))
        if size > ANSWER_PIECE_BYTES:
            raise DamagedError(f"the answer was damaged on its way: a piece of {size} bytes")
        expected, piece = _read_exactly(read, HASH_BYTES), _read_exactly(read, size)
        if _compute_hash(number, piece) != expected:
            raise DamagedError("the answer was damaged on its way")
        if not piece:
            return
        yield piece


def _read_exactly(read: Callable[[int], bytes], size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = read(size - len(data))
        if not piece:
            raise EOFError("the answer was cut off")
        data += piece
    return bytes(data)


def write_records(answer: AnswerWriter) -> None:
    """Write the records of this user's jobs that are led here, one JSON object a line."""
    for r in record.read_all(record.get_folder(), complain):
        if not record.is_pointer(r):
            answer.write(json.dumps(r).encode() + b"\n")


def write_file(answer: AnswerWriter, path: str, *_whose: str) -> None:
    with open(os.path.expanduser(path), "rb") as f:
        while data := f.read(ANSWER_PIECE_BYTES):
            answer.write(data)


def pack_logs(answer: AnswerWriter, path: str, *whose: str) -> None:
    """Pack a node's log folder without our own files, output/ of --log_dir, and folders of other nodes.

    Every job makes this folder: FileNotFoundError is raised if it is gone.
    """
    os.stat(os.path.expanduser(path))
    others = [".pslaunch", "nodefile", EARLIER_LOGS]
    if f"{path}/.pslaunch" in whose:
        others.append("output")
    with contextlib.suppress(OSError, IndexError):
        others += (x for x in os.listdir(os.path.expanduser(whose[0])) if x.startswith("node-"))
    pack_folder(answer, path, without=others)


def pack_folder(
    answer: AnswerWriter, path: str, *, before: Collection[str] = (), without: Collection[str] = ()
) -> None:
    """Write a folder as a tar stream, every name with its content; an empty one where there is no folder.

    Left out are entries of `before`, lines of `list_folder`, top folders named in `without`, and files that
    vanish meanwhile. An entry of the type NOTES at the end names left out and cut files in lines for people.
    """
    path = os.path.expanduser(path)
    told: dict[str, list[str]] = {}
    with tarfile.open(fileobj=answer, mode="w|") as archive:
        for line in list_folder(path):
            inner, kind = json.loads(line)[:2]
            if inner.split("/")[0] in without:
                continue
            whole = os.path.join(path, inner)
            what = ""
            if kind not in "-dl":
                what = "no file, folder or link"
            elif line not in before:
                vars(archive)["inodes"] = {}  # else a hard link is archived as a link to the first name
                with contextlib.suppress(FileNotFoundError):
                    if kind != "-":
                        archive.add(whole, inner, recursive=False)
                        continue
                    with Padded(io.FileIO(whole)) as f:
                        info = archive.gettarinfo(arcname=inner, fileobj=f)
                        archive.addfile(info, f)  # type: ignore[arg-type]
                        if f.tell() < info.size:
                            what = "changed while it was read"
            elif kind != "d":
                what = f"of an earlier job, left in {path}"
            if what:
                told.setdefault(what, []).append(inner)
        if told:
            few = [(show_few(sorted(names), NAMES_SHOWN), why) for why, names in told.items()]
            notes = "\n".join(f"{names}: {why}".replace("\n", "\\n") for names, why in few)
            data = notes.encode("utf-8", "backslashreplace")
            info = tarfile.TarInfo("notes")
            info.type, info.size = NOTES, len(data)
            archive.addfile(info, io.BytesIO(data))


def pack_results(answer: AnswerWriter, path: str, state_dir: str, job_id: str) -> None:
    """Pack files that are new or changed since the job began; all if the earlier state is unknown."""
    before = read_lines(state_dir, EARLIER)
    pack_folder(answer, path, before=set(before) if before[:1] == [f"{job_id}\n"] else ())


# By mode: the user's command that needs it, and its function.
MODES: dict[str, tuple[str, Callable[..., None]]] = {
    "records": ("jobs", write_records),
    "read": ("logs", write_file),
    "pack": ("fetch", pack_logs),
    "results": ("fetch", pack_results),
}


class Padded(io.BufferedReader):
    """File that never ends: zeros follow."""

    def read(self, size: int) -> bytes:  # type: ignore[override] # tar gives the size
        return super().read(size).ljust(size, b"\0")


def is_here(state_dir: str, job_id: str) -> bool:
    return read_lines(state_dir, OWNER)[:1] == [f"{job_id}\n"]


def _find_logs(mode: str, path: str, state_dir: str, job_id: str) -> str:
    """Return the present path of a job's log folder, or with `read` of a log: a later job puts them away."""
    if f"{job_id}\n" not in read_lines(state_dir, KEPT_JOBS):
        return path
    folder, name = os.path.split(path) if mode == "read" else (path, "")
    return os.path.join(folder, EARLIER_LOGS, job_id, name)


def _check_owner(path: str = "", *whose: str) -> None:
    """Raise Refusal where the files belong to another job; files without an owner pass."""
    for line in read_lines(whose[0], OWNER)[:1] if whose else ():
        if (job_id := line.strip()) != whose[1] and f"/{EARLIER_LOGS}/{whose[1]}" not in path:
            text = f"{path} now has the files of job {job_id}, no longer those of {whose[1]}"
            raise codes.Refusal(codes.IO, text)
