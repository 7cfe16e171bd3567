"""What a later shell starts on a node of a job: a way to the head, the records of jobs, files.

`relay SOCKET` carries bytes to and from the head. The others answer on standard output in pieces: a
length (u32, little endian) and so many bytes, at last a length of 0 and the SHA-256 of all bytes, so that
an answer that was cut off is never taken for a whole one. One that can't be given ends with 74 and its reason
on standard error, which tells it from a line that was cut. `read`, `pack` and `results` take, after the path,
the state folder and the id of the job whose files are wanted: those of another job that came later are
refused.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import os
import selectors
import socket
import stat
import struct
import tarfile
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Callable

from pslaunch.node import codes, record
from pslaunch.node.keeper import complain

PIECE_BYTES = 64 * 1024
LENGTH = struct.Struct("<I")
DIGEST_BYTES = 32
NOTES = b"P"  # type of an entry of an archive; tar leaves the capitals to whoever wants them
MAX_NAMES = 3  # that are said of many


def main(mode: str, words: Sequence[str]) -> int:
    """Run one of the modes; its exit code."""
    try:
        if mode == "relay":
            return relay(words[0])
        answer = Answer()
        modes: dict[str, Callable[..., None]] = {
            "records": records,
            "read": read,
            "pack": pack,
            "results": functools.partial(pack, changed=True),
        }
        modes[mode](answer, *words)
        answer.finish()
        return 0
    except OthersFiles as e:
        complain(f"{mode}: {e}")
        return codes.IO
    except BrokenPipeError:
        return 0
    except OSError as e:
        complain(f"{mode}: {e.filename or ' '.join(words)}: {e.strerror}")
        return codes.IO


def relay(path: str) -> int:
    """Carry bytes between standard input and output and a Unix socket, until either side closes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock, selectors.DefaultSelector() as selector:
        sock.connect(path)
        selector.register(0, selectors.EVENT_READ)
        selector.register(sock, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                data = os.read(key.fd, PIECE_BYTES)
                if not data:
                    return 0
                if key.fd == 0:
                    sock.sendall(data)
                else:
                    _write_all(data)


def _write_all(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


class Answer(io.RawIOBase):
    """What is written goes to standard output in pieces."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._digest.update(view)
        for at in range(0, len(view), PIECE_BYTES):
            piece = bytes(view[at : at + PIECE_BYTES])
            _write_all(LENGTH.pack(len(piece)) + piece)
        return len(view)

    def finish(self) -> None:
        """Say that this was all."""
        _write_all(LENGTH.pack(0) + self._digest.digest())


def pieces(answer: BinaryIO) -> Iterator[bytes]:
    """What was written into an Answer, as it comes. Raises EOFError where it is not whole."""
    digest = hashlib.sha256()
    while size := LENGTH.unpack(_exactly(answer, LENGTH.size))[0]:
        if size > PIECE_BYTES:
            raise EOFError(f"a piece of {size} bytes")
        data = _exactly(answer, size)
        digest.update(data)
        yield data
    if _exactly(answer, DIGEST_BYTES) != digest.digest():
        raise EOFError("the answer was changed on its way")


def _exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError("the answer was cut off")
    return data


def records(answer: Answer) -> None:
    """The records of this user's jobs on this machine, one JSON object a line."""
    for r in record.read_all(record.folder(os.environ)):
        answer.write(json.dumps(r).encode() + b"\n")


def read(answer: Answer, path: str, *whose: str) -> None:
    """A file."""
    _check_owner(path, *whose)
    with open(os.path.expanduser(path), "rb") as f:
        while data := f.read(PIECE_BYTES):
            answer.write(data)
    _check_owner(path, *whose)  # another job may have come meanwhile


def pack(answer: Answer, path: str, *whose: str, changed: bool = False) -> None:
    """What is in a folder, as a tar stream, each name with its content; nothing where it is not there.

    changed: since the job began. What is left out is told in an entry of the type NOTES at the end, in lines
    for people.
    """
    began_ns = _check_owner(path, *whose)
    since_ns = began_ns if changed else 0
    path = os.path.expanduser(path)
    earlier: list[str] = []
    special: list[str] = []

    def add(inside: str) -> None:
        for name in sorted(os.listdir(os.path.join(path, inside))):
            inner = os.path.join(inside, name)
            whole = os.path.join(path, inner)
            status = os.lstat(whole)
            new = max(status.st_ctime_ns, status.st_mtime_ns) >= since_ns
            kind = stat.S_IFMT(status.st_mode)
            if kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
                special.append(inner)
            elif new:
                vars(archive)["inodes"] = {}  # else a further name of a file comes as a link to the first
                archive.add(whole, inner, recursive=False)
            elif kind != stat.S_IFDIR:
                earlier.append(inner)
            if kind == stat.S_IFDIR:
                add(inner)

    with tarfile.open(fileobj=answer, mode="w|") as archive:
        if os.path.isdir(path):
            add("")
        notes = [f"{_few(earlier)}: of an earlier job, left in {path}"] if earlier else []
        notes += [f"{_few(special)}: no file, folder or link"] if special else []
        if notes:
            text = "\n".join(notes).encode("utf-8", "backslashreplace")
            info = tarfile.TarInfo("notes")
            info.type, info.size = NOTES, len(text)
            archive.addfile(info, io.BytesIO(text))
    _check_owner(path, *whose)


def _few(names: list[str]) -> str:
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]).replace("\n", "\\n") + (f" and {more} more" if more > 0 else "")


class OthersFiles(Exception):
    """What is there is another job's."""


def _check_owner(path: str, *whose: str) -> int:
    """Raises OthersFiles where files are another job's; they may be ours where nothing says whose.

    Since when they are ours, as the times of files in output/ count it; 0 where that is not known.
    """
    since_ns = "0"
    if not whose:
        return 0
    from pslaunch.node.premises import OWNER

    state_dir, job_id = whose
    with contextlib.suppress(FileNotFoundError):
        with open(os.path.join(os.path.expanduser(state_dir), OWNER), encoding="utf-8") as f:
            owner, _, since_ns = f.read().strip().partition("\n")
        if owner != job_id:
            raise OthersFiles(f"{path} is of job {owner} now, no longer of {job_id}")
    return int(since_ns or 0)
