"""Sender of a folder to a node: the lacking files, piece by piece, as fast as the node takes them.

One thread reads files for all nodes, never more than a node has granted: memory is bounded for any size of
files and speed of lines.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..line.wire import MAX_DATA_BYTES, NONSENSE, Data
from ..loop import Aside
from .manifest import Entry, Want, compute_digest, decode, encode

if TYPE_CHECKING:
    from .. import messages
    from ..line.wire import MessageLine

# In flight to a node at first: with less, the sender waits for the grants of a busy node.
FIRST_BYTES = 2 * 1024 * 1024
WINDOW_BYTES = 4 * 1024 * 1024  # at most in flight to a node or in its memory
THE_MANIFEST = 2**32 - 1  # as the number of a file
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
BATCH_BYTES = 512 * 1024  # read at once; two of them wait at most


class Source:
    """A folder with its manifest, from which nodes are filled."""

    def __init__(
        self,
        folder: str,
        entries: Sequence[Entry] | bytes,
        contents: str = "",
        extras: Mapping[str, str] | None = None,
    ) -> None:
        """`entries`: also as a manifest; it is decoded when a node lacks files.

        Decoding a million files takes seconds: `Sender.call_when_read` does it in a thread.

        `contents`: a folder of files that are not in `folder`, named by their hashes.

        `extras`: top-level names that are folders elsewhere.
        """
        self._folder, self._contents = folder, contents
        self._extras = extras or {}
        if not isinstance(entries, bytes):
            self.entries = entries
        self._whole: Source = self  # for a part: the source with all entries
        self.manifest = entries if isinstance(entries, bytes) else encode(entries)
        self.digest = compute_digest(self.manifest)

    @functools.cached_property
    def entries(self) -> Sequence[Entry]:
        return decode(self.manifest)

    @property
    def is_read(self) -> bool:
        """Check if `entries` is decoded."""
        return "entries" in vars(self)

    def make_part(self, entries: Sequence[Entry]) -> Source:
        """Return a source of these entries only, for some nodes."""
        part = Source(self._folder, entries, self._contents, self._extras)
        part._whole = self
        return part

    @functools.cached_property
    def by_content(self) -> dict[str, list[Entry]]:
        """Return the files of each content."""
        found: dict[str, list[Entry]] = {}
        for e in self.entries:
            if e.kind == "f":
                found.setdefault(e.content, []).append(e)
        return found

    def get_path(self, e: Entry) -> str:
        top, _, rest = e.path.partition("/")
        if top in self._extras:
            return os.path.realpath(os.path.join(self._extras[top], rest))  # it may be a link to a file
        return os.path.join(self._folder, e.path)

    def open(self, e: Entry) -> int:
        """Open a file, unchanged since it was listed. Raises OSError."""
        path = self.get_path(e)
        try:
            fd = os.open(path, READ)
        except FileNotFoundError:
            if not self._contents:
                raise
            equal = map(self.get_path, self._whole.by_content.get(e.content, ()))
            paths = [path for path in equal if os.path.lexists(path)]
            return os.open(paths[0] if paths else os.path.join(self._contents, e.content), READ)
        st = os.fstat(fd)
        if (st.st_size, st.st_mtime_ns) != (e.size, e.mtime_ns):
            os.close(fd)
            raise _make_change_error(path)
        return fd

    def count_ready_bytes(self, e: Entry) -> int:
        """Return the bytes of a file that can be read now."""
        return e.size


class Sender:
    """Sender of a package to one node, driven by the node's answers; `fail` gets errors."""

    def __init__(
        self,
        aside: Aside,
        source: Source,
        line: MessageLine[messages.DispatchMsg],
        *,
        fail: Callable[[Exception], None],
        offer: bool = True,
    ) -> None:
        self._aside, self._source, self._line = aside, source, line
        self._fail = fail
        self._queue: deque[Want] = deque()
        self._fd, self._at = -1, 0
        self._credit = FIRST_BYTES
        self._ready: deque[list[Data]] = deque()
        self._reading, self._batch_bytes = False, 0
        self._growths, self._dry_at = 0, -1  # of the source; at the one in `_dry_at` nothing was left to read
        self.total_bytes = 0  # of files
        if offer:
            line.send({"type": "dispatch", "digest": source.digest, "bytes": len(source.manifest)})

    def obey(self, m: messages.LacksMsg | messages.ReceivedMsg, refuse: Callable[[Exception], None]) -> None:
        """Send what a node lacks, or more; call `refuse` if a request is invalid."""

        def send() -> None:
            try:
                if m["type"] == "lacks":
                    self.send_lacking(m)
                elif m["type"] == "received":
                    self.grant(m)
            except NONSENSE as e:
                refuse(e)

        self.call_when_read(m, send)

    def call_when_read(self, m: messages.LacksMsg | messages.ReceivedMsg, then: Callable[[], None]) -> None:
        """Call `then` with the entries decoded if `m` needs them: now, or later from the loop."""
        if self._source.is_read or not m.get("files"):
            then()
        else:
            self._aside.do(lambda: self._source.entries, lambda _: then(), self._fail)

    def send_lacking(self, m: messages.LacksMsg) -> None:
        """Queue the requested files in their order. Raises ValueError if a request is invalid."""
        wants = self._list_wants(m)
        if wants and len(self._queue) + len(wants) > len(self._source.entries):
            raise ValueError("files that it has asked for already")
        if m["manifest"]:
            self._queue.append(Want(THE_MANIFEST, 0))
        self._queue.extend(wants)
        self.total_bytes += self._sum_bytes(wants)
        self._read()

    def count_bytes(self, m: messages.LacksMsg) -> int:
        """Return the number of requested bytes. Raises ValueError if a request is invalid."""
        return self._sum_bytes(self._list_wants(m))

    def _sum_bytes(self, wants: Sequence[Want]) -> int:
        return sum(self._source.entries[file].size - offset for file, offset in wants) if wants else 0

    def _list_wants(self, m: messages.LacksMsg) -> list[Want]:
        if not m["files"]:
            return []
        entries = self._source.entries
        offsets = {int(file): int(offset) for file, offset in m["offsets"].items()}
        wants: list[Want] = []
        end = named = 0
        for passed, count in zip(m["files"][::2], m["files"][1::2]):
            first = end + passed
            end = first + count
            # At most all entries, with repetitions counted: a short message may mean millions.
            named += count
            if not 0 <= first < end <= len(entries) or named > len(entries):
                raise ValueError(f"{count} files from number {first} on, of {len(entries)}")
            for file in range(first, end):
                size = entries[file].size  # none: a folder, a link, an empty file
                offset = offsets.get(file, 0)
                if offset and not 0 <= offset < size:
                    raise ValueError(f"file {file} from {offset} on")
                if size:
                    wants.append(Want(file, offset))
        return wants

    def grant(self, m: messages.ReceivedMsg) -> None:
        """Send as much more as the node has written."""
        self._credit = min(WINDOW_BYTES, self._credit + int(m["bytes"]))
        self._read()

    def go_on(self) -> None:
        """Read on: the source has grown."""
        self._growths += 1
        self._read()

    def _read(self) -> None:
        """Let the thread read the next batch, if there is room for it."""
        if self._reading or len(self._ready) > 1 or self._credit < MAX_DATA_BYTES:
            return
        if not self._queue or self._dry_at == self._growths:
            return
        self._reading = True
        budget, growths = min(BATCH_BYTES, self._credit), self._growths

        def take(pieces: list[Data]) -> None:
            self._reading = False
            self._credit -= self._batch_bytes
            if pieces:
                self._ready.append(pieces)
                self._line.draw(self._draw)
            else:
                self._dry_at = growths
            self._read()

        self._aside.do(lambda: self._read_batch(budget), take, self._fail)

    def _draw(self) -> list[Data]:
        if not self._ready:
            return []
        pieces = self._ready.popleft()
        self._read()
        return pieces

    def _read_batch(self, budget: int) -> list[Data]:
        pieces: list[Data] = []
        self._batch_bytes = 0
        while self._queue and self._batch_bytes + MAX_DATA_BYTES <= budget:
            piece = self._read_piece()
            if not piece.data:  # no more for now
                break
            self._batch_bytes += len(piece.data)
            pieces.append(piece)
        return pieces

    def _read_piece(self) -> Data:
        """Read as much as a frame holds, of one file or of several in sequence."""
        file = self._queue[0].file
        if file == THE_MANIFEST:
            at, data = self._at, self._source.manifest[self._at : self._at + MAX_DATA_BYTES]
            self._advance(len(data), len(self._source.manifest))
            return Data(file, at, data)
        parts: list[bytes] = []
        room, start = MAX_DATA_BYTES, -1
        while room and self._queue and self._queue[0].file != THE_MANIFEST:
            want = self._queue[0]
            e = self._source.entries[want.file]
            ready = self._source.count_ready_bytes(e) - (self._at if self._fd >= 0 else want.offset)
            if ready <= 0:
                break
            if self._fd < 0:
                self._begin(e, want.offset)
            start = self._at if start < 0 else start
            data = os.read(self._fd, min(room, ready))
            if not data:
                raise _make_change_error(self._source.get_path(e))
            parts.append(data)
            room -= len(data)
            self._advance(len(data), e.size)
        return Data(file, start, b"".join(parts))

    def _advance(self, count: int, size: int) -> None:
        self._at += count
        if self._at == size:
            self._queue.popleft()
            self._at = 0
            self._close_file()

    def _begin(self, e: Entry, offset: int) -> None:
        self._fd = self._source.open(e)
        if offset:
            os.lseek(self._fd, offset, os.SEEK_SET)
        self._at = offset

    def close(self) -> None:
        """Send nothing more and close the open file; called in the thread."""
        self._queue.clear()
        self._close_file()

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _make_change_error(path: str) -> OSError:
    return OSError(0, "was changed while it was sent: start again, or leave it out (.pslaunchignore)", path)
