"""Receiver of a package over a line: requests lacking files, grants written bytes, reports the end.

Nothing here decides for the job; `staging.py` does the slow work, in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from .. import codes
from ..codes import Refusal
from ..line.wire import Data
from ..loop import Aside, Loop
from .into_place import find_staged, read_entries
from .manifest import MAX_MANIFEST_BYTES, Entry, ManifestError, Want, compute_digest, decode
from .sender import THE_MANIFEST, WINDOW_BYTES, Source, encode_numbers
from .staging import Staging

if TYPE_CHECKING:
    from ..messages import DispatchMsg, FillingMsg, LacksMsg, ReceivedMsg

    Say = Callable[[LacksMsg | ReceivedMsg], None]

T = TypeVar("T")
U = TypeVar("U")
GRANT_BYTES = 512 * 1024  # per grant: a message for fewer costs as much
TELL_EVERY_S = 0.5


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

        `in_place`: the workspace is the folder itself; only the manifest is requested. `mine`: selects this
        workspace's entries, if other nodes are filled from here too.
        """
        self._in_place, self._mine = in_place, mine
        self._aside, self._workspace, self._say, self._report_end = Aside(loop), workspace, say, end
        self._tell_sender = say  # to the current sender
        self._leave_sender: Callable[[], None] | None = None  # for the offerer, after a wrong content
        self._loop, self._tell, self._tell_due_s = loop, tell, 0.0
        self._progress: FillingMsg = {"type": "filling", "state": "", "files": 0, "bytes": 0, "received": 0}
        self._incoming: Staging | None = None
        self.digest, self._size = "", 0  # of the manifest
        self._manifest: bytearray | None = None  # as it comes
        self._pieces: list[Data] = []
        self._held_bytes = self._written_bytes = 0  # in our memory; written, but not granted anew yet
        self._writing = False
        self._tries = 0  # lines over which the package was offered and that were lost
        self.closed = False
        self.entries: list[Entry] = []  # the received package; empty if it was here already

    def start_again(self) -> None:
        """Forget the offer, whose line was lost; the next one supplies the rest."""
        self._tries += 1
        self._manifest, self._pieces, self._writing = None, [], False
        self._held_bytes = self._written_bytes = 0

    def order_dispatch(self, m: DispatchMsg) -> None:
        """Take the offer of a package: request an unknown manifest, else the lacking files."""
        if self.closed:
            return
        self.digest, self._size = str(m["digest"]), int(m["bytes"])
        if not 0 < self._size <= MAX_MANIFEST_BYTES:
            self._end(ManifestError(f"a manifest of {self._size} bytes"))
            return
        if self._in_place:
            self._want_manifest()
            return

        def compare() -> Sequence[Want] | None:
            if self._incoming is None:
                self._incoming = Staging(self._workspace, self._mine)
            return self._incoming.compare(self.digest)

        def ask(wants: Sequence[Want] | None) -> None:
            if wants is None:
                self._want_manifest()
            else:
                self._begin_taking(wants)

        self._do(compare, ask)

    def _want_manifest(self) -> None:
        self._manifest = bytearray()
        self._say({"type": "lacks", "manifest": True, "files": "", "offsets": {}, "alone": True})

    def _begin_taking(self, wants: Sequence[Want]) -> None:
        self._ask(wants)
        if self._incoming and wants:
            self._progress["files"] = len(wants)
            self._progress["bytes"] = self._progress["received"] + self._incoming.count_missing_bytes()
            self._report("sending")
        self._place_if_whole()

    def ask_of(self, say: Say | None, leave: Callable[[], None] | None = None) -> None:
        """Request the rest from another node, or (None) from the offerer, if no other is left.

        `leave` is called if the other node sends a wrong content; it asks the offerer.
        """
        incoming = self._incoming
        if self.closed or incoming is None:
            return
        self._held_bytes -= sum(len(p.data) for p in self._pieces)
        self._written_bytes = 0
        self._pieces = []
        self._tell_sender, self._leave_sender = say or self._say, leave
        self._do(incoming.list_remaining, lambda rest: self._ask(rest, alone=say is None))

    def _ask(self, wants: Sequence[Want], *, alone: bool = False) -> None:
        files = encode_numbers([want.file for want in wants])
        offsets = {str(want.file): want.offset for want in wants if want.offset}
        self._tell_sender(
            {"type": "lacks", "manifest": False, "files": files, "offsets": offsets, "alone": alone}
        )

    def share(self) -> Source:
        """Return the package as a source for other nodes, of which more may come here later."""
        incoming = self._incoming
        if self.closed:
            return Source(self._workspace, self.entries or read_entries(self._workspace))
        if incoming is None or not incoming.listed:
            raise ValueError("nothing to pass on")
        staged = find_staged(self._workspace)
        return Source(self._workspace, incoming.listed, staged, count_ready=incoming.count_ready_bytes)

    def take(self, piece: Data) -> None:
        if self.closed or (self._incoming is None and not self._in_place):
            return
        self._held_bytes += len(piece.data)
        if self._held_bytes > WINDOW_BYTES:
            self._end(ManifestError("received more bytes than granted"))
        elif piece.file == THE_MANIFEST:
            self._take_manifest(piece)
        elif self._in_place:
            self._end(ManifestError("a file that was not requested"))
        else:
            self._pieces.append(piece)
            self._write()

    def _take_manifest(self, piece: Data) -> None:
        data = self._manifest
        if data is None or piece.offset != len(data) or len(data) + len(piece.data) > self._size:
            self._end(ManifestError("a piece of a manifest that does not fit"))
            return
        data += piece.data
        self._grant(len(piece.data))
        if len(data) < self._size:
            return
        self._manifest, manifest = None, bytes(data)
        if compute_digest(manifest) != self.digest:
            self._end(ManifestError("the manifest is not what was announced"))
        elif incoming := self._incoming:
            self._do(lambda: incoming.list_lacking(manifest), self._begin_taking)
        else:
            try:
                self.entries = decode(manifest)
                self._end(None)
            except ManifestError as e:
                self._end(e)

    def _grant(self, taken: int) -> None:
        self._held_bytes -= taken
        self._written_bytes += taken
        if self._written_bytes >= GRANT_BYTES:
            self._tell_sender({"type": "received", "bytes": self._written_bytes})
            self._written_bytes = 0

    def _write(self) -> None:
        if self._writing or not self._pieces:
            return
        self._writing = True
        pieces, self._pieces = self._pieces, []
        incoming, sender = self._incoming, self._tell_sender
        assert incoming is not None

        def go_on(again: list[Want]) -> None:
            self._writing = False
            size = sum(len(p.data) for p in pieces)
            self._progress["received"] += size
            self._note_growth()
            if sender is not self._tell_sender:  # the rest was requested from another
                self._held_bytes -= size
            else:
                self._grant(size)
                if again and self._leave_sender:
                    self._leave_sender()
                elif again:
                    self._ask(again)
            if again:
                self._progress["bytes"] = self._progress["received"] + incoming.count_missing_bytes()
            self._report("sending")
            self._write()
            self._place_if_whole()

        self._do(lambda: incoming.take(pieces), go_on)

    def _note_growth(self) -> None:
        """Do nothing: more of the package is here, which matters to a source alone."""

    def _place_if_whole(self) -> None:
        incoming = self._incoming
        assert incoming is not None
        if incoming.is_whole and not self._writing:
            self.entries = incoming.listed
            self._report("placing")
            self._do(incoming.place, lambda _: self._end(None))

    def _report(self, state: str) -> None:
        """Report a new state at once, else now and then, if anything was lacking."""
        is_due = state != self._progress["state"] or self._loop.now() >= self._tell_due_s
        if self._progress["files"] and is_due:
            self._progress["state"], self._tell_due_s = state, self._loop.now() + TELL_EVERY_S
            self._tell(self._progress.copy())

    def _do(self, work: Callable[[], T], then: Callable[[T], None]) -> None:
        number = self._tries

        def unless_over(report: Callable[[U], None]) -> Callable[[U], None]:
            return lambda result: None if self.closed or number < self._tries else report(result)

        self._aside.do(work, unless_over(then), unless_over(self._end))

    def _end(self, failed: Exception | None) -> None:
        if failed:
            Receiver.close(self)
        else:
            if self._incoming:  # for the next dispatch; this one need not wait
                self._aside.do(self._incoming.remember)
            self._leave()
            self._note_growth()
            self._report("done")
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

        def drop() -> None:  # in the thread, which may be about to open it
            if self._incoming:
                self._incoming.close()
            self._incoming = None

        self._aside.do(drop)
        self._aside.close()
