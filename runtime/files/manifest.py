"""The manifest of a set: what makes its parts whole. It is written last; a set without it is none.

docs/checkpoint.md has the form. Needs no numpy.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO, Any

from .saving import FILE_VERSION, Entry, write_whole

MANIFEST = "manifest.json"
MAX_BYTES = 64 << 20
PIECE_BYTES = 4 << 20
_DIGEST = b', "digest": "'


class SetError(ValueError):
    """A set is damaged, not whole, or of another kind; the text names the file and what is wrong."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a set consists of, and what made it."""

    job_id: str = ""
    epoch: int = 0
    run: int = 0  # incarnation of trainer 0: equal in all sets of one training
    step: int = 0  # the last one that is in the set; 0 where objects have different ones
    passes: int = 0  # complete ones
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

    The parts are on the disk under their names. An earlier manifest is replaced. Raises SaveError.
    """
    files = [asdict(entry) for entry in manifest.files]
    data = {f.name: getattr(manifest, f.name) for f in fields(manifest)} | {"files": files}
    content = _dump({"form": FILE_VERSION, "model": manifest.model, **data})[:-1]
    digest = hashlib.sha256(content).hexdigest()
    write_whole(folder / MANIFEST, lambda f: f.write(content + _DIGEST + digest.encode() + b'"}\n'))
    return digest


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


def hash_file(f: IO[bytes]) -> Entry:
    """Return the entry of an open file under its own name, without the folder. Raises OSError."""
    size, digest = 0, hashlib.sha256()
    while piece := f.read(PIECE_BYTES):
        size += len(piece)
        digest.update(piece)
    return Entry(name=Path(f.name).name, bytes=size, sha256=digest.hexdigest())
