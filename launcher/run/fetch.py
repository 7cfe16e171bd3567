"""Results come back: output/ of node 0 and the logs of every node, as tar streams checked to be whole.

A node is trusted with its own job, not with this machine: nothing is written outside the folder.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ..backends.base import Backend
from ..errors import FileError
from ..node.job import Node
from ..node.later.relay import NOTES

_MODE_BITS = 0o777
MAX_NOTES = 3
NOTES_BYTES = MAX_NOTES * 16 * 1024  # in each three names of the longest, and their folder
HEADER_BYTES = 64 * 1024  # of one entry: its names may be as long as paths can be
READ_AHEAD_BYTES = 32 * 1024  # that tarfile and the buffer below it take before they need them
MAX_ENTRIES = 1_000_000


class Fetched(NamedTuple):
    """What was brought, as paths here, and what was not, in words."""

    brought: list[str]
    left_out: list[str]


def fetch_results(
    backend: Backend,
    job_id: str,
    nodes: Sequence[Node],
    *,
    output: Path | None = None,
    logs: Path | None = None,
) -> Fetched:
    """Bring what a job left on its nodes.

    output: gets what was not in `output/` of node 0 before the job, or was otherwise. logs: gets a folder
    for each node, `ID-NAME`, with what is in its `log/`. Raises PslaunchError, also where a node has
    another job's by now.
    """
    found = Fetched([], [])

    def whose(node: Node) -> tuple[str, str]:
        return node.state_dir, job_id

    if output is not None:
        unpack(backend.ask(nodes[0], ["results", nodes[0].output_dir, *whose(nodes[0])]), output, found)
    for node in nodes if logs is not None else ():
        assert logs is not None
        place = logs / f"{node.id}-{node.name.replace('/', '_')}"
        unpack(backend.ask(node, ["pack", node.log_dir, *whose(node)]), place, found)
    return found


def unpack(pieces: Iterator[bytes], folder: Path, found: Fetched) -> None:
    """Write a tar stream of files, folders and links below `folder`, and note it in `found`.

    The answer is read to its end, hash included, whatever the archive says. Raises FileError.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        notes: list[str] = []
        stream = _Stream(pieces)
        stream.allow(HEADER_BYTES)
        with tarfile.open(fileobj=io.BufferedReader(stream), mode="r|") as archive:
            for number, member in enumerate(archive):
                if number == MAX_ENTRIES:
                    raise ValueError(f"it has more than {MAX_ENTRIES:,} entries")
                vars(archive)["members"].clear()  # it would keep them all
                stream.allow(member.size + HEADER_BYTES)  # with the header of the next
                if member.type == NOTES:
                    notes = notes or _notes(archive, member)
                    continue
                path = str(folder / member.name)
                if why := _write(archive, member, folder):
                    found.left_out.append(f"{path} {why}")
                else:
                    found.brought.append(path)
        found.left_out.extend(notes)
        for _ in pieces:
            pass
    except (tarfile.TarError, ValueError, OverflowError) as e:  # names and times that no file can have, too
        raise FileError(f"what came for {folder} is no tar stream: {e}") from e
    except OSError as e:
        raise FileError.from_os(e, "write what was fetched:") from e


def _notes(archive: tarfile.TarFile, member: tarfile.TarInfo) -> list[str]:
    source = archive.extractfile(member)
    assert source is not None
    return source.read(NOTES_BYTES).decode("utf-8", "replace").split("\n")[:MAX_NOTES]


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> str:
    """Make it, or say why that can't be."""
    path = folder / member.name
    if ".." in Path(member.name).parts or not _is_in(folder, path.parent):
        raise FileError(f"{member.name!r} would be written outside {folder}: nothing more is taken")
    path.parent.mkdir(parents=True, exist_ok=True)  # of what is new in an old folder the file comes alone
    if member.isdir():
        path.mkdir(exist_ok=True)
    elif member.isreg() and not member.issparse():  # our own never are, and these may claim any size
        source = archive.extractfile(member)
        assert source is not None
        beside = path.with_name(f".{os.urandom(8).hex()}.part")  # its own name may be as long as names can be
        try:
            with beside.open("xb") as target:
                while data := source.read(1024 * 1024):
                    target.write(data)
            beside.chmod(member.mode & _MODE_BITS)
            os.utime(beside, (member.mtime, member.mtime))
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
    elif not member.issym():
        return "is no file, folder or link"
    elif _turns_back(member.linkname) or not _is_in(folder, path.parent / member.linkname):
        return f"is a link that leads out, to {member.linkname}"
    else:
        path.unlink(missing_ok=True)
        path.symlink_to(member.linkname)
    return ""


def _turns_back(target: str) -> bool:
    """Return whether `..` comes after a name: where that is a link some day, the way leads elsewhere."""
    parts = Path(target).parts
    return ".." in parts[next((i for i, part in enumerate(parts) if part != ".."), len(parts)) :]


def _is_in(folder: Path, path: Path) -> bool:
    """Whether a path leads to a place in a folder; one in a circle of links, which Path takes ill, does."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


class _Stream(io.RawIOBase):
    """Pieces as a file to read from, only as far as it is allowed: tarfile keeps any header in memory."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest, self._allowed = pieces, b"", 0

    def allow(self, size: int) -> None:
        """Let so many bytes be read from here on."""
        self._allowed = size + READ_AHEAD_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type] # any buffer
        if not self._rest:
            self._rest = next(self._pieces, b"")
        n = min(len(view), len(self._rest))
        self._allowed -= n
        if self._allowed < 0:
            raise ValueError("the header of an entry is too long")
        view[:n], self._rest = self._rest[:n], self._rest[n:]
        return n
