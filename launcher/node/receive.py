"""A node takes a package: says what it lacks, keeps what comes beside the workspace, then moves it in.

Every piece is checked against the manifest before it is written, and every content against its hash before
it counts. What has arrived when a line is cut is not asked for again. Nothing here decides for the job.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from pslaunch.node import codes
from pslaunch.node.loop import Aside, Loop
from pslaunch.node.manifest import (
    MAX_BYTES,
    MAX_NAMED,
    Entry,
    Hashes,
    ManifestError,
    decode,
    digest,
    encode,
    new_hash,
)
from pslaunch.node.place import HASHES, MANIFEST, Store, dress, put_in_place, stage_names, survey
from pslaunch.node.program import Refusal
from pslaunch.node.wire import Data, Message

WINDOW_BYTES = 4 * 1024 * 1024  # on their way to a node, or in its memory, at most
THE_MANIFEST = 2**32 - 1  # as the number of a file
_FULL = (errno.ENOSPC, errno.EDQUOT)
_PART = ".part"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class Want(NamedTuple):
    """A file to be sent, from an offset on."""

    file: int
    offset: int


class Incoming:
    """The files of one dispatch into one workspace; all of it slow, so used in a thread."""

    def __init__(self, workspace: str, mine: Callable[[Entry], bool] | None = None) -> None:
        """`mine` says which entries are this node's; the others' contents are only kept, for other nodes."""
        self._store, self._mine = Store(workspace), mine
        self._hashes = Hashes(os.path.join(self._store.path, HASHES))
        self._data = b""
        self.listed: list[Entry] = []  # the package
        self.entries: list[Entry] = []  # what of it is for this workspace
        self._there: set[str] = set()  # names of what was staged before
        self._guests: dict[str, int] = {}  # contents that are for others alone
        self._lacking: list[int] = []
        self._off = False
        self._intact: dict[str, str] = {}
        self._wanted: deque[Want] = deque()
        self._fd, self._at, self._hash = -1, 0, new_hash()  # the file that comes just now

    def own(self) -> bytes:
        """The manifest of what the last dispatch put here."""
        return self._store.read(MANIFEST)

    def look(self, manifest: bytes) -> list[Want]:
        """What is to be sent so that the workspace can be as in this manifest.

        Raises Refusal where there is no room, or programs put something else into its way.
        """
        self._wanted.clear()
        self.listed = self.entries = decode(manifest)
        self._data = manifest
        if self._mine:
            self.entries = [e for e in self.listed if self._mine(e)]
            self._data = encode(self.entries)
        old = self.listed if manifest == self.own() else self._store.entries(MANIFEST)
        found = survey(self._store.workspace, self.entries, old, self._hashes)
        if found.conflicts:
            raise Refusal(codes.IO, self._in_the_way(found.conflicts))
        self._lacking, self._off, self._intact = found.lacking, found.off, found.intact
        self._there = self._store.staged()
        place = {e.path: i for i, e in enumerate(self.listed)} if self._mine else {}
        wanted = [(place.get(e.path, i), e) for i, e in self._distinct()] + self._of_others()
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
        there, part = self._there, -1
        if e.content in there and self._store.staged_size(e.content) == e.size:
            return e.size
        if e.content + _PART in there:
            part = self._store.staged_size(e.content + _PART)
        if e.size == 0:
            self._write_whole(e, b"")
        return min(max(part, 0), max(0, e.size - 1))  # its last byte brings the check

    def _in_the_way(self, paths: Sequence[str]) -> str:
        names = ", ".join(paths[:MAX_NAMED]) + (
            f" and {len(paths) - MAX_NAMED} more" if paths[MAX_NAMED:] else ""
        )
        where = self._store.workspace
        return f"programs put {names} into {where}, where the package has something else: move it away"

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
            need = sum(self.listed[w.file].size - w.offset for w in self._wanted)
            self._store.clear()
            room = os.fstatvfs(self._store.fd)
            raise Refusal(codes.IO, self._no_room(need, room.f_bavail * room.f_frsize)) from e
        return again

    def _take(self, piece: Data) -> list[Want]:
        if not self._wanted:
            raise ManifestError("more came than was asked for")
        want = self._wanted[0]
        e = self.listed[want.file]
        at = self._at if self._fd >= 0 else want.offset
        if piece.file != want.file or piece.offset != at or not 0 < len(piece.data) <= e.size - at:
            raise ManifestError(f"{e.path}: {len(piece.data)} bytes at {piece.offset} do not fit")
        if len(piece.data) == e.size:
            self._wanted.popleft()
            if digest(piece.data) != e.content:
                raise Refusal(codes.IO, _changed(e))
            self._write_whole(e, piece.data)
            return []
        if self._fd < 0:
            self._begin(e, want.offset)
        _write(self._fd, piece.data)
        self._hash.update(piece.data)
        self._at += len(piece.data)
        return self._end(e, want) if self._at == e.size else []

    def _write_whole(self, e: Entry, data: bytes) -> None:
        fd = os.open(e.content, _NEW | os.O_TRUNC, 0o600, dir_fd=self._store.staged_fd)
        try:
            _write(fd, data)
            dress(fd, e)
        finally:
            os.close(fd)

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
        if rest and self._fd >= 0:
            rest[0] = Want(rest[0].file, self._at)
        return rest

    @property
    def whole(self) -> bool:
        """Whether all that was asked for has come."""
        return not self._wanted

    # --- into place ---

    def place(self) -> None:
        """Move all into place, as a whole; nothing where all is there already."""
        if self._lacking or self._off or self._data != self.own():
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
        lacking, there = {self.entries[i].path for i in self._lacking}, self._store.staged()
        for e, name in stage_names(self.entries):
            if e.path not in lacking:
                continue
            if name not in there or self._store.staged_size(name) != e.size:
                self._copy(e, name)
            st = os.stat(name, dir_fd=self._store.staged_fd, follow_symlinks=False)
            if st.st_mode & 0o777 != e.mode or st.st_mtime_ns != e.mtime_ns:
                os.chmod(name, 0o600, dir_fd=self._store.staged_fd)  # ours to open again
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._store.staged_fd)
                dress(fd, e)
                os.close(fd)

    def _copy(self, e: Entry, name: str) -> None:
        """A content that is here under another name."""
        staged = self._store.staged_fd
        if e.content in self._intact:
            path = os.path.join(self._store.workspace, self._intact[e.content])
            source = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        else:
            source = os.open(e.content, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=staged)
        value = new_hash()
        with open(source, "rb") as f:
            fd = os.open(name, _NEW | os.O_TRUNC, 0o600, dir_fd=staged)
            try:
                while data := f.read(1024 * 1024):
                    value.update(data)
                    _write(fd, data)
            finally:
                os.close(fd)
        if value.hexdigest() != e.content:
            raise Refusal(codes.IO, _changed(e))

    def close(self) -> None:
        """Give the descriptors back."""
        self._drop()
        self._store.close()

    def give_up(self) -> None:
        """Called from elsewhere: whatever takes long ends soon."""
        self._hashes.stop = True


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _changed(e: Entry) -> str:
    return f"{e.path} came with another content than it had when it was listed; was it changed meanwhile?"


class Receiver:
    """Takes one package over a line: orders and pieces come in, `say` answers, `over` is told the end."""

    def __init__(
        self,
        loop: Loop,
        workspace: str,
        *,
        say: Callable[[Message], None],
        over: Callable[[Exception | None], None],
        in_place: bool = False,
        mine: Callable[[Entry], bool] | None = None,
    ) -> None:
        """`in_place`: the workspace is the folder itself, and only the manifest is wanted.

        `mine`: which entries are for this workspace, where others are filled from here too.
        """
        self._in_place, self._mine = in_place, mine
        self._aside, self._workspace, self._say, self._over = Aside(loop), workspace, say, over
        self._asked = say  # whoever sends just now
        self._incoming: Incoming | None = None
        self._digest, self._size = "", 0
        self._manifest: bytearray | None = None  # as it comes
        self._looked: tuple[str, list[Want]] = "", []  # what the last package would lack by now
        self._pieces: list[Data] = []
        self._waiting_bytes = 0  # in our memory
        self._writing = False
        self.closed = False
        self.entries: list[Entry] = []  # the package, once it is over without a failure

    def expect(self) -> None:
        """Look at the workspace while the package is still being listed: often it is the last one again."""

        def look() -> None:
            self._incoming = Incoming(self._workspace, self._mine)
            own = self._incoming.own()
            if own:
                self._looked = digest(own), self._incoming.look(own)

        self._aside.do(look, lambda _failed: None)  # what is wrong is told when it matters

    def offered(self, m: Message) -> None:
        """A package: its manifest's hash and length. Asks for the manifest, or for what is lacking."""
        self._digest, self._size = str(m["digest"]), int(m["bytes"])
        if not 0 < self._size <= MAX_BYTES:
            self._end(ManifestError(f"a manifest of {self._size} bytes"))
            return
        if self._in_place:
            self._want_manifest()
            return
        own = [b""]

        def look() -> None:
            if self._incoming is None:
                self._incoming = Incoming(self._workspace, self._mine)
            own[0] = self._incoming.own()

        def looked() -> None:
            if self._looked[0] == self._digest:
                self._found(self._looked[1])
            elif digest(own[0]) == self._digest:
                self._look(own[0])
            else:
                self._want_manifest()

        self._do(look, looked)

    def _want_manifest(self) -> None:
        self._manifest = bytearray()
        self._say({"type": "lacks", "manifest": True, "files": [], "offsets": {}, "alone": True})

    def _look(self, manifest: bytes) -> None:
        wants: list[Want] = []
        incoming = self._incoming
        assert incoming is not None

        self._do(lambda: wants.extend(incoming.look(manifest)), lambda: self._found(wants))

    def _found(self, wants: Sequence[Want]) -> None:
        self._ask(wants)
        self._place_if_whole()

    def ask_of(self, say: Callable[[Message], None] | None, *, alone: bool) -> None:
        """Have the rest sent by another, or (None) by who offered it; `alone`: there is no other way."""
        incoming = self._incoming
        if self.closed or incoming is None:
            return
        self._waiting_bytes -= sum(len(p.data) for p in self._pieces)
        self._pieces = []
        self._asked = say or self._say
        rest: list[Want] = []
        self._do(lambda: rest.extend(incoming.remaining()), lambda: self._ask(rest, alone=alone))

    def _ask(self, wants: Sequence[Want], *, alone: bool = False) -> None:
        runs: list[list[int]] = []
        for want in wants:
            if runs and runs[-1][0] + runs[-1][1] == want.file:
                runs[-1][1] += 1
            else:
                runs.append([want.file, 1])
        offsets = {str(want.file): want.offset for want in wants if want.offset}
        self._asked({"type": "lacks", "manifest": False, "files": runs, "offsets": offsets, "alone": alone})

    def take(self, piece: Data) -> None:
        """A piece of the manifest or of a file."""
        if self.closed or (self._incoming is None and not self._in_place):
            return
        self._waiting_bytes += len(piece.data)
        if self._waiting_bytes > WINDOW_BYTES:
            self._end(ManifestError("more comes than was granted"))
        elif piece.file == THE_MANIFEST:
            self._take_manifest(piece)
        elif self._in_place:
            self._end(ManifestError("a file that was not asked for"))
        else:
            self._pieces.append(piece)
            self._write()

    def _take_manifest(self, piece: Data) -> None:
        data = self._manifest
        if data is None or piece.offset != len(data) or len(data) + len(piece.data) > self._size:
            self._end(ManifestError("a piece of a manifest that does not fit"))
            return
        data += piece.data
        self._granted(len(piece.data))
        if len(data) == self._size:
            self._manifest = None
            if digest(bytes(data)) != self._digest:
                self._end(ManifestError("the manifest is not what was announced"))
            else:
                self._have(bytes(data))

    def _have(self, manifest: bytes) -> None:
        if not self._in_place:
            self._look(manifest)
            return
        try:
            self.entries = decode(manifest)
            self._end(None)
        except ManifestError as e:
            self._end(e)

    def _granted(self, taken: int) -> None:
        self._waiting_bytes -= taken
        self._asked({"type": "received", "bytes": taken})

    def _write(self) -> None:
        if self._writing or not self._pieces:
            return
        self._writing = True
        pieces, self._pieces = self._pieces, []
        again: list[Want] = []
        incoming = self._incoming
        assert incoming is not None

        def written() -> None:
            self._writing = False
            self._granted(sum(len(p.data) for p in pieces))
            if again:
                self._ask(again)
            self._write()
            self._place_if_whole()

        self._do(lambda: again.extend(incoming.take(pieces)), written)

    def _place_if_whole(self) -> None:
        incoming = self._incoming
        assert incoming is not None
        if incoming.whole and not self._writing:
            self.entries = incoming.listed
            self._do(incoming.place, lambda: self._end(None))

    def _do(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        def over(failed: Exception | None) -> None:
            if self.closed:
                return
            if failed:
                self._end(failed)
            else:
                then()

        self._aside.do(work, over)

    def _end(self, failed: Exception | None) -> None:
        self.close()
        if isinstance(failed, ManifestError):
            failed = Refusal(codes.IO, f"the package can't be taken: {failed}")
        self._over(failed)

    def close(self) -> None:
        """Take nothing more; what the thread is at ends soon. May be called twice."""
        if not self.closed:
            self.closed = True
            self._aside.close()
            if self._incoming:
                with contextlib.suppress(OSError):
                    self._incoming.give_up()
