"""Receiver of a package over a line: requests lacking files, grants written bytes, reports the end.

Nothing here decides for the job; `staging.py` does the slow work, in a thread.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from .. import codes
from ..codes import Refusal
from ..line.wire import Data
from ..loop import Aside, Loop
from .into_place import STAGED
from .manifest import MAX_MANIFEST_BYTES, Entry, ManifestError, Want, compute_digest, decode
from .progress import Progress
from .sender import READ, THE_MANIFEST, Source
from .staging import PART, Staging
from .window import Window

if TYPE_CHECKING:
    from ..messages import DispatchMsg, FillingMsg, LacksMsg, ReceivedMsg

    Say = Callable[[LacksMsg | ReceivedMsg], None]

T = TypeVar("T")
U = TypeVar("U")
STARVED_S = 0.02  # a node that waits so long is far away: allow more in flight


class Arriving(Source):
    """A package in transfer: the part of each content that has arrived can be read."""

    def __init__(self, workspace: str, incoming: Staging) -> None:
        super().__init__(workspace, incoming.listed, os.path.join(workspace, ".pslaunch", "dispatch", STAGED))
        self._incoming = incoming

    def open(self, e: Entry) -> int:
        """Open a file that has arrived, in whole or in part. Raises OSError."""
        for name in (e.content + PART, e.content):  # then it moves into place
            with contextlib.suppress(FileNotFoundError):
                return os.open(os.path.join(self._contents, name), READ)
        return super().open(e)

    def count_ready_bytes(self, e: Entry) -> int:
        return self._incoming.count_ready_bytes(e)


class Receiver:
    """Receiver of one package: orders and pieces come in, `say` sends answers, `end` is called at the end."""

    def __init__(
        self,
        loop: Loop,
        workspace: str,
        *,
        say: Say,
        end: Callable[[Exception | None], None],
        tell: Callable[[FillingMsg], None],
        in_place: bool = False,
        mine: Callable[[Sequence[Entry]], list[Entry]] | None = None,
    ) -> None:
        """`tell` gets the progress at intervals, if anything is lacking.

        `in_place`: the workspace is the folder itself; only the manifest is requested.

        `mine`: selects this workspace's entries, if other nodes are filled from here too.
        """
        self._in_place, self._mine = in_place, mine
        self._aside, self._workspace, self._say, self._report_end = Aside(loop), workspace, say, end
        self._tell_sender = say  # to the current sender
        self._leave_sender: Callable[[], None] | None = None  # for the offerer, after a wrong content
        self._loop, self._progress = loop, Progress(loop.now, tell)
        self._report_growth: Callable[[], None] = lambda: None
        self._incoming: Staging | None = None
        self.digest, self._size = "", 0  # of the manifest
        self._manifest: bytearray | None = None  # as it comes
        self._foreseen = "", list[Want]()  # digest of the last package, and its lacking files
        self._pieces: list[Data] = []
        self._window, self._idle_since_s = Window(), loop.now()
        self._writing = False
        self._tries = 0  # lines over which the package was offered and that were lost
        self.closed = False
        self.entries: list[Entry] = []  # the received package; empty if it was here already

    def expect(self) -> None:
        """Compare the workspace with the last package while the next, often the same, is being listed."""

        def compare() -> None:
            self._incoming = Staging(self._workspace, self._mine)
            if known := self._incoming.glance():
                self._foreseen = known, []
            elif own := self._incoming.read_own_manifest():
                self._foreseen = compute_digest(own), self._incoming.list_lacking(own)

        self._aside.do(compare)  # a failure: take_offer meets the same failure again

    def start_again(self) -> None:
        """Forget the offer, whose line was lost; the next one supplies the rest."""
        self._tries += 1
        self._manifest, self._foreseen = None, ("", [])
        self._pieces, self._writing, self._window = [], False, Window()

    def take_offer(self, m: DispatchMsg) -> None:
        """Take the offer of a package: request an unknown manifest, else the lacking files."""
        self.digest, self._size = str(m["digest"]), int(m["bytes"])
        if not 0 < self._size <= MAX_MANIFEST_BYTES:
            self._end(ManifestError(f"a manifest of {self._size} bytes"))
            return
        if self._in_place:
            self._want_manifest()
            return

        def read_own() -> bytes:
            if self._incoming is None:
                self._incoming = Staging(self._workspace, self._mine)
            return b"" if self._foreseen[0] == self.digest else self._incoming.read_own_manifest()

        def ask(own: bytes) -> None:
            if self._foreseen[0] == self.digest:
                self._begin_taking(self._foreseen[1])
            elif compute_digest(own) == self.digest:
                self._compare_workspace(own)
            else:
                self._want_manifest()

        self._do(read_own, ask)

    def _want_manifest(self) -> None:
        self._manifest = bytearray()
        self._say({"type": "lacks", "manifest": True, "files": [], "offsets": {}, "alone": True})

    def _compare_workspace(self, manifest: bytes) -> None:
        incoming = self._incoming
        assert incoming is not None
        self._do(lambda: incoming.list_lacking(manifest), self._begin_taking)

    def _begin_taking(self, wants: Sequence[Want]) -> None:
        self._ask(wants)
        if self._incoming and wants:
            self._progress.files = len(wants)
            self._progress.bytes = self._progress.received + self._incoming.count_missing_bytes()
            self._progress.report("sending")
        self._place_if_whole()

    def ask_of(self, say: Say | None, *, alone: bool, leave: Callable[[], None] | None = None) -> None:
        """Request the rest from another node, or (None) from the offerer; `alone`: no other is left.

        `leave` is called if the other node sends a wrong content; it asks the offerer.
        """
        incoming = self._incoming
        if self.closed or incoming is None:
            return
        self._window.drop(sum(len(p.data) for p in self._pieces))
        self._window.open_anew()
        self._pieces = []
        self._tell_sender, self._leave_sender = say or self._say, leave
        self._do(incoming.list_remaining, lambda rest: self._ask(rest, alone=alone))

    def _ask(self, wants: Sequence[Want], *, alone: bool = False) -> None:
        self._idle_since_s = self._loop.now()
        files = encode_runs(wants, self._incoming.listed if self._incoming else [])
        offsets = {str(want.file): want.offset for want in wants if want.offset}
        self._tell_sender(
            {"type": "lacks", "manifest": False, "files": files, "offsets": offsets, "alone": alone}
        )

    def share(self, grown: Callable[[], None]) -> Source:
        """Return the package as a source for other nodes; `grown` is called whenever more of it is here."""
        if self._incoming is None or not self._incoming.listed:
            raise ValueError("nothing to pass on")
        self._report_growth = grown
        return Arriving(self._workspace, self._incoming)

    def take(self, piece: Data) -> None:
        """Take a piece of the manifest or of a file."""
        if self.closed or (self._incoming is None and not self._in_place):
            return
        if not self._window.take(len(piece.data)):
            self._end(ManifestError("received more bytes than granted"))
        elif piece.file == THE_MANIFEST:
            self._take_manifest(piece)
        elif self._in_place:
            self._end(ManifestError("a file that was not requested"))
        else:
            self._pieces.append(piece)
            if not self._writing and self._loop.now() - self._idle_since_s > STARVED_S:
                self._tell_sender({"type": "received", "bytes": self._window.widen()})
            self._write()

    def _take_manifest(self, piece: Data) -> None:
        data = self._manifest
        if data is None or piece.offset != len(data) or len(data) + len(piece.data) > self._size:
            self._end(ManifestError("a piece of a manifest that does not fit"))
            return
        data += piece.data
        self._grant(len(piece.data))
        if len(data) == self._size:
            self._manifest = None
            if compute_digest(bytes(data)) != self.digest:
                self._end(ManifestError("the manifest is not what was announced"))
            else:
                self._use_manifest(bytes(data))

    def _use_manifest(self, manifest: bytes) -> None:
        if not self._in_place:
            self._compare_workspace(manifest)
            return
        try:
            self.entries = decode(manifest)
            self._end(None)
        except ManifestError as e:
            self._end(e)

    def _grant(self, taken: int) -> None:
        if granted := self._window.free(taken):
            self._tell_sender({"type": "received", "bytes": granted})

    def _write(self) -> None:
        if self._writing or not self._pieces:
            return
        self._writing = True
        pieces, self._pieces = self._pieces, []
        incoming, sender = self._incoming, self._tell_sender
        assert incoming is not None

        def go_on(again: list[Want]) -> None:
            self._writing, self._idle_since_s = False, self._loop.now()
            size = sum(len(p.data) for p in pieces)
            self._progress.received += size
            self._report_growth()
            replaced = sender is not self._tell_sender  # the rest was requested from another
            if replaced:
                self._window.drop(size)
            else:
                self._grant(size)
            if again:
                if self._leave_sender and not replaced:
                    self._leave_sender()
                elif not replaced:
                    self._ask(again)
                self._progress.bytes = self._progress.received + incoming.count_missing_bytes()
            self._progress.report("sending")
            self._write()
            self._place_if_whole()

        self._do(lambda: incoming.take(pieces), go_on)

    def _place_if_whole(self) -> None:
        incoming = self._incoming
        assert incoming is not None
        if incoming.is_whole and not self._writing:
            self.entries = incoming.listed
            self._progress.report("placing")
            self._do(incoming.place, lambda _: self._end(None))

    def _do(self, work: Callable[[], T], then: Callable[[T], None]) -> None:
        number = self._tries

        def unless_over(report: Callable[[U], None]) -> Callable[[U], None]:
            return lambda result: None if self.closed or number < self._tries else report(result)

        self._aside.do(work, unless_over(then), unless_over(self._end))

    def _end(self, failed: Exception | None) -> None:
        if failed:
            self.close()
        else:
            if self._incoming:  # for the next dispatch; this one need not wait
                self._aside.do(self._incoming.remember)
            self._leave()
            self._report_growth()
            self._progress.report("done")
        if isinstance(failed, ManifestError):
            failed = Refusal(codes.IO, f"the package can't be taken: {failed}")
        self._report_end(failed)

    def close(self) -> None:
        """Take nothing more; the thread's work ends soon. May be called twice."""
        if self.closed:
            return
        if self._incoming:
            self._incoming.give_up()
        self._leave()

    def _leave(self) -> None:
        self.closed = True
        # Decided in the thread, which may be about to open it.
        self._aside.do(lambda: self._incoming.close() if self._incoming else None)
        self._aside.close()


def encode_runs(wants: Sequence[Want], listed: Sequence[Entry]) -> list[int]:
    """Encode files as alternating counts of skipped and wanted ones.

    Short enough that no manifest of MAX_BYTES, with any pattern, exceeds a message.
    """
    runs: list[int] = []
    end = 0
    for file, _ in wants:
        # Entries without bytes are no gap: else each folder would end a run.
        if runs and end <= file and not any(listed[i].size for i in range(end, file)):
            runs[-1] += file + 1 - end
        else:
            runs += file - end, 1
        end = file + 1
    return runs
