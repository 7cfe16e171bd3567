"""The output of a job's processes as its head tells it: in lines, limited once the job ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from .. import logs
from ..line.wire import Output, WireError

DRAIN_BYTES = 8192  # of output between two drains: fewer events than are kept
SHOW_LINES = 1000  # of each process once the job ends, so that control does not wait behind a flood
SHOW_LINES_OF_FAILED = 25_000  # more, of the process that failed first: these were written before


class OutputOfAll:
    """Output of all processes and of the nodes' setup, by number: in lines, limited once the job ends."""

    def __init__(self, node_of: Mapping[str, int], clock: Callable[[], float]) -> None:
        self._node_of, self._names = node_of, list(node_of)
        self._streams = {name: logs.Stream(clock) for name in node_of}
        self._lines_left = dict.fromkeys(node_of, SHOW_LINES)  # of each process once the ending began
        self._lines_left_of_failed = SHOW_LINES_OF_FAILED

    def find_key(self, node: int, piece: Output) -> str:
        """Return the process of a piece, "" for an unknown one. Raises WireError for one of another node."""
        key = self._names[piece.process] if piece.process < len(self._names) else ""
        if key and self._node_of[key] != node:
            raise WireError(f"output of {key}, but {key} belongs to another node")
        return key

    def split(
        self, key: str, piece: Output, *, is_limited: bool, has_exited: bool
    ) -> Iterator[list[logs.LogLine | int]]:
        """Yield lines, and numbers of missing bytes, after each DRAIN_BYTES."""
        stream = self._streams[key]
        for at in range(0, len(piece.data), DRAIN_BYTES):
            if self._lines_left[key] <= 0:  # the log has the others; a gap at its exit reports them
                if has_exited:
                    yield stream.end(piece.offset + len(piece.data))
                return
            found = stream.feed(piece.offset + at, piece.data[at : at + DRAIN_BYTES])
            if is_limited:
                self._lines_left[key] -= len(found)
            yield found

    def end(self, key: str, written: int) -> list[logs.LogLine | int]:
        """Return the rest of the output of a process that has written so many bytes."""
        return self._streams[key].end(written)

    def show_more(self, key: str) -> None:
        self._lines_left[key] += self._lines_left_of_failed
        self._lines_left_of_failed = 0
