"""The manifest of a set: what makes its parts whole. It is written last; a set without it is none.

docs/checkpoint.md has the form. Needs no numpy.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .objects import Content, SetError
from .saving import DIGEST_BYTES, FILE_VERSION, PART_SUFFIX, Entry, hash_content, write_whole

MANIFEST = "manifest.json"
MAX_BYTES = 64 << 20
_DIGEST = b', "digest": "'


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a set consists of, and what made it."""

    job_id: str = ""
    epoch: int = 0
    run: int = 0  # incarnation of trainer 0: equal in all sets of one training
    step: int = 0  # the last one that is in the set; 0 where objects have different ones
    passes: int = 0  # complete ones
    layout: Mapping[str, int] = field(default_factory=dict)  # Layout of sets.py
    objects: Sequence[Mapping[str, Any]] = ()  # in the order of their creation: describe() of each
    extra: Mapping[str, Any] = field(default_factory=dict)  # of who wrote it, as the restarts of a job
    files: Sequence[Entry]

    @property
    def model(self) -> str:
        """Digest of the objects: names, kinds, shapes, optimizers and schedules."""
        return hashlib.sha256(_dump(list(self.objects))).hexdigest()

    @property
    def digest(self) -> str:
        """Digest of all."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def content(self) -> bytes:
        """The file up to the digest."""
        return _dump({"form": FILE_VERSION, "model": self.model, **asdict(self)})[:-1]


def _dump(data: object) -> bytes:
    return json.dumps(data, sort_keys=True).encode()


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Make the parts of `folder` a set, durably.

    The parts are on the disk under their names. An earlier manifest is replaced. Raises OSError.
    """
    raw = manifest.content + _DIGEST + manifest.digest.encode() + b'"}\n'
    write_whole(folder / MANIFEST, lambda f: f.write(raw))


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a set; its parts are not read. Raises SetError, and OSError if it is missing."""
    path = folder / MANIFEST
    with path.open("rb") as f:
        raw = f.read(MAX_BYTES + 1)
    content, _, rest = raw.rpartition(_DIGEST)
    if rest != hashlib.sha256(content).hexdigest().encode() + b'"}\n':
        raise SetError(f"{path} is damaged: its digest does not match its content; take another copy")
    try:
        data = json.loads(content + b"}")
        if (version := data.pop("form")) != FILE_VERSION:
            raise SetError(f"{path}: a set of version {version}, expected version {FILE_VERSION}")
        del data["model"]
        found = Manifest(**data | {"files": [Entry(**entry) for entry in data["files"]]})
        names = [entry.name for entry in found.files]
        if len(set(names)) < len(names) or any(Path(name).name != name for name in names):
            raise ValueError("its files have impossible names")
    except SetError:
        raise
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as e:
        raise SetError(f"{path} is no manifest of a set: {e}") from None
    return found


def hash_file(f: Content) -> Entry:
    """Return the entry of a file just opened. A part ends with its digest. Raises SetError, OSError."""
    path, is_part = f.path, f.path.suffix == PART_SUFFIX
    try:
        digest, trailer = hash_content(f, f.size - DIGEST_BYTES * is_part), f.read()
    except OSError as e:
        raise OSError(e.errno, e.strerror, str(path)) from None
    if is_part and trailer.hex() != digest:
        raise SetError(f"{path} is damaged: its digest does not match its content; take another copy")
    return Entry(path.name, f.size, digest)


def has_file(path: Path, entry: Entry) -> bool:
    """Return True if a file is there, and the one of a manifest. Raises OSError."""
    try:
        return hash_file(Content(path)) == entry
    except (FileNotFoundError, SetError):
        return False
