"""Whether a workspace still is as the last dispatch left it, found out by looking at each file once.

What was seen of all files when they were right is kept beside the manifest, which then need not be read:
most jobs send what was sent before. It only saves time, and may be lost.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from .into_place import MANIFEST, Store
from .manifest import Entry, Hashes, digest, key_of, without_gc

SEEN = "seen"  # the manifest's digest, how much follows, its look; then path and look of each entry


def glance(store: Store) -> str:
    """The digest of the manifest, where all here is as it says; "" where it may not be."""
    about, *rest = os.fsdecode(store.read(SEEN)).split("\0")
    known = about.partition(" ")[0]
    try:
        if about != _about(store, known, len(rest)):
            return ""
        for path, look in zip(rest[::2], rest[1::2]):
            if _look(f"{store.workspace}/{path}") != look:
                return ""
    except OSError:
        return ""
    return known


@without_gc()
def note(store: Store, entries: Sequence[Entry], hashes: Hashes) -> None:
    """Look at all, and keep it if all is right and nothing of it changes. Raises OSError."""
    looks: list[str] = []
    for e in entries:
        look = _look(f"{store.workspace}/{e.path}")
        if e.kind == "f":
            right = hashes.used(look) == e.content
        else:
            right = look == (f"d{e.mode:o}" if e.kind == "d" else f"l{e.content}")
        if not right or hashes.stop:
            return
        looks += e.path, look
    keep(store, looks)


def keep(store: Store, looks: Sequence[str]) -> None:
    """Keep path and look of all that the manifest here names. Raises OSError."""
    about = _about(store, digest(store.read(MANIFEST)), len(looks))
    store.write(SEEN, os.fsencode("\0".join((about, *looks))))


def _about(store: Store, known: str, size: int) -> str:
    return f"{known} {size} {_look(os.path.join(store.path, MANIFEST))}"


def _look(path: str) -> str:
    """What changes when somebody changes what is at `path`."""
    st = os.lstat(path)
    if stat.S_ISREG(st.st_mode):
        return key_of(st)
    return f"l{os.readlink(path)}" if stat.S_ISLNK(st.st_mode) else f"d{st.st_mode & 0o777:o}"
