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
    from .head_side import Fail, Parts, Tell, Then

MANIFEST = "manifest"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time in a zip file


def pack(source: Source) -> bytes:
    """Return the file with a package; equal packages give equal bytes. Raises OSError."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:

        def add(name: str, data: bytes) -> None:
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED, compresslevel=9)

        add(MANIFEST, source.manifest)
        for content, equal in source.by_content.items():
            with open(source.open(equal[0]), "rb") as f:
                add(content, f.read())
    return packed.getvalue()


class Archive:
    """Supply of a package from such a file, unpacked into a folder that does not exist yet."""

    filled: frozenset[int] = frozenset()

    def __init__(self, loop: Loop, path: str, folder: str) -> None:
        self._loop, self._path, self._folder = loop, path, folder

    def get(self, then: Then, fail: Fail, mine: Parts | None, tell: Tell) -> None:
        """Unpack the file in a thread; then call `then`, or `fail`."""
        self._loop.do_aside(self._unpack, then, fail)

    def _unpack(self) -> Source:
        with zipfile.ZipFile(self._path) as archive:
            manifest = archive.read(MANIFEST)
            for e in decode(manifest):
                if e.kind != "f":
                    continue
                path = os.path.join(self._folder, e.path)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "wb") as f:
                    f.write(archive.read(e.content))
                os.utime(path, ns=(e.mtime_ns, e.mtime_ns))
        return Source(self._folder, manifest)
