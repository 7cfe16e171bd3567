"""Output of programs: lines from bytes in any pieces, safe to show; the last lines of a file."""

from __future__ import annotations

import codecs
import re
from typing import Any, Callable, NamedTuple

MAX_LINE_CHARS = 8192  # a longer line comes in pieces
OVERWRITTEN_EVERY_S = 5.0  # period for states of a progress bar that redraws itself by \r
TAIL_LINES = 20
ADVICE_MARK = "what to do: "  # begins a last line with the remedy for the line before it
_TAIL_BYTES = 8192
EVENTS_LOG = "events.jsonl"  # of the whole job, on the machine of its head
# Our own files beside a node's logs: with --trace, and words that the line to the head no longer carries.
NODE_TRACE, HEAD_TRACE, GUARDS_LOG = "trace.jsonl", "head-trace.jsonl", "guards.log"
OWN_LOGS = EVENTS_LOG, NODE_TRACE, HEAD_TRACE, GUARDS_LOG

# Colours, cursor movements, titles: whole escape sequences, then the remaining control characters, and those
# that turn the direction of the text after them, which would show a message in another order than it has.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_BREAKS = re.compile(r"[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+")
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def clean(text: str, encoding: str = "utf-8") -> str:
    """Return a line without anything that a terminal would obey or `encoding` lacks.

    Applied to everything from elsewhere before it is shown: output, names, messages of hosts.
    """
    if not (text.isascii() and text.isprintable()):
        text = _CONTROLS.sub("", _BREAKS.sub(" ", _ESCAPES.sub("", text)))
        text = text.encode(encoding, "backslashreplace").decode(encoding)
    return text


def clean_lines(text: str, encoding: str = "utf-8") -> str:
    """Return a text of several lines, each cleaned."""
    return "\n".join(clean(line, encoding) for line in text.split("\n"))


def clean_all(value: Any) -> Any:
    """Return data with all its texts cleaned, and cut to a line that can be shown."""
    if isinstance(value, str):
        return clean(value)[:MAX_LINE_CHARS]
    if isinstance(value, dict):
        return {clean_all(name): clean_all(v) for name, v in value.items()}
    return [clean_all(v) for v in value] if isinstance(value, (list, tuple)) else value


class LogLine(NamedTuple):
    """A line, or with `more` a piece of a line that continues."""

    text: str
    more: bool = False


class LineSplitter:
    """Lines from bytes in any pieces, also cut within a character.

    Text overwritten after a lone carriage return is left out, except one state every few seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace")
        self._clock = clock
        self._rest = ""
        self._goes_on = False  # a piece of the unfinished line was returned
        self._last_overwritten_s = float("-inf")

    def feed(self, data: bytes, *, final: bool = False) -> list[LogLine]:
        """Return the lines complete by now; with `final` also the rest."""
        *lines, rest = (self._rest + self._decode.decode(data, final)).split("\n")
        found: list[LogLine] = []
        if final and rest:
            lines, rest = [*lines, rest], ""
        for line in lines:
            self._emit(found, self._remove_overwritten(found, line.rstrip("\r")))
        self._rest = self._cut(found, self._remove_overwritten(found, rest))
        if found:
            self._goes_on = found[-1].more
        return found

    def drop_line(self) -> list[LogLine]:
        """Forget the unfinished line; end it if a piece of it was returned."""
        found = self.feed(b"", final=True) if self._goes_on else []
        self._decode.reset()
        self._rest = ""
        return found

    def _remove_overwritten(self, found: list[LogLine], line: str) -> str:
        """Return `line` without text overwritten after inner carriage returns; the last may begin \\r\\n."""
        at = line.rfind("\r", 0, len(line) - 1)
        if at < 0:
            return line
        state = line[:at].rstrip("\r").rpartition("\r")[2]
        if state and self._clock() - self._last_overwritten_s >= OVERWRITTEN_EVERY_S:
            self._last_overwritten_s = self._clock()
            self._emit(found, state)
        return line[at + 1 :]

    def _emit(self, found: list[LogLine], line: str) -> None:
        found.append(LogLine(clean(self._cut(found, line))))

    @staticmethod
    def _cut(found: list[LogLine], line: str) -> str:
        """Cut pieces off a long line; return the rest."""
        while len(line) > MAX_LINE_CHARS:
            found.append(LogLine(clean(line[:MAX_LINE_CHARS]), more=True))
            line = line[MAX_LINE_CHARS:]
        return line


class Stream:
    """The output of one process as it arrives: its lines, and the number of bytes missing between them.

    The unfinished line before a gap and the rest of a line after it belong to the gap.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._splitter = LineSplitter(clock)
        self._next = self._line = 0  # offsets: of the next byte, of the unfinished line
        self._missing_from: int | None = None

    def feed(self, offset: int, data: bytes) -> list[LogLine | int]:
        """Return the lines complete by now, and the number of missing bytes at a gap."""
        found = self._note_missing(offset)
        self._next = offset + len(data)
        if self._missing_from is not None:
            end = re.search(rb"\n|\r(?=[^\n])", data)
            if end is None:
                return found
            self._line = offset + end.end()
            found.append(self._line - self._missing_from)
            self._missing_from, data = None, data[end.end() :]
        if ends := max(data.rfind(b"\n"), data.rfind(b"\r")) + 1:
            self._line = self._next - len(data) + ends
        return [*found, *self._splitter.feed(data)]

    def end(self, offset: int) -> list[LogLine | int]:
        """Return the rest of the output, which ends or is skipped up to this offset."""
        found = self._note_missing(offset)
        self._next = self._line = offset
        if self._missing_from is not None:
            found.append(offset - self._missing_from)
            self._missing_from = None
        return [*found, *self._splitter.feed(b"", final=True)]

    def _note_missing(self, offset: int) -> list[LogLine | int]:
        if offset <= self._next or self._missing_from is not None:
            return []
        ended = self._splitter.drop_line()
        self._missing_from = self._next if ended else self._line
        return [*ended]


def read_tail(path: str, begin: int = 0) -> tuple[str, ...]:
    """Return the last lines of a file from an offset on, () where it can't be read."""
    try:
        with open(path, "rb") as f:
            size = f.seek(0, 2) - begin
            f.seek(begin + max(0, size - _TAIL_BYTES))
            data = f.read(_TAIL_BYTES)
    except OSError:
        return ()
    text = data.decode("utf-8", "replace")
    found = [clean(line.rpartition("\r")[2]) for line in text.replace("\r\n", "\n").split("\n")]
    if size > _TAIL_BYTES and len(found) > 1:
        found = found[1:]  # the first line is cut
    while found and not found[-1]:
        found.pop()
    return tuple(line[:1000] for line in found[-TAIL_LINES:])
