"""A package in one file: a zip of its manifest and, by their hashes, the contents of its files."""

from __future__ import annotations

import io
import os
import zipfile
from typing import TYPE_CHECKING

from ..loop import Loop
from .manifest import decode
from .sender import Source

if TYPE_CHECKING:
    from .dispatch import Fail, Parts, Tell, Then

MANIFEST_ENTRY = "manifest"
FILE_READ_BYTES = 256 * 1024


def pack_archive(source: Source, limit_bytes: float = float("inf")) -> bytes:
    """Return the file with a package, b"" if it has more than `limit_bytes`. Raises OSError.

    Equal packages give equal bytes. A package that is too large is not read to its end.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr(
            zipfile.ZipInfo(MANIFEST_ENTRY), source.manifest, zipfile.ZIP_DEFLATED, compresslevel=9
        )
        for content, equal in source.by_content.items():
            if packed.tell() > limit_bytes:
                break
            with open(source.open(equal[0]), "rb") as f, archive.open(content, "w") as entry:
                while packed.tell() <= limit_bytes and (data := f.read(FILE_READ_BYTES)):
                    entry.write(data)
    return packed.getvalue() if packed.tell() <= limit_bytes else b""


class Archive:
    """Supply of a package from such a file, unpacked into a folder that does not exist yet."""

    filled: frozenset[int] = frozenset()

    def __init__(self, loop: Loop, path: str, folder: str) -> None:
        self._loop, self._path, self._folder = loop, path, folder

    def get(self, then: Then, fail: Fail, mine: Parts | None, tell: Tell) -> None:
        self._loop.do_aside(self._unpack, then, fail)

    def _unpack(self) -> Source:
        with zipfile.ZipFile(self._path) as archive:
            manifest = archive.read(MANIFEST_ENTRY)
            for e in decode(manifest):
                if e.kind != "f":
                    continue
                path = os.path.join(self._folder, e.path)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "wb") as f:
                    f.write(archive.read(e.content))
                os.utime(path, ns=(e.mtime_ns, e.mtime_ns))
        return Source(self._folder, manifest)
