"""Staging of a package for one workspace: finds lacking files, checks pieces, moves all into place.

Every piece is checked against the manifest before it is written, and every content against its hash before
it counts; a wrong one is requested once more. Data received before a line is cut is not requested again. All
of it is slow: used in a thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from .. import codes
from ..codes import Refusal
from ..line.wire import Data
from ..listing import show_few
from ..procs import write_all
from . import unchanged
from .into_place import HASHES, MANIFEST, Store, assign_stage_names, dress, put_in_place, survey
from .manifest import (
    LINK_ADVICE,
    MAX_NAMED,
    Entry,
    Hashes,
    ManifestError,
    Want,
    compute_digest,
    decode,
    encode,
    make_hash,
)

_FULL = (errno.ENOSPC, errno.EDQUOT)
PART = ".part"  # at the end of the name of an unfinished content
_NEW = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class Staging:
    """The files of one dispatch into one workspace."""

    def __init__(self, workspace: str, mine: Callable[[Sequence[Entry]], list[Entry]] | None = None) -> None:
        """`mine` selects this node's entries; contents of others are only kept for other nodes."""
        self._store, self._mine = Store(workspace), mine
        self._hashes = Hashes(os.path.join(self._store.path, HASHES))
        self._data = b""
        self.listed: list[Entry] = []  # the package
        self.entries: list[Entry] = []  # its entries for this workspace
        self._staged_before: set[str] = set()  # names
        self._guests: dict[str, int] = {}  # contents for other nodes alone
        self._lacking: list[int] = []
        self._off = False
        self._unchanged = False
        self._intact: dict[str, str] = {}
        # Verified names in staged/, each with the path for which its mode and time are set, or "".
        self._sure: dict[str, str] = {}
        self._wanted: deque[Want] = deque()
        self._wanted_again: set[str] = set()  # contents that had a wrong hash once
        self._placed = False
        self._fd, self._at, self._hash = -1, 0, make_hash()  # of the file being received
        self._receiving = "", 0  # its content, and the bytes of it that are written

    def read_own_manifest(self) -> bytes:
        """Return the manifest of the last dispatch."""
        return self._store.read(MANIFEST)

    def glance(self) -> str:
        """Return the digest of that manifest if the fast path finds no change, else ""."""
        known = "" if self._mine else unchanged.glance(self._store)
        self._unchanged = bool(known)
        return known

    def list_lacking(self, manifest: bytes) -> list[Want]:
        """Return the files to be sent to make the workspace match this manifest.

        Raises Refusal without enough space, or if programs' files are in the way.
        """
        self._unchanged = False
        self._drop()  # a file whose line was cut
        self._wanted.clear()
        self._wanted_again.clear()
        self._sure.clear()
        self.listed = self.entries = decode(manifest)
        self._data = manifest
        if self._mine:
            self.entries = self._mine(self.listed)
            self._data = encode(self.entries)
        old = self.listed if manifest == self.read_own_manifest() else self._store.read_entries(MANIFEST)
        found = survey(self._store.workspace, self.entries, old, self._hashes)
        if found.conflicts:
            where, names = self._store.workspace, show_few(found.conflicts, MAX_NAMED)
            text = f"programs put {names} into {where}, where the package has something else: move it away"
            raise Refusal(codes.IO, text)
        if found.unfit:
            where, why = self._store.workspace, "; ".join(found.unfit[:MAX_NAMED])
            raise Refusal(codes.IO, f"{where} can't be filled: {why}; {LINK_ADVICE}")
        self._lacking, self._off, self._intact = found.lacking, found.off, found.intact
        self._staged_before = self._store.list_staged()
        place = {e.path: i for i, e in enumerate(self.listed)} if self._mine else {}
        distinct = list(self._find_distinct())
        wanted = sorted([*((place.get(e.path, i), e) for i, e in distinct), *self._find_of_others()])
        need = 0
        for i, e in wanted:
            have = self._measure_staged(e)
            if have < e.size:
                self._wanted.append(Want(i, have))
                need += e.size - have
        copies = sum(self.entries[i].size for i in self._lacking) - sum(e.size for _, e in distinct)
        self._check_room(need + copies)
        return list(self._wanted)

    def _find_distinct(self) -> Iterable[tuple[int, Entry]]:
        """Find the lacking contents that are nowhere here, each once."""
        seen = set(self._intact)
        for i in self._lacking:
            e = self.entries[i]
            if e.content not in seen:
                seen.add(e.content)
                yield i, e

    def _find_of_others(self) -> list[tuple[int, Entry]]:
        """Find contents only of files that other nodes get from here."""
        own = {e.content for e in self.entries}
        found: dict[str, tuple[int, Entry]] = {}
        for i, e in enumerate(self.listed if self._mine else ()):
            if e.kind == "f" and e.content not in own:
                found.setdefault(e.content, (i, e))
        self._guests = {content: i for content, (i, _) in found.items()}
        return list(found.values())

    def _measure_staged(self, e: Entry) -> int:
        """Return the bytes of this content that arrived earlier."""
        part = -1
        if e.content in self._staged_before and self._is_sure(e):
            return e.size
        if e.content + PART in self._staged_before:
            part = self._store.get_staged_size(e.content + PART)
        return min(max(part, 0), max(0, e.size - 1))  # the last byte triggers the check

    def _is_sure(self, e: Entry) -> bool:
        """Check a content staged earlier: a power cut may have damaged it."""
        with contextlib.suppress(OSError), open(self._store.open_staged(e.content), "rb") as f:
            value = make_hash()
            while data := f.read(1024 * 1024):
                value.update(data)
            if value.hexdigest() == e.content:
                self._sure[e.content] = ""
                return True
        os.unlink(e.content, dir_fd=self._store.staged_fd)
        return False

    def _check_room(self, need: int, *, is_full: bool = False) -> None:
        """Raise Refusal without room for `need` bytes, or if a write has failed for want of it."""
        room = os.fstatvfs(self._store.fd)
        free = room.f_bavail * room.f_frsize
        if is_full or need > free:
            text = (
                f"the disk of {self._store.workspace} has {free:,} bytes free and the package needs {need:,}"
            )
            raise Refusal(
                codes.IO, f"{text} more; the workspace is as it was. Make room, or give another folder"
            )

    # --- receiving ---

    def take(self, pieces: Iterable[Data]) -> list[Want]:
        """Write pieces; return files to be sent again. Raises Refusal, ManifestError, OSError."""
        again: list[Want] = []
        try:
            for piece in pieces:
                again += self._take(piece)
        except OSError as e:
            if e.errno not in _FULL:
                raise
            self._drop()
            need = self.count_missing_bytes()
            self._store.clear()
            self._check_room(need, is_full=True)
        return again

    def _take(self, piece: Data) -> list[Want]:
        """Write a piece, which continues the one before, maybe into the next requested files."""
        again: list[Want] = []
        data, begins = memoryview(piece.data), (piece.file, piece.offset)
        if not data or (self._wanted and begins != (self._wanted[0].file, self._get_offset())):
            raise ManifestError(f"{len(data)} bytes at {piece.offset} of file {piece.file} do not fit")
        while data:
            if not self._wanted:
                raise ManifestError("received more than was requested")
            want = self._wanted[0]
            e = self.listed[want.file]
            part = data[: e.size - self._get_offset()]
            data = data[len(part) :]
            again += self._take_part(e, want, part)
        return again

    def _get_offset(self) -> int:
        """Return the received bytes of the next file."""
        return self._at if self._fd >= 0 else self._wanted[0].offset

    def _take_part(self, e: Entry, want: Want, data: memoryview) -> list[Want]:
        if len(data) == e.size:
            self._wanted.popleft()
            if compute_digest(data) != e.content:
                return self._want_again(e, want)
            self._write_whole(e, e.content, data)
            return []
        if self._fd < 0:
            self._begin(e, want.offset)
        write_all(self._fd, data)
        self._hash.update(data)
        self._at += len(data)
        self._receiving = e.content, self._at
        return self._end(e, want) if self._at == e.size else []

    def _write_whole(self, e: Entry, name: str, data: bytes | memoryview) -> None:
        fd = os.open(name, _NEW | os.O_TRUNC, 0o600, dir_fd=self._store.staged_fd)
        try:
            write_all(fd, data)
            dress(fd, e)
        finally:
            os.close(fd)
        self._sure[name] = e.path

    def _begin(self, e: Entry, offset: int) -> None:
        name = e.content + PART
        self._fd = os.open(name, (_NEW | os.O_RDWR) & ~os.O_WRONLY, 0o600, dir_fd=self._store.staged_fd)
        os.ftruncate(self._fd, offset)
        self._at, self._hash = 0, make_hash()
        while data := os.read(self._fd, min(1024 * 1024, offset - self._at)):
            self._hash.update(data)
            self._at += len(data)

    def _end(self, e: Entry, want: Want) -> list[Want]:
        """Verify a complete content; return it if it must be sent again."""
        self._wanted.popleft()
        good = self._hash.hexdigest() == e.content
        if good:
            dress(self._fd, e)
            self._sure[e.content] = e.path
        self._drop()
        staged = self._store.staged_fd
        if good:
            os.rename(e.content + PART, e.content, src_dir_fd=staged, dst_dir_fd=staged)
            return []
        os.unlink(e.content + PART, dir_fd=staged)
        return self._want_again(e, want)

    def _want_again(self, e: Entry, want: Want) -> list[Want]:
        """Return a content with a wrong hash, to be sent again. Raises Refusal if it was already.

        The part of an earlier try was corrupt, or somebody changes what comes over the network.
        """
        if e.content in self._wanted_again:
            text = f"{e.path} has come twice with another content than was listed: it has changed since"
            raise Refusal(codes.IO, f"{text}, or is damaged on its way; start again")
        self._wanted_again.add(e.content)
        again = Want(want.file, 0)
        self._wanted.append(again)
        return [again]

    def count_ready_bytes(self, e: Entry) -> int:
        """Return the bytes of a file that are here, verified or not; also called in another thread."""
        if self._placed or e.content in self._sure:
            return e.size
        content, at = self._receiving
        return at if content == e.content else 0

    def _drop(self) -> None:
        self._receiving = "", 0
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def list_remaining(self) -> list[Want]:
        """Return the requested files that have not arrived."""
        rest = list(self._wanted)
        if rest:
            rest[0] = Want(rest[0].file, self._get_offset())
        return rest

    def count_missing_bytes(self) -> int:
        """Return the requested bytes that have not arrived."""
        return sum(self.listed[w.file].size - w.offset for w in self.list_remaining())

    @property
    def is_whole(self) -> bool:
        """Check that all requested files have arrived."""
        return not self._wanted

    # --- into place ---

    def place(self) -> None:
        """Move all into place atomically; do nothing if all is there already."""
        if self._unchanged:
            return
        if self._lacking or self._off or self._data != self.read_own_manifest():
            self._dress_all()
            put_in_place(self._store, self._data, self.entries, self._guests)
            for i in self._lacking:
                e = self.entries[i]
                st = os.lstat(os.path.join(self._store.workspace, e.path))
                if st.st_ctime_ns % 1_000_000_000:
                    self._hashes.trust(st, e.content)
        self._hashes.save()
        self._placed = True

    def _dress_all(self) -> None:
        """Stage every lacking file under its own name, with mode and time."""
        lacking, staged = {self.entries[i].path for i in self._lacking}, self._store.staged_fd
        for e, name in assign_stage_names(self.entries):
            if e.path not in lacking:
                continue
            if name not in self._sure:
                self._copy(e, name)
            if self._sure[name] != e.path:
                os.chmod(name, 0o600, dir_fd=staged)  # so that we can open it
                fd = self._store.open_staged(name)
                dress(fd, e)
                os.close(fd)

    def _copy(self, e: Entry, name: str) -> None:
        """Copy a content that is here under another name, or empty."""
        if e.size == 0:
            self._write_whole(e, name, b"")
            return
        if e.content in self._intact:
            path = os.path.join(self._store.workspace, self._intact[e.content])
            source = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        else:
            source = self._store.open_staged(e.content)
        value, staged, part = make_hash(), self._store.staged_fd, name + PART
        with open(source, "rb") as f:
            fd = os.open(part, _NEW | os.O_TRUNC, 0o600, dir_fd=staged)
            try:
                while data := f.read(1024 * 1024):
                    value.update(data)
                    write_all(fd, data)
            finally:
                os.close(fd)
        if value.hexdigest() != e.content:
            os.unlink(part, dir_fd=staged)
            raise Refusal(codes.IO, f"{e.path} has changed since it was listed; start again")
        os.rename(part, name, src_dir_fd=staged, dst_dir_fd=staged)
        self._sure[name] = ""

    def remember(self) -> None:
        """Keep fingerprints for the next dispatch's fast path, after all is in place."""
        if not self._unchanged and not self._mine:
            with contextlib.suppress(OSError):
                unchanged.note(self._store, self.entries, self._hashes)

    def close(self) -> None:
        self._drop()
        self._store.close()

    def give_up(self) -> None:
        """End long work soon; called from another thread."""
        self._hashes.stop = True
