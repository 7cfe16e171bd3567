"""Manifests of sets: they come back, and any damage is found."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from pslaunch.runtime.files.manifest import (
    MANIFEST,
    Manifest,
    hash_file,
    read_manifest,
    write_manifest,
)
from pslaunch.runtime.files.objects import Content, SetError

OBJECT = {"name": "w", "table": False, "total": 3, "method": "adam"}


def make(folder: Path) -> Manifest:
    """A manifest of one part, written."""
    part = folder / "program.json"
    part.write_bytes(b"content")
    entry = hash_file(Content(part))
    found = Manifest(job_id="job", run=2**62, step=7, objects=[OBJECT], extra={"restarts": 1}, files=[entry])
    write_manifest(folder, found)
    return found


def test_a_manifest_comes_back_with_the_digests_of_its_files(tmp_path: Path) -> None:
    written = make(tmp_path)
    assert read_manifest(tmp_path) == written
    assert written.files[0].sha256 == hashlib.sha256(b"content").hexdigest()
    assert written.files[0].bytes == 7
    assert [path.name for path in sorted(tmp_path.iterdir())] == [MANIFEST, "program.json"]
    with pytest.raises(FileNotFoundError):
        read_manifest(tmp_path / "none")


def test_the_model_is_that_of_objects_alone(tmp_path: Path) -> None:
    a = Manifest(objects=[OBJECT], files=[])
    assert a.model == Manifest(objects=[OBJECT], step=3, files=[]).model
    assert a.model != Manifest(objects=[OBJECT | {"method": "sgd"}], files=[]).model


def test_each_flipped_bit_and_each_cut_is_found(tmp_path: Path) -> None:
    make(tmp_path)
    path = tmp_path / MANIFEST
    raw = path.read_bytes()
    for at in range(8 * len(raw)):
        bad = bytearray(raw)
        bad[at // 8] ^= 1 << at % 8
        path.write_bytes(bad)
        with pytest.raises(SetError, match="damaged"):
            read_manifest(tmp_path)
    for size in range(len(raw)):
        path.write_bytes(raw[:size])
        with pytest.raises(SetError, match="damaged"):
            read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"form": 99}, "version 99, expected version"),
        ({"files": [{"name": "../x", "bytes": 1, "sha256": ""}]}, "impossible names"),
        ({"files": 3}, "no manifest"),
        ({"unknown": 3}, "no manifest"),
    ],
)
def test_another_version_and_other_content_are_named(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    make(tmp_path)
    path = tmp_path / MANIFEST
    data = json.loads(path.read_text())
    del data["digest"]
    content = json.dumps(data | change).encode()[:-1]
    path.write_bytes(content + f', "digest": "{hashlib.sha256(content).hexdigest()}"}}\n'.encode())
    with pytest.raises(SetError, match=words):
        read_manifest(tmp_path)
