"""Files of saved shards: their names, their header, and how they get their place. Needs no numpy.

What follows the header is written by the shard itself (csrc/ps_save.h). docs/checkpoint.md says the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

MAGIC = b"PSLSHARD"
VERSION = 1
START = struct.Struct("<8sII")  # magic, version, length of the header
DIGEST_BYTES = 32
MAX_HEADER_BYTES = 65536


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """Which shard of which job a file is."""

    job_id: str  # "" of a pserver started by hand
    epoch: int
    run: int  # incarnation of trainer 0: the same in all files of one training
    pserver: int  # its place in the trainers' list of pservers, from 0
    pservers: int
    port: int  # number of the port in its pserver, dense ports first
    ports_num: int
    ports_num_for_sparse: int
    num_gradient_servers: int
    finished: bool  # all trainers had finished; else the pserver was ended by TERM

    @property
    def name(self) -> str:
        """Of the file."""
        return f"shard-{self.pserver:05d}-{self.port:03d}.bin"

    def encode(self) -> bytes:
        """The start of the file, up to a multiple of 8 bytes."""
        text = json.dumps(asdict(self), sort_keys=True).encode()
        text += b" " * (-(START.size + len(text)) % 8)
        return START.pack(MAGIC, VERSION, len(text)) + text

    @classmethod
    def decode(cls, start: bytes) -> tuple[Header, int]:
        """The header, and the bytes it takes. Raises ValueError."""
        if len(start) < START.size or not start.startswith(MAGIC):
            raise ValueError("not a saved shard")
        _, version, length = START.unpack_from(start)
        if version != VERSION:
            raise ValueError(f"a saved shard of version {version}, this is version {VERSION}")
        text = start[START.size : START.size + length]
        if len(text) < length or length > MAX_HEADER_BYTES:
            raise ValueError("cut off in its header")
        found = json.loads(text)
        names = {f.name for f in fields(cls)}
        if not isinstance(found, dict) or set(found) != names:
            raise ValueError(f"the header does not have {sorted(names)}")
        return cls(**found), START.size + length


class SaveError(OSError):
    """A shard could not be saved; the text names the file and has the system's words."""


def prepare(folder: Path) -> None:
    """Make the folder, and see that a file can be made there. Raises SaveError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as e:
        raise SaveError(f"--save_dir={folder}: no file can be made there: {e.strerror}") from None


class Files:
    """The files of one pserver, one a shard: beside their places until place(), gone after close()."""

    def __init__(self, folder: Path, headers: Sequence[Header]) -> None:
        """Make them, with their headers. Raises SaveError; then there are none."""
        self._folder = folder
        self._files: list[_File] = []
        try:
            for header in headers:
                self._files.append(_File(folder, header))
        except SaveError:
            self.close()
            raise

    @property
    def descriptors(self) -> list[int]:
        """Where the shards append what they hold; borrowed."""
        return [file.fd for file in self._files]

    def place(self, failures: Sequence[BaseException | None]) -> int:
        """Put all in their places, or none if a shard failed; their number. What was there is replaced.

        0 if the shards hold nothing at all: what was there stays. Raises SaveError, and ValueError if
        values are missing.
        """
        for file, failure in zip(self._files, failures, strict=True):
            if isinstance(failure, OSError):
                raise file.make_error(failure)
            if failure is not None:
                raise failure
        if all(file.empty for file in self._files):
            return 0
        for file in self._files:
            file.place()
        self._sync()
        return len(self._files)

    def _sync(self) -> None:
        """Make the names last."""
        try:
            fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as e:
            raise SaveError(f"{self._folder}: could not be saved: {e.strerror}") from None

    def close(self) -> None:
        """Remove what has not got its place. Never raises."""
        for file in self._files:
            file.close()
        self._files = []


class _File:
    """One file."""

    def __init__(self, folder: Path, header: Header) -> None:
        """Raises SaveError."""
        self._path = folder / header.name
        self._beside = folder / f".{header.name}.part"
        try:
            self.fd = os.open(self._beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        except OSError as e:
            raise self.make_error(e) from None
        try:
            self._least = os.write(self.fd, header.encode()) + DIGEST_BYTES
        except OSError as e:
            self.close()
            raise self.make_error(e) from None

    def make_error(self, e: OSError) -> SaveError:
        """With the name that the file was to have, and the system's words."""
        words = os.strerror(e.errno) if e.errno else str(e)
        return SaveError(f"{self._path} could not be saved: {words}")

    @property
    def empty(self) -> bool:
        """Whether there is no object in it."""
        return os.fstat(self.fd).st_size <= self._least

    def place(self) -> None:
        """Give it its name. Raises SaveError."""
        try:
            self._beside.replace(self._path)
        except OSError as e:
            raise self.make_error(e) from None

    def close(self) -> None:
        """Remove it unless it has its name."""
        os.close(self.fd)
        with contextlib.suppress(OSError):
            self._beside.unlink()
