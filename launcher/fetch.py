"""Results come back: output/ of node 0 and the logs of every node, as tar streams checked to be whole.

A node is trusted with its own job, not with this machine: nothing is written outside the folder.
"""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from pslaunch.backends.base import Backend
from pslaunch.errors import FileError
from pslaunch.node.job import Node

_MODE_BITS = 0o777


def fetch_results(
    backend: Backend, nodes: Sequence[Node], *, output: Path | None = None, logs: Path | None = None
) -> list[str]:
    """Bring what a job left on its nodes; what was brought, as paths.

    output: gets what is in `output/` of node 0. logs: gets a folder for each node, `ID-NAME`, with what is in
    its `log/`. Raises PslaunchError.
    """
    found: list[str] = []
    if output is not None:
        found += unpack(backend.ask(nodes[0].id, ["pack", nodes[0].output_dir]), output)
    for node in nodes if logs is not None else ():
        assert logs is not None
        place = logs / f"{node.id}-{node.name.replace('/', '_')}"
        found += unpack(backend.ask(node.id, ["pack", node.log_dir]), place)
    return found


def unpack(pieces: Iterator[bytes], folder: Path) -> list[str]:
    """Write a tar stream of files, folders and links below `folder`; the paths of what was written.

    The answer is read to its end, hash included, whatever the archive says. Raises FileError.
    """
    names: list[str] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BufferedReader(_Stream(pieces)), mode="r|") as archive:
            for member in archive:
                _write(archive, member, folder)
                names.append(str(folder / member.name))
        for _ in pieces:
            pass
    except (tarfile.TarError, ValueError, OverflowError) as e:  # names and times that no file can have, too
        raise FileError(f"what came for {folder} is no tar stream: {e}") from e
    except OSError as e:
        raise FileError.from_os(e, "write what was fetched:") from e
    return names


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    path = folder / member.name
    if ".." in Path(member.name).parts or not _is_in(folder, path.parent):
        raise FileError(f"{member.name!r} would be written outside {folder}: nothing more is taken")
    if member.isdir():
        path.mkdir(exist_ok=True)
    elif member.isreg():
        source = archive.extractfile(member)
        assert source is not None
        beside = path.with_name(f".{path.name}.part")
        with contextlib.suppress(FileNotFoundError):
            beside.unlink()
        with beside.open("xb") as target:
            while data := source.read(1024 * 1024):
                target.write(data)
        beside.chmod(member.mode & _MODE_BITS)
        os.utime(beside, (member.mtime, member.mtime))
        beside.replace(path)
    elif member.issym() and _is_in(folder, path.parent / member.linkname):
        path.unlink(missing_ok=True)
        path.symlink_to(member.linkname)


def _is_in(folder: Path, path: Path) -> bool:
    """Whether a path leads to a place in a folder; one in a circle of links, which Path takes ill, does."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


class _Stream(io.RawIOBase):
    """Pieces as a file to read from."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type] # any buffer
        if not self._rest:
            self._rest = next(self._pieces, b"")
        n = min(len(view), len(self._rest))
        view[:n], self._rest = self._rest[:n], self._rest[n:]
        return n
