"""Exports as a pserver leaves them to readers: the index of a part, the newest one's name, and what stays.

docs/serving.md has the form. Needs no numpy.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import IO

from .. import _core
from .manifest import Manifest, hash_file, read_manifest
from .objects import Content, Item, PartFile, SetError
from .saving import Entry, write_whole

INDEX_SUFFIX, NEWEST = ".index", "newest"


def name_export(run: int, step: int) -> str:
    """Return the name of an export's folder; `run`: of trainer 0's process, so that no two jobs mix."""
    return f"export-{run:016x}-{step:012d}"


def count_places(rows: int) -> int:
    """Return the places in the index of a table with so many rows in a part."""
    return 1 << (2 * rows - 1).bit_length()


def write_index(path: Path) -> Iterator[Entry]:
    """Write the index of a part beside it, if it has tables. Raises OSError."""
    with closing(Content(path)) as part:
        items = [item for item in PartFile(part).items.values() if item.table]
        if items:
            target = path.with_suffix(INDEX_SUFFIX)
            write_whole(target, lambda f: _fill(f, part, items))
            with closing(Content(target)) as index:
                yield hash_file(index)


def _fill(f: IO[bytes], part: Content, items: list[Item]) -> None:
    sizes = [4 * count_places(item.count) for item in items]
    os.posix_fallocate(f.fileno(), 0, sum(sizes))  # else a full disk would end the process that fills the map
    source = memoryview(mmap.mmap(part.fileno(), 0, access=mmap.ACCESS_READ))
    places = memoryview(mmap.mmap(f.fileno(), 0))
    for item, size in zip(items, sizes, strict=True):
        _core.index_keys(source[item.keys_at : item.keys_at + 8 * item.count], places[:size])
        places = places[size:]


def set_newest(root: Path, manifest: Manifest, name: str) -> None:
    """Make an export the newest one; its chain and the one before it stay, for readers. Raises OSError."""
    kept = {*manifest.extra["chain"], *manifest.extra["before"]}
    with contextlib.suppress(OSError, SetError):
        kept |= set(read_manifest(root / (root / NEWEST).read_text()).extra["chain"])
    write_whole(root / NEWEST, lambda f: f.write(name.encode()))
    for folder in root.glob("export-*-*"):
        if folder.name not in kept:
            shutil.rmtree(folder, ignore_errors=True)
