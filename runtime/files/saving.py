"""Files of saved shards: names, header, and the move into place. Needs no numpy.

A shard hands over the content after the header (csrc/shard/ps_cut.h). docs/checkpoint.md has the format.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any

from ..shared.remedies import find_remedy

FILE_MAGIC = b"PSLSHARD"
FILE_VERSION = 4  # 3 had the pass of a key's last push, where now the days since then are
START = struct.Struct("<8sII")  # magic, version, length of the header
DIGEST_BYTES = 32
PART_SUFFIX = ".bin"
MAX_HEADER_BYTES = 1 << 20


def encode_start(header: Mapping[str, Any]) -> bytes:
    """Return the start of a part with this header, padded to a multiple of 8 bytes."""
    text = json.dumps(header, sort_keys=True).encode()
    text += b" " * (-(START.size + len(text)) % 8)
    return START.pack(FILE_MAGIC, FILE_VERSION, len(text)) + text


def decode_start(start: bytes) -> tuple[dict[str, Any], int]:
    """Return the header of a part and the length of its start. Raises ValueError."""
    if len(start) < START.size or not start.startswith(FILE_MAGIC):
        raise ValueError("not a part of a set")
    _, version, length = START.unpack_from(start)
    if version != FILE_VERSION:
        raise ValueError(f"a part of version {version}, expected version {FILE_VERSION}")
    text = start[START.size : START.size + length]
    if len(text) < length or length > MAX_HEADER_BYTES:
        raise ValueError("cut off within its header")
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("the header is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("the header is no object of JSON")
    return found, START.size + length


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """Identity of the saved shard and its job; the defaults are those of a process alone."""

    job_id: str  # "" for a pserver started by hand
    epoch: int
    run: int  # incarnation of trainer 0: equal in all files of one training
    pserver: int = 0  # its index in the trainers' list of pservers
    pservers: int = 1
    port: int = 0  # index of the port in its pserver, dense ports first
    ports_num: int = 1
    ports_num_for_sparse: int = 0
    num_gradient_servers: int = 1
    finished: bool = False  # False: the training went on, or TERM ended the pserver
    save: str = ""  # drawn for a save on request, the same in all its files; "": of the pserver's end

    @property
    def name(self) -> str:
        """Name of the file: files of another save have others, so that an old set stays until the new one."""
        return f"shard-{self.pserver:05d}-{self.port:03d}{self.save and '-'}{self.save}.bin"

    def encode(self) -> bytes:
        """Return the start of the file, padded to a multiple of 8 bytes."""
        return encode_start(asdict(self))

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> Header:
        """Return the header of a shard from what its part says. Raises ValueError."""
        kinds = {f.name: f.type for f in fields(cls)}
        if {name: type(one).__name__ for name, one in found.items()} != kinds:
            raise ValueError(f"the header must have exactly {kinds}")
        header = cls(**found)
        ports = header.ports_num + header.ports_num_for_sparse
        known = header.pserver in range(header.pservers) and header.port in range(ports)
        if not known or not 0 < header.ports_num <= ports:
            raise ValueError(f"the header is of the impossible file {header.name}, of {ports} ports")
        return header


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a set, as its manifest has it; sha256 is that of its content: a part ends with it."""

    name: str
    bytes: int
    sha256: str


def hash_content(f: IO[bytes] | io.RawIOBase, end: int) -> str:
    """Return the digest of the next `end` bytes. Raises OSError."""
    digest = hashlib.sha256()
    while end > 0 and (piece := f.read(min(end, 4 << 20))):
        digest.update(piece)
        end -= len(piece)
    return digest.hexdigest()


class SaveError(OSError):
    """A shard could not be saved; the text names the file and the system's error."""


@contextlib.contextmanager
def saving(path: Path) -> Iterator[None]:
    """Raise SaveError for an error of the system, with its words and a remedy."""
    try:
        yield
    except SaveError:
        raise
    except OSError as e:
        words = os.strerror(e.errno) if e.errno else str(e)
        raise SaveError(f"{path} could not be saved: {words}{find_remedy(e)}") from None


def prepare_folder(folder: Path, option: str = "--save_dir=") -> None:
    """Make the folder, check that it takes a file, and remove what a kill left there. Raises SaveError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        for path in folder.glob(".*.bin.part"):
            _remove_abandoned(path)
    except OSError as e:
        raise SaveError(
            f"{option}{folder}: can't create a file there: {e.strerror}{find_remedy(e)}"
        ) from None


def _remove_abandoned(path: Path) -> None:
    """Remove a temporary file unless a pserver still writes to it and holds its lock. Raises OSError."""
    # Absent: the pserver has written it meanwhile.
    with contextlib.suppress(BlockingIOError, FileNotFoundError), path.open("rb") as f:
        fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable. Raises SaveError."""
    with saving(folder):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Let `write` make a file: complete, old or absent at any time. OSErrors name `path` and a remedy."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w+b") as f:
            write(f)
            f.flush()
            os.fsync(f.fileno())
        part.replace(path)
    except OSError as e:
        raise OSError(e.errno, f"{e.strerror or e}{find_remedy(e)}", str(path)) from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
    sync_folder(path.parent)


class File:
    """A part that is written: temporary until place() or finish(), removed by close() otherwise."""

    def __init__(self, folder: Path, name: str, start: bytes) -> None:
        """Create the file with its start. Raises SaveError."""
        self.path = folder / name
        self._beside = folder / f".{name}.part"
        with saving(self.path):
            self._file = self._open()
        self._digest = hashlib.sha256()
        self.append(start)
        self._least = len(start) + DIGEST_BYTES

    def _open(self) -> IO[bytes]:
        """Return the file, locked against _remove_abandoned(), which may have come before the lock."""
        while True:
            file = self._beside.open("wb")
            fcntl.flock(file, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), self._beside.stat()):
                    return file
            file.close()

    def append(self, piece: bytes | memoryview) -> None:
        """Write further content. Raises SaveError."""
        with saving(self.path):
            self._digest.update(piece)
            self._file.write(piece)

    def seal(self) -> Entry:
        """Write the digest of the content, and wait until the file is on the disk. Raises SaveError."""
        digest = self._digest.digest()
        self.append(digest)
        with saving(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
        return Entry(self.path.name, self._file.tell(), digest.hex())

    def finish(self) -> Entry:
        """Seal the file and move it into place, durably. Raises SaveError."""
        entry = self.seal()
        self.place()
        sync_folder(self.path.parent)
        return entry

    @property
    def empty(self) -> bool:
        """True if the file has no objects."""
        return self._file.tell() <= self._least

    def place(self) -> None:
        """Rename the file to its final name. Raises SaveError."""
        with saving(self.path):
            self._beside.replace(self.path)

    def close(self) -> None:
        """Close the file; remove it unless it has its final name."""
        with contextlib.suppress(OSError):  # of a full disk, as before
            self._file.close()
        with contextlib.suppress(OSError):
            self._beside.unlink()


def place_all(files: Sequence[File], failures: Iterable[BaseException | None]) -> int:
    """Move one pserver's files into place, replacing older ones, or none if a shard failed; return how many.

    Returns 0 and keeps older files if the shards hold no objects. Raises the first failure.
    """
    for failure in filter(None, failures):
        raise failure
    if all(file.empty for file in files):
        return 0
    for file in files:
        file.place()
    sync_folder(files[0].path.parent)
    return len(files)
