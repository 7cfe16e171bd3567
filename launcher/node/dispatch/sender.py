"""Sender of a folder to a node: the lacking files, piece by piece, as fast as the node takes them.

One thread reads files for all nodes, never more than a node has granted: memory is bounded for any size of
files and speed of lines.
"""

from __future__ import annotations

import base64
import contextlib
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

# In flight to a node or in its memory: no more than a channel of OpenSSH takes, beyond which sshd stalls.
WINDOW_BYTES = 2 * 1024 * 1024
THE_MANIFEST = 2**32 - 1  # as the number of a file
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Source:
    """A folder with its manifest, from which nodes are filled."""

    def __init__(
        self,
        folder: str,
        entries: Sequence[Entry] | bytes,
        contents: str = "",
        extras: Mapping[str, str] | None = None,
        count_ready: Callable[[Entry], int] = lambda e: e.size,
    ) -> None:
        """`entries`: also as a manifest; decoding it may take seconds.

        `contents`: a folder of files that are not in `folder`, named by their hashes. `extras`: top-level
        names that are folders elsewhere. `count_ready`: returns the bytes of a file that can be read now.
        """
        self.count_ready = count_ready
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
        found: dict[str, list[Entry]] = {}
        for e in self.entries:
            if e.kind == "f":
                found.setdefault(e.content, []).append(e)
        return found

    def get_path(self, e: Entry) -> str:
        top, _, rest = e.path.partition("/")
        if top in self._extras:
            return os.path.join(self._extras[top], rest)
        return os.path.join(self._folder, e.path)

    def open(self, e: Entry) -> int:
        """Open a file, unchanged since it was listed. Raises OSError."""
        if self._contents:
            ready = self.count_ready(e)
            with contextlib.suppress(FileNotFoundError):  # it may be in its place
                fd = os.open(os.path.join(self._contents, e.content), READ)
                if os.fstat(fd).st_size >= ready:
                    return fd
                os.close(fd)  # a part, left of a transfer that was cut long ago
        path = self.get_path(e)
        try:
            fd = os.open(path, READ)
        except FileNotFoundError:
            equal = map(self.get_path, self._whole.by_content.get(e.content, ()))
            paths = [path for path in equal if os.path.lexists(path)]
            if not self._contents or not paths:
                raise
            return os.open(paths[0], READ)
        st = os.fstat(fd)
        if (st.st_size, st.st_mtime_ns) != (e.size, e.mtime_ns):
            os.close(fd)
            raise _make_change_error(path)
        return fd


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
        self._queue: deque[Want] = deque()  # the first one from the byte that comes next
        self._fd = -1  # of the first one
        self._credit = WINDOW_BYTES
        self._reading = False
        self._dry = False  # nothing is left to read until the source grows
        self.total_bytes = 0  # of files
        if offer:
            line.send({"type": "dispatch", "digest": source.digest, "bytes": len(source.manifest)})

    def obey(self, m: messages.LacksMsg | messages.ReceivedMsg, refuse: Callable[[Exception], None]) -> None:
        """Send what a node lacks, or more; call `refuse` if a request is invalid."""
        if m["type"] == "lacks":
            self.read_request(m, self.send, refuse)
        elif m["type"] == "received":
            self.grant(m)

    def read_request(
        self, m: messages.LacksMsg, then: Callable[[list[Want]], None], refuse: Callable[[Exception], None]
    ) -> None:
        """Call `then` with the wanted files, now, or later from the loop if the manifest must be decoded."""

        def read(_entries: object = None) -> None:
            try:
                then([Want(THE_MANIFEST, 0)] if m["manifest"] else self._list_wants(m))
            except NONSENSE as e:
                refuse(e)

        if self._source.is_read or not m.get("files"):
            read()
        else:
            self._aside.do(lambda: self._source.entries, read, self._fail)

    def _list_wants(self, m: messages.LacksMsg) -> list[Want]:
        if not m["files"]:
            return []
        entries, offsets = self._source.entries, m["offsets"]
        wants: list[Want] = []
        for file in decode_numbers(m["files"], len(entries)):
            offset = int(offsets.get(str(file), 0))
            if not 0 <= offset < entries[file].size:  # a folder, a link or an empty file has no bytes
                raise ValueError(f"file {file} from {offset} on")
            wants.append(Want(file, offset))
        return wants

    def send(self, wants: Sequence[Want]) -> None:
        """Queue files in this order. Raises ValueError for more than there are."""
        if len(self._queue) + len(wants) > 1 + (len(self._source.entries) if self._source.is_read else 0):
            raise ValueError("files that it has asked for already")
        self._queue.extend(wants)
        self.total_bytes += self.count_bytes(wants)
        self._read()

    def count_bytes(self, wants: Sequence[Want]) -> int:
        return sum(self._source.entries[i].size - offset for i, offset in wants if i != THE_MANIFEST)

    def grant(self, m: messages.ReceivedMsg) -> None:
        self._credit = min(WINDOW_BYTES, self._credit + int(m["bytes"]))
        self._read()

    def go_on(self) -> None:
        """Read on: the source has grown."""
        self._dry = False
        self._read()

    def _read(self) -> None:
        """Let the thread read the next piece, if there is room for it."""
        if self._reading or self._credit < MAX_DATA_BYTES or not self._queue or self._dry:
            return
        self._reading = True
        self._dry = True  # unless it finds something, or the source grows meanwhile

        def take(piece: Data | None) -> None:
            self._reading = False
            if piece:
                self._dry = False
                self._credit -= len(piece.data)
                self._line.send_data(piece)
            self._read()

        self._aside.do(self._read_piece, take, self._fail)

    def _read_piece(self) -> Data | None:
        """Read as much as a frame holds, of one file or of several in sequence; None: nothing for now."""
        parts, room = list[tuple[Want, bytes]](), MAX_DATA_BYTES
        while room and self._queue:
            want = self._queue[0]
            size, ready = self._measure(want.file)
            if ready <= want.offset:
                break
            data = self._read_bytes(want, min(room, ready - want.offset))
            if not data:
                raise _make_change_error(self._source.get_path(self._source.entries[want.file]))
            parts.append((want, data))
            room -= len(data)
            self._queue[0] = Want(want.file, want.offset + len(data))
            if want.offset + len(data) == size:
                self._queue.popleft()
                self._close_file()
        return Data(*parts[0][0], b"".join(data for _, data in parts)) if parts else None

    def _measure(self, file: int) -> tuple[int, int]:
        """Return the bytes of a file, and those that can be read now."""
        if file == THE_MANIFEST:
            return len(self._source.manifest), len(self._source.manifest)
        e = self._source.entries[file]
        return e.size, self._source.count_ready(e)

    def _read_bytes(self, want: Want, count: int) -> bytes:
        if want.file == THE_MANIFEST:
            return self._source.manifest[want.offset : want.offset + count]
        if self._fd < 0:
            self._fd = self._source.open(self._source.entries[want.file])
        return os.pread(self._fd, count, want.offset)

    def close(self) -> None:
        """Send nothing more and close the open file; called in the thread."""
        self._queue.clear()
        self._close_file()

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def encode_numbers(numbers: Sequence[int]) -> str:
    """Encode numbers as bits: short enough for a message, with any manifest."""
    bits = bytearray(max(numbers, default=-1) // 8 + 1)
    for number in numbers:
        bits[number // 8] |= 1 << number % 8
    return base64.b64encode(bits).decode()


def decode_numbers(text: str, count: int) -> list[int]:
    """Return the encoded numbers, in order. Raises ValueError unless all are below `count`."""
    bits = base64.b64decode(text, validate=True)
    if int.from_bytes(bits[-1:], "little").bit_length() + 8 * (len(bits) - 1) > count:
        raise ValueError(f"more files than the {count} of the package")
    return [8 * i + k for i, byte in enumerate(bits) if byte for k in range(8) if byte >> k & 1]


def _make_change_error(path: str) -> OSError:
    return OSError(0, "was changed while it was sent: start again, or leave it out (.pslaunchignore)", path)
