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
from .into_place import HASHES, MANIFEST, Store, Survey, assign_stage_names, put_in_place, survey
from .manifest import (
    HASH_READ_BYTES,
    LINK_ADVICE,
    MAX_NAMED,
    Entry,
    Hashes,
    ManifestError,
    Want,
    compute_digest,
    decode,
    encode,
    hash_rest,
    make_hash,
)

_FULL = (errno.ENOSPC, errno.EDQUOT)


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
        self._guests: set[str] = set()  # contents for other nodes alone
        self._found = Survey()
        self._unchanged = False
        self._sure: set[str] = set()  # verified names in staged/
        self._wanted: deque[Want] = deque()  # the first one from the byte that comes next
        self._wanted_again: set[str] = set()  # contents that had a wrong hash once
        self._placed = False
        self._fd, self._hash = -1, make_hash()  # of the file being received

    def compare(self, digest: str) -> list[Want] | None:
        """Return the files to be sent as `list_lacking`, None if the last dispatch had another manifest."""
        self._unchanged = not self._mine and unchanged.glance(self._store) == digest
        if self._unchanged:
            return []
        own = self._store.read(MANIFEST)
        return self.list_lacking(own) if compute_digest(own) == digest else None

    def list_lacking(self, manifest: bytes) -> list[Want]:
        """Return the files to be sent to make the workspace match this manifest.

        Raises Refusal without enough space, or if programs' files are in the way.
        """
        self._unchanged = False
        self._close_file()  # a file whose line was cut
        self._wanted.clear()
        self._wanted_again.clear()
        self._sure.clear()
        self.listed = self.entries = decode(manifest)
        self._data = manifest
        if self._mine:
            self.entries = self._mine(self.listed)
            self._data = encode(self.entries)
        old = self.listed if manifest == self._store.read(MANIFEST) else self._store.read_entries()
        found = self._found = survey(self._store.workspace, self.entries, old, self._hashes)
        if found.conflicts:
            where, names = self._store.workspace, show_few(found.conflicts, MAX_NAMED)
            text = f"programs put {names} into {where}, where the package has something else: move it away"
            raise Refusal(codes.IO, text)
        if found.unfit:
            where, why = self._store.workspace, "; ".join(found.unfit[:MAX_NAMED])
            raise Refusal(codes.IO, f"{where} can't be filled: {why}; {LINK_ADVICE}")
        self._staged_before = self._store.list_staged()
        self._want_missing()
        return list(self._wanted)

    def _want_missing(self) -> None:
        """Want the contents that are nowhere here, each once, and those that other nodes get from here."""
        own = {e.content for e in self._found.lacking} - self._found.intact.keys()
        if self._mine:
            self._guests = {e.content for e in self.listed if e.kind == "f"}
            self._guests -= {e.content for e in self.entries}
        seen: set[str] = set()
        need = sum(e.size for e in self._found.lacking)
        for i, e in enumerate(self.listed):
            if e.kind != "f" or e.content in seen or not (e.content in own or e.content in self._guests):
                continue
            seen.add(e.content)
            have = self._measure_staged(e)
            if have < e.size:
                self._wanted.append(Want(i, have))
            need -= have if e.content in own else have - e.size
        self._check_room(need)

    def _measure_staged(self, e: Entry) -> int:
        """Return the bytes of this content that arrived earlier; a power cut may have damaged them."""
        if e.content not in self._staged_before:
            return 0
        with contextlib.suppress(OSError), open(self._store.open_staged(e.content), "rb") as f:
            size = os.fstat(f.fileno()).st_size
            if size < e.size:
                return size
            if hash_rest(f.fileno()).hexdigest() == e.content:
                self._sure.add(e.content)
                return e.size
        os.unlink(e.content, dir_fd=self._store.staged_fd)
        return 0

    def _check_room(self, need: int, *, is_full: bool = False) -> None:
        """Raise Refusal without room for `need` bytes, or if a write has failed for want of it."""
        room = os.fstatvfs(self._store.fd)
        free = room.f_bavail * room.f_frsize
        if is_full or need > free:
            where = self._store.workspace
            text = f"the disk of {where} has {free:,} bytes free and the package needs {need:,} more"
            raise Refusal(codes.IO, f"{text}; the workspace is as it was. Make room, or give another folder")

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
            self._close_file()
            try:  # before the room that what has come so far takes is free again
                self._check_room(self.count_missing_bytes(), is_full=True)
            finally:
                self._store.clear()
        return again

    def _take(self, piece: Data) -> list[Want]:
        """Write a piece, which continues the one before, maybe into the next requested files."""
        again: list[Want] = []
        data, begins = memoryview(piece.data), Want(piece.file, piece.offset)
        if not data or (self._wanted and begins != self._wanted[0]):
            raise ManifestError(f"{len(data)} bytes at {piece.offset} of file {piece.file} do not fit")
        while data:
            if not self._wanted:
                raise ManifestError("received more than was requested")
            want = self._wanted[0]
            e = self.listed[want.file]
            part = data[: e.size - want.offset]
            data = data[len(part) :]
            if self._fd < 0:
                self._open_file(e, want.offset)
            write_all(self._fd, part)
            self._hash.update(part)
            if want.offset + len(part) < e.size:
                self._wanted[0] = Want(want.file, want.offset + len(part))
            else:
                again += self._end_file(e, want)
        return again

    def _open_file(self, e: Entry, offset: int) -> None:
        """Go on with a file of which `offset` bytes arrived earlier."""
        self._fd = self._store.create_staged(e.content, 0 if offset else os.O_TRUNC)
        self._hash = make_hash()
        if offset:
            os.ftruncate(self._fd, offset)
            self._hash = hash_rest(self._fd)

    def _end_file(self, e: Entry, want: Want) -> list[Want]:
        """Verify a complete content; return it if it must be sent again. Raises Refusal if it was already."""
        self._wanted.popleft()
        self._close_file()
        if self._hash.hexdigest() == e.content:
            self._sure.add(e.content)
            return []
        # The part of an earlier try was corrupt, or somebody changes what comes over the network.
        os.unlink(e.content, dir_fd=self._store.staged_fd)
        if e.content in self._wanted_again:
            text = f"{e.path} has come twice with another content than was listed: it has changed since"
            raise Refusal(codes.IO, f"{text}, or is damaged on its way; start again")
        self._wanted_again.add(e.content)
        self._wanted.append(Want(want.file, 0))
        return [self._wanted[-1]]

    def count_ready_bytes(self, e: Entry) -> int:
        """Return the bytes of a file that are here, verified or not; also called in another thread."""
        if self._placed or e.content in self._sure:
            return e.size
        with contextlib.suppress(IndexError):
            want = self._wanted[0]
            return want.offset if self.listed[want.file].content == e.content else 0
        return 0

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def list_remaining(self) -> list[Want]:
        """Return the requested files that have not arrived, for a request to another sender."""
        self._close_file()
        self._wanted = deque(sorted(self._wanted))
        return list(self._wanted)

    def count_missing_bytes(self) -> int:
        return sum(self.listed[w.file].size - w.offset for w in tuple(self._wanted))

    @property
    def is_whole(self) -> bool:
        return not self._wanted

    # --- into place ---

    def place(self) -> None:
        """Move all into place atomically; do nothing if all is there already."""
        if self._unchanged:
            return
        if self._found.lacking or self._found.off or self._data != self._store.read(MANIFEST):
            self._store.clear(self._sure)  # of leftovers
            self._stage_all()
            put_in_place(self._store, self._data, self.entries, self._guests)
            for e in self._found.lacking:
                st = os.lstat(f"{self._store.workspace}/{e.path}")
                if st.st_ctime_ns % 1_000_000_000:
                    self._hashes.trust(st, e.content)
        self._hashes.save()
        self._placed = True

    def _stage_all(self) -> None:
        """Stage every lacking file under its own name, with mode and time."""
        lacking, staged_fd = {e.path for e in self._found.lacking}, self._store.staged_fd
        staged = [(e, name) for e, name in assign_stage_names(self.entries) if e.path in lacking]
        for e, name in staged:
            if name not in self._sure:
                self._copy(e, name)
        for e, name in staged:  # only now: a mode may forbid us to read it
            os.chmod(name, e.mode, dir_fd=staged_fd)
            os.utime(name, ns=(e.mtime_ns, e.mtime_ns), dir_fd=staged_fd)

    def _copy(self, e: Entry, name: str) -> None:
        """Copy a content that is here under another name, or empty."""
        value = make_hash()
        with open(self._open_copied(e), "rb") as f, open(self._store.create_staged(name), "wb") as copy:
            while data := f.read(HASH_READ_BYTES):
                value.update(data)
                copy.write(data)
        if value.hexdigest() != e.content:
            os.unlink(name, dir_fd=self._store.staged_fd)
            raise Refusal(codes.IO, f"{e.path} has changed since it was listed; start again")
        self._sure.add(name)

    def _open_copied(self, e: Entry) -> int:
        if e.size == 0:
            return os.open(os.devnull, os.O_RDONLY)
        if e.content in self._found.intact:
            path = os.path.join(self._store.workspace, self._found.intact[e.content])
            return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        return self._store.open_staged(e.content)

    def remember(self) -> None:
        """Keep fingerprints for the next dispatch's fast path, after all is in place."""
        if not self._unchanged and not self._mine:
            with contextlib.suppress(OSError):
                unchanged.note(self._store, self.entries, self._hashes)

    def close(self) -> None:
        self._close_file()
        self._store.close()

    def give_up(self) -> None:
        """End long work soon; called from another thread."""
        self._hashes.stop = True
