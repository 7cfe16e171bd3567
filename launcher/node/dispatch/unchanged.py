"""Fast path: checks with one lstat per file that nothing changed since the last dispatch.

The fingerprints of all files, taken when they were right, are kept beside the manifest, which then need not
be read: most jobs send the same package again. They only save time, and may be lost.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from .into_place import MANIFEST, Store
from .manifest import Entry, Hashes, digest, key_of, without_gc

SEEN = "seen"  # digest of the manifest, how much follows, its fingerprint; then path and fingerprint of each


def glance(store: Store) -> str:
    """Return the digest of the manifest if the workspace is as it says; "" if it may not be."""
    about, *rest = os.fsdecode(store.read(SEEN)).split("\0")
    known = about.partition(" ")[0]
    try:
        if about != _about(store, known, len(rest)):
            return ""
        for path, fingerprint in zip(rest[::2], rest[1::2]):
            if _take_fingerprint(f"{store.workspace}/{path}") != fingerprint:
                return ""
    except OSError:
        return ""
    return known


@without_gc()
def note(store: Store, entries: Sequence[Entry], hashes: Hashes) -> None:
    """Take the fingerprints of all entries, and keep them if all is right. Raises OSError."""
    fingerprints: list[str] = []
    for e in entries:
        fingerprint = _take_fingerprint(f"{store.workspace}/{e.path}")
        if e.kind == "f":
            right = hashes.used(fingerprint) == e.content
        else:
            right = fingerprint == (f"d{e.mode:o}" if e.kind == "d" else f"l{e.content}")
        if not right or hashes.stop:
            return
        fingerprints += e.path, fingerprint
    keep(store, fingerprints)


def keep(store: Store, fingerprints: Sequence[str]) -> None:
    """Keep path and fingerprint of all that the manifest here names. Raises OSError."""
    about = _about(store, digest(store.read(MANIFEST)), len(fingerprints))
    store.write(SEEN, os.fsencode("\0".join((about, *fingerprints))))


def _about(store: Store, known: str, size: int) -> str:
    return f"{known} {size} {_take_fingerprint(os.path.join(store.path, MANIFEST))}"


def _take_fingerprint(path: str) -> str:
    """Return what changes when somebody changes what is at `path`."""
    st = os.lstat(path)
    if stat.S_ISREG(st.st_mode):
        return key_of(st)
    return f"l{os.readlink(path)}" if stat.S_ISLNK(st.st_mode) else f"d{st.st_mode & 0o777:o}"
