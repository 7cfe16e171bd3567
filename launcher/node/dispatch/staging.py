"""What comes of a package into one workspace: what is lacking, pieces that are checked, then all into place.

Every piece is checked against the manifest before it is written, and every content against its hash before
it counts. What has arrived when a line is cut is not asked for again. All of it slow: used in a thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from .. import codes
from ..codes import Refusal
from ..line.wire import Data
from ..listing import show_few
from . import unchanged
from .into_place import HASHES, MANIFEST, Store, dress, put_in_place, stage_names, survey
from .manifest import MAX_NAMED, Entry, Hashes, ManifestError, decode, digest, encode, new_hash

_FULL = (errno.ENOSPC, errno.EDQUOT)
_PART = ".part"
LINK_ADVICE = "to have a link to a folder that is mounted on the nodes: --link NAME=PATH"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class Want(NamedTuple):
    """A file to be sent, from an offset on."""

    file: int
    offset: int


class Incoming:
    """The files of one dispatch into one workspace."""

    def __init__(self, workspace: str, mine: Callable[[Sequence[Entry]], list[Entry]] | None = None) -> None:
        """`mine` says which entries are this node's; the others' contents are only kept, for other nodes."""
        self._store, self._mine = Store(workspace), mine
        self._hashes = Hashes(os.path.join(self._store.path, HASHES))
        self._data = b""
        self.listed: list[Entry] = []  # the package
        self.entries: list[Entry] = []  # what of it is for this workspace
        self._staged_before: set[str] = set()  # names
        self._guests: dict[str, int] = {}  # contents that are for others alone
        self._lacking: list[int] = []
        self._off = False
        self._unchanged, self._fingerprints = False, list[str]()
        self._intact: dict[str, str] = {}
        # What is in staged/ and was verified, by its name; with mode and time of this path, if of any.
        self._sure: dict[str, str] = {}
        self._wanted: deque[Want] = deque()
        self._fd, self._at, self._hash = -1, 0, new_hash()  # the file that comes just now

    def own(self) -> bytes:
        """The manifest of what the last dispatch put here."""
        return self._store.read(MANIFEST)

    def glance(self) -> str:
        """The digest of that manifest, if all is here as it says; "" where that takes more than a glance."""
        known = "" if self._mine else unchanged.glance(self._store)
        self._unchanged = bool(known)
        return known

    def list_lacking(self, manifest: bytes) -> list[Want]:
        """List what is to be sent so that the workspace can be as in this manifest.

        Raises Refusal where there is no room, or programs put something else into its way.
        """
        self._unchanged = False
        self._wanted.clear()
        self._sure.clear()
        self.listed = self.entries = decode(manifest)
        self._data = manifest
        if self._mine:
            self.entries = self._mine(self.listed)
            self._data = encode(self.entries)
        old = self.listed if manifest == self.own() else self._store.entries(MANIFEST)
        found = survey(self._store.workspace, self.entries, old, self._hashes)
        if found.conflicts:
            raise Refusal(codes.IO, self._in_the_way(found.conflicts))
        if found.unfit:
            where, why = self._store.workspace, "; ".join(found.unfit[:MAX_NAMED])
            raise Refusal(codes.IO, f"{where} can't be filled: {why}; {LINK_ADVICE}")
        self._lacking, self._off, self._intact = found.lacking, found.off, found.intact
        self._fingerprints = found.fingerprints if found.certain else []
        self._staged_before = self._store.staged()
        place = {e.path: i for i, e in enumerate(self.listed)} if self._mine else {}
        wanted = sorted([*((place.get(e.path, i), e) for i, e in self._distinct()), *self._of_others()])
        need = 0
        for i, e in wanted:
            have = self._staged(e)
            if have < e.size:
                self._wanted.append(Want(i, have))
                need += e.size - have
        copies = sum(self.entries[i].size for i in self._lacking) - sum(e.size for _, e in self._distinct())
        self._check_room(need + copies)
        return list(self._wanted)

    def _distinct(self) -> Iterable[tuple[int, Entry]]:
        """Each content that is neither here nor asked for twice."""
        seen = set(self._intact)
        for i in self._lacking:
            e = self.entries[i]
            if e.content not in seen:
                seen.add(e.content)
                yield i, e

    def _of_others(self) -> list[tuple[int, Entry]]:
        """Contents that no file here has, of files that other nodes get from here."""
        own = {e.content for e in self.entries}
        found: dict[str, tuple[int, Entry]] = {}
        for i, e in enumerate(self.listed if self._mine else ()):
            if e.kind == "f" and e.content not in own:
                found.setdefault(e.content, (i, e))
        self._guests = {content: i for content, (i, _) in found.items()}
        return list(found.values())

    def _staged(self, e: Entry) -> int:
        """How much of this content has arrived before."""
        part = -1
        if e.content in self._staged_before and self._is_sure(e):
            return e.size
        if e.content + _PART in self._staged_before:
            part = self._store.staged_size(e.content + _PART)
        return min(max(part, 0), max(0, e.size - 1))  # its last byte brings the check

    def _is_sure(self, e: Entry) -> bool:
        """Whether what an earlier dispatch staged still is what it was: a power cut may have been since."""
        with contextlib.suppress(OSError), open(self._store.open_staged(e.content), "rb") as f:
            value = new_hash()
            while data := f.read(1024 * 1024):
                value.update(data)
            if value.hexdigest() == e.content:
                self._sure[e.content] = ""
                return True
        os.unlink(e.content, dir_fd=self._store.staged_fd)
        return False

    def _in_the_way(self, paths: Sequence[str]) -> str:
        found, where = show_few(paths, MAX_NAMED), self._store.workspace
        return f"programs put {found} into {where}, where the package has something else: move it away"

    def _check_room(self, need: int) -> None:
        room = os.fstatvfs(self._store.fd)
        free = room.f_bavail * room.f_frsize
        if need > free:
            raise Refusal(codes.IO, self._no_room(need, free))

    def _no_room(self, need: int, free: int) -> str:
        return (
            f"the disk of {self._store.workspace} has {free:,} bytes free and the package needs {need:,} "
            "more; the workspace is as it was. Make room, or give another folder"
        )

    # --- what comes ---

    def take(self, pieces: Iterable[Data]) -> list[Want]:
        """Write pieces; returns what has to be sent once more. Raises Refusal, ManifestError, OSError."""
        again: list[Want] = []
        try:
            for piece in pieces:
                again += self._take(piece)
        except OSError as e:
            if e.errno not in _FULL:
                raise
            self._drop()
            need = self.missing_bytes()
            self._store.clear()
            room = os.fstatvfs(self._store.fd)
            raise Refusal(codes.IO, self._no_room(need, room.f_bavail * room.f_frsize)) from e
        return again

    def _take(self, piece: Data) -> list[Want]:
        """A piece begins where the one before it ended, and may go on into what was asked for next."""
        again: list[Want] = []
        data, begins = memoryview(piece.data), (piece.file, piece.offset)
        if not data or (self._wanted and begins != (self._wanted[0].file, self._begun())):
            raise ManifestError(f"{len(data)} bytes at {piece.offset} of file {piece.file} do not fit")
        while data:
            if not self._wanted:
                raise ManifestError("more came than was asked for")
            want = self._wanted[0]
            e = self.listed[want.file]
            part = data[: e.size - self._begun()]
            data = data[len(part) :]
            again += self._take_part(e, want, part)
        return again

    def _begun(self) -> int:
        """How much of the file that is next has come."""
        return self._at if self._fd >= 0 else self._wanted[0].offset

    def _take_part(self, e: Entry, want: Want, data: memoryview) -> list[Want]:
        if len(data) == e.size:
            self._wanted.popleft()
            if digest(data) != e.content:
                raise Refusal(codes.IO, _changed(e))
            self._write_whole(e, e.content, data)
            return []
        if self._fd < 0:
            self._begin(e, want.offset)
        _write(self._fd, data)
        self._hash.update(data)
        self._at += len(data)
        return self._end(e, want) if self._at == e.size else []

    def _write_whole(self, e: Entry, name: str, data: bytes | memoryview) -> None:
        fd = os.open(name, _NEW | os.O_TRUNC, 0o600, dir_fd=self._store.staged_fd)
        try:
            _write(fd, data)
            dress(fd, e)
        finally:
            os.close(fd)
        self._sure[name] = e.path

    def _begin(self, e: Entry, offset: int) -> None:
        name = e.content + _PART
        self._fd = os.open(name, (_NEW | os.O_RDWR) & ~os.O_WRONLY, 0o600, dir_fd=self._store.staged_fd)
        os.ftruncate(self._fd, offset)
        self._at, self._hash = 0, new_hash()
        while data := os.read(self._fd, min(1024 * 1024, offset - self._at)):
            self._hash.update(data)
            self._at += len(data)

    def _end(self, e: Entry, want: Want) -> list[Want]:
        """A content is whole: it counts if it is what it should be."""
        self._wanted.popleft()
        good = self._hash.hexdigest() == e.content
        if good:
            dress(self._fd, e)
            self._sure[e.content] = e.path
        self._drop()
        staged = self._store.staged_fd
        if good:
            os.rename(e.content + _PART, e.content, src_dir_fd=staged, dst_dir_fd=staged)
            return []
        os.unlink(e.content + _PART, dir_fd=staged)
        if not want.offset:
            raise Refusal(codes.IO, _changed(e))
        again = Want(want.file, 0)  # what was left of an earlier try was no good
        self._wanted.append(again)
        return [again]

    def _drop(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def remaining(self) -> list[Want]:
        """What was asked for and has not come."""
        rest = list(self._wanted)
        if rest:
            rest[0] = Want(rest[0].file, self._begun())
        return rest

    def missing_bytes(self) -> int:
        """How much of what was asked for has not come."""
        return sum(self.listed[w.file].size - w.offset for w in self.remaining())

    @property
    def whole(self) -> bool:
        """Whether all that was asked for has come."""
        return not self._wanted

    # --- into place ---

    def place(self) -> None:
        """Move all into place, as a whole; nothing where all is there already."""
        if self._unchanged:
            return
        if not self._lacking and not self._off and self._data == self.own():
            self._keep_fingerprints()
        else:
            self._dress_all()
            put_in_place(self._store, self._data, self.entries, self._guests)
            for i in self._lacking:
                e = self.entries[i]
                st = os.lstat(os.path.join(self._store.workspace, e.path))
                if st.st_ctime_ns % 1_000_000_000:
                    self._hashes.trust(st, e.content)
        self._hashes.save()

    def _dress_all(self) -> None:
        """Every lacking file staged under its own name: copies of what is here, modes, times."""
        lacking, staged = {self.entries[i].path for i in self._lacking}, self._store.staged_fd
        for e, name in stage_names(self.entries):
            if e.path not in lacking:
                continue
            if name not in self._sure:
                self._copy(e, name)
            if self._sure[name] != e.path:
                os.chmod(name, 0o600, dir_fd=staged)  # ours to open again
                fd = self._store.open_staged(name)
                dress(fd, e)
                os.close(fd)

    def _copy(self, e: Entry, name: str) -> None:
        """A content that is here under another name, or nothing at all."""
        if e.size == 0:
            self._write_whole(e, name, b"")
            return
        if e.content in self._intact:
            path = os.path.join(self._store.workspace, self._intact[e.content])
            source = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        else:
            source = self._store.open_staged(e.content)
        value, staged, part = new_hash(), self._store.staged_fd, name + _PART
        with open(source, "rb") as f:
            fd = os.open(part, _NEW | os.O_TRUNC, 0o600, dir_fd=staged)
            try:
                while data := f.read(1024 * 1024):
                    value.update(data)
                    _write(fd, data)
            finally:
                os.close(fd)
        if value.hexdigest() != e.content:
            os.unlink(part, dir_fd=staged)
            raise Refusal(codes.IO, _changed(e))
        os.rename(part, name, src_dir_fd=staged, dst_dir_fd=staged)
        self._sure[name] = ""

    def remember(self) -> None:
        """After all is in place: what the next dispatch can see at a glance."""
        if not self._unchanged and not self._mine:
            with contextlib.suppress(OSError):
                unchanged.note(self._store, self.entries, self._hashes)

    def _keep_fingerprints(self) -> None:
        if self._fingerprints and not self._mine:
            with contextlib.suppress(OSError):
                unchanged.keep(self._store, self._fingerprints)
                self._unchanged = True

    def close(self) -> None:
        """Give the descriptors back."""
        self._drop()
        self._store.close()

    def give_up(self) -> None:
        """Called from elsewhere: whatever takes long ends soon."""
        self._hashes.stop = True


def _write(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _changed(e: Entry) -> str:
    return f"{e.path} came with another content than it had when it was listed; was it changed meanwhile?"
