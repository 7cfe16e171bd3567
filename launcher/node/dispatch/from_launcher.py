"""The package of a job with its head on node 0: received over the launcher's line, then passed on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .. import codes, job
from ..codes import Refusal
from ..line.wire import Data
from ..loop import Loop
from .into_place import find_staged, read_entries
from .receiver import Receiver
from .sender import Source

if TYPE_CHECKING:
    from ..messages import DispatchMsg, NoPackageMsg, OfPackage, WantsMsg
    from .dispatch import Fail, Parts, Tell, Then


class FromLauncher:
    """Supply of the package: the launcher fills node 0, whose workspace then fills the other nodes."""

    filled = frozenset({0})

    def __init__(
        self, loop: Loop, say: Callable[[OfPackage | WantsMsg], None], placed: Callable[[], job.Placed]
    ) -> None:
        """`say` sends to the launcher; `placed` returns the job, with nodes as reported by their agents."""
        self._loop, self._say, self._placed = loop, say, placed
        self._receiver: Receiver | None = None
        self._fail: Callable[[Exception], None] = lambda _why: None

    def get(self, then: Then, fail: Fail, mine: Parts | None, tell: Tell) -> None:
        first = self._placed().nodes[0]

        def list_workspace() -> Source:
            entries = receiver.entries
            if not entries and first.dispatched:  # the fast path found everything here
                entries = read_entries(first.workspace)
            source = Source(first.workspace, entries, find_staged(first.workspace))
            if source.digest != receiver.digest:
                raise Refusal(codes.IO, f"{first.workspace} was changed while it was read: start again")
            return source

        def finish(failure: Exception | None) -> None:
            if failure:
                fail(failure)
            else:
                self._loop.do_aside(list_workspace, then, fail)

        receiver = Receiver(
            self._loop,
            first.workspace,
            say=lambda m: self._say(m),
            end=finish,
            tell=tell,
            in_place=not first.dispatched,
            mine=(lambda entries: mine(entries)(first.id)) if mine else None,
        )
        self._receiver, self._fail = receiver, fail
        self._say({"type": "wants"})

    def ask_again(self, say: Callable[[OfPackage | WantsMsg], None]) -> None:
        """Ask over a launcher's new line for all that has not arrived over an earlier one."""
        self._say = say
        if self._receiver and not self._receiver.closed:
            self._receiver.start_again()
            say({"type": "wants"})

    def take_answer(self, m: DispatchMsg | NoPackageMsg) -> None:
        if not self._receiver:
            return
        if m["type"] == "dispatch":
            self._receiver.order_dispatch(m)
        else:
            self._fail(Refusal(int(m["code"]), str(m["text"])))

    def take(self, piece: Data) -> None:
        if self._receiver:
            self._receiver.take(piece)

    def close(self) -> None:
        if self._receiver:
            self._receiver.close()
