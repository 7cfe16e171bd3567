"""Hostile archives and records of a host: nothing is written outside, and every refusal is a clear error."""

from __future__ import annotations

import contextlib
import json
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pslaunch.errors import FileError
from pslaunch.node.later import record
from pslaunch.node.later.relay import NOTES
from pslaunch.run.fetch import Fetched, unpack
from pslaunch.run.known_jobs import format_line
from support.hostile import ANYTHING, spoilt

NAMES = st.sampled_from(
    ["a", "a/b", "a/b/c", "..", "../x", "a/../../x", "/x", "a\0b", "x" * 300, ".", "", "é"]
)
TARGETS = st.sampled_from(["b", "..", "../..", "a/..", "a/../..", "/", "/etc/passwd", "x" * 5000, ""])
TYPES = st.sampled_from(
    [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE,
     tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_SPARSE, tarfile.XHDTYPE, NOTES, b"?"]
)  # fmt: skip
SIZES = st.sampled_from([0, 1, 511, 512, 513, 1 << 20, 1 << 40, 1 << 60])
RECORD: dict[str, Any] = {
    "job": "j-1", "name": "n", "backend": "b", "nodes": 1, "host": "h", "started": 1.0, "state": "ended",
    "code": 0, "reason": "so", "elapsed_s": 2.0, "workspace": "/ws", "socket": "/run/s", "places": [],
    "processes": [{"process": "trainer/0", "node": 0, "log": "l", "state": "exited"}],
}  # fmt: skip


@st.composite
def entries(draw: st.DrawFn) -> bytes:
    """Draw one header with a right checksum and some bytes behind it, fewer than it claims or as many."""
    info = tarfile.TarInfo(draw(NAMES))
    info.type, info.linkname, info.size = draw(TYPES), draw(TARGETS), draw(SIZES)
    info.mode, info.mtime = draw(st.sampled_from([0, 0o644, 0o7777])), draw(st.sampled_from([0, 1 << 33]))
    data = b"x" * min(info.size, draw(st.sampled_from([0, 512, 5000])))
    return info.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % 512)


@settings(max_examples=100, deadline=None)
@given(st.lists(entries(), min_size=1, max_size=5), st.sampled_from([100, 512, 10_000]))
def test_hostile_archive_writes_nothing_outside(found: list[bytes], size: int) -> None:
    whole = b"".join(found) + bytes(1024)
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base, "in", "out")
        folder.mkdir(parents=True)
        with contextlib.suppress(FileError):
            unpack(
                (whole[i : i + size] for i in range(0, min(len(whole), 1 << 16), size)),
                folder,
                Fetched([], [], {}),
            )
        assert [p.name for p in Path(base).iterdir()] == ["in"]
        assert [p.name for p in Path(base, "in").iterdir()] == ["out"]
        for path in folder.rglob("*"):
            assert path.resolve().is_relative_to(folder.resolve()) or path.is_symlink() is False


@settings(max_examples=200, deadline=None)
@example({**RECORD, "started": 2**64})
@example({**RECORD, "started": -(2**64)})
@given(spoilt(RECORD) | st.dictionaries(st.text(max_size=5), ANYTHING, max_size=3) | ANYTHING)
def test_hostile_record_is_refused_or_whole(data: Any) -> None:
    with contextlib.suppress(ValueError, RecursionError):
        found = record.parse_record(json.dumps(data))
        assert format_line(found).startswith(found["job"])
