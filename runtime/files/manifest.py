"""The manifest of a set: what makes its parts whole. It is written last; a set without it is none.

docs/checkpoint.md has the form. Needs no numpy.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from .objects import Content, SetError
from .saving import DIGEST_BYTES, FILE_VERSION, PART_SUFFIX, Entry, write_whole

MANIFEST = "manifest.json"
MAX_BYTES = 64 << 20
PIECE_BYTES = 4 << 20
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


def _dump(data: object) -> bytes:
    return json.dumps(data, sort_keys=True).encode()


def write_manifest(folder: Path, manifest: Manifest) -> str:
    """Make the parts of `folder` a set, durably, and return the manifest's digest.

    The parts are on the disk under their names. An earlier manifest is replaced. Raises OSError.
    """
    raw, digest = encode_manifest(manifest)
    write_whole(folder / MANIFEST, lambda f: f.write(raw))
    return digest


def encode_manifest(manifest: Manifest) -> tuple[bytes, str]:
    """Return the file of a manifest, and its digest."""
    files = [asdict(entry) for entry in manifest.files]
    data = {f.name: getattr(manifest, f.name) for f in fields(manifest)} | {"files": files}
    content = _dump({"form": FILE_VERSION, "model": manifest.model, **data})[:-1]
    digest = hashlib.sha256(content).hexdigest()
    return content + _DIGEST + digest.encode() + b'"}\n', digest


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a set; its parts are not read. Raises SetError, and OSError if it is missing."""
    return parse_manifest(folder)[0]


def parse_manifest(folder: Path) -> tuple[Manifest, str]:
    """Return the manifest and its digest; errors as read_manifest()."""
    path = folder / MANIFEST
    with path.open("rb") as f:
        raw = f.read(MAX_BYTES + 1)
    content, _, rest = raw.rpartition(_DIGEST)
    digest = hashlib.sha256(content).hexdigest()
    if rest != digest.encode() + b'"}\n':
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
    return found, digest


def hash_file(f: Content) -> Entry:
    """Return the entry of an open file. A part ends with its digest. Raises SetError, OSError."""
    path, size = f.path, f.size
    end = size - DIGEST_BYTES if path.suffix == PART_SUFFIX else size
    digest = hashlib.sha256()
    try:
        for at in range(0, end, PIECE_BYTES):
            digest.update(os.pread(f.fileno(), min(PIECE_BYTES, end - at), at))
    except OSError as e:
        raise OSError(e.errno, e.strerror, str(path)) from None
    if end < size and os.pread(f.fileno(), DIGEST_BYTES, max(end, 0)) != digest.digest():
        raise SetError(f"{path} is damaged: its digest does not match its content; take another copy")
    return Entry(path.name, size, digest.hexdigest())
