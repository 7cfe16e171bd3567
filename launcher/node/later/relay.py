"""What a later shell starts on a node of a job: a way to the head, the records of jobs, files.

`relay SOCKET` carries bytes to and from the head. The others answer on standard output in pieces: a
length (u32, little endian) and so many bytes, at last a length of 0, so that an answer that was cut off is
never taken for a whole one. One that can't be given ends with 74 and its reason on standard error, which
tells it from a line that was cut. `read`, `pack` and `results` take, after the path,
the state folder and the id of the job whose files are wanted: those of another job that came later are
refused.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import selectors
import socket
import struct
import tarfile
from collections.abc import Collection, Iterator, Sequence
from typing import Any, BinaryIO, Callable

from .. import codes
from ..listing import EARLIER, OWNER, list_folder, show_few
from ..procs import complain
from . import record

PIECE_BYTES = 64 * 1024
LENGTH = struct.Struct("<I")
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
            "pack": logs,
            "results": results,
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

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for at in range(0, len(view), PIECE_BYTES):
            piece = bytes(view[at : at + PIECE_BYTES])
            _write_all(LENGTH.pack(len(piece)) + piece)
        return len(view)

    def finish(self) -> None:
        """Say that this was all."""
        _write_all(LENGTH.pack(0))


def pieces(answer: BinaryIO) -> Iterator[bytes]:
    """Return what was written into an Answer, as it comes. Raises EOFError where it is not whole."""
    while size := LENGTH.unpack(_exactly(answer, LENGTH.size))[0]:
        if size > PIECE_BYTES:
            raise EOFError(f"a piece of {size} bytes")
        yield _exactly(answer, size)


def _exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError("the answer was cut off")
    return data


def records(answer: Answer) -> None:
    """The records of this user's jobs that are led here, one JSON object a line."""
    for r in record.read_all(record.folder(os.environ)):
        if not record.is_pointer(r):
            answer.write(json.dumps(r).encode() + b"\n")


def read(answer: Answer, path: str, *whose: str) -> None:
    """A file."""
    _check_owner(path, *whose)
    with open(os.path.expanduser(path), "rb") as f:
        while data := f.read(PIECE_BYTES):
            answer.write(data)
    _check_owner(path, *whose)  # another job may have come meanwhile


def logs(answer: Answer, path: str, *whose: str) -> None:
    """What is in the folder of a node's logs, without what is ours there, output/ of --log_dir, and the
    folders of nodes that share it."""
    others = [".pslaunch", "nodefile"]
    if f"{path}/.pslaunch" in whose:
        others.append("output")
    with contextlib.suppress(OSError, IndexError):
        others += (x for x in os.listdir(os.path.expanduser(whose[0])) if x.startswith("node-"))
    pack(answer, path, *whose, without=others)


def pack(
    answer: Answer, path: str, *whose: str, before: Collection[str] = (), without: Collection[str] = ()
) -> None:
    """What is in a folder, as a tar stream, each name with its content; nothing where it is not there.

    An entry of the type NOTES at the end says in lines for people what is left out or was cut. What is
    `before`, as `list_folder` has it, is left out, and what goes away meanwhile passed over, as are folders
    at the top whose name is in `without`.
    """
    _check_owner(path, *whose)
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
                vars(archive)["inodes"] = {}  # else a further name of a file comes as a link to the first
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
            few = [(show_few(sorted(names), MAX_NAMES), why) for why, names in told.items()]
            notes = "\n".join(f"{names}: {why}".replace("\n", "\\n") for names, why in few)
            data = notes.encode("utf-8", "backslashreplace")
            info = tarfile.TarInfo("notes")
            info.type, info.size = NOTES, len(data)
            archive.addfile(info, io.BytesIO(data))
    _check_owner(path, *whose)


def results(answer: Answer, path: str, *whose: str) -> None:
    """What was not in a folder before the job, or was otherwise; all where it is not known what was there."""
    before = _state(EARLIER, *whose)
    pack(answer, path, *whose, before=set(before) if before[:1] == [f"{whose[1]}\n"] else ())


class Padded(io.BufferedReader):
    """A file that never ends: zeros follow."""

    def read(self, size: int) -> bytes:  # type: ignore[override] # tar says how much
        return super().read(size).ljust(size, b"\0")


class OthersFiles(Exception):
    """What is there is another job's."""


def _check_owner(path: str, *whose: str) -> None:
    """Raises OthersFiles where files are another job's; they may be ours where nothing says whose."""
    for line in _state(OWNER, *whose)[:1]:
        if line.strip() != whose[1]:
            raise OthersFiles(f"{path} is of job {line.strip()} now, no longer of {whose[1]}")


def _state(name: str, *whose: str) -> list[str]:
    """The lines of a file of the state folder; none where it is not there, or nothing was said of it."""
    with contextlib.suppress(FileNotFoundError, IndexError):
        path = os.path.join(os.path.expanduser(whose[0]), name)
        with open(path, encoding="utf-8") as f:
            return list(f)
    return []
