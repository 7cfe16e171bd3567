"""An agent's part of a dispatch: fills its workspace from the head or another node, serves others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

from .receiver import Receiver

if TYPE_CHECKING:
    from ..line.trace import Trace
    from ..line.wire import Data
    from ..loop import Loop
    from ..messages import DispatchedMsg, DispatchMsg, FetchMsg, OfPackage, ServeMsg, ServingMsg
    from .manifest import Entry
    from .peers import Fetching, Serving


class Filling:
    """Dispatch into one workspace.

    `answer` runs work that answers the head; it reports a failure, as `refuse` does.
    """

    def __init__(
        self,
        loop: Loop,
        workspace: str,
        secret: bytes,
        *,
        say: Callable[[OfPackage | DispatchedMsg | ServingMsg], None],
        answer: Callable[[Callable[[], None]], None],
        refuse: Callable[[Exception], None],
        trace: Trace | None = None,
    ) -> None:
        self._loop, self._workspace, self._secret = loop, workspace, secret
        self._say, self._answer, self._refuse = say, answer, refuse
        self._trace = trace and trace.make_note("another node")
        self._entries: list[Entry] = []  # the package, once it has arrived
        self._closed = False
        self._serving: Serving | None = None
        self._fetching: Fetching | None = None
        self._receiver: Receiver | None = Receiver(loop, workspace, say=say, end=self._finish, tell=say)
        self._receiver.expect()

    def order_dispatch(self, m: DispatchMsg) -> None:
        if self._receiver:
            self._receiver.take_offer(m)

    def take(self, piece: Data) -> None:
        if self._receiver:
            self._receiver.take(piece)

    def _finish(self, failed: Exception | None) -> None:
        if self._fetching:
            self._fetching.close()
        if self._receiver:
            self._entries = self._receiver.entries
        self._receiver = None
        if failed:
            self._refuse(failed)
        else:
            self._say({"type": "dispatched"})

    def order_serve(self, m: ServeMsg) -> None:
        """Serve the package to other nodes, also during its own transfer."""
        from .into_place import read_entries
        from .peers import Serving
        from .sender import Source

        def begin(source: Source) -> None:
            if not self._closed:
                self._serving = Serving(self._loop, m["addr"], self._secret, source, self._trace)
                self._say({"type": "serving", "port": self._serving.port})

        def make_source() -> Source:
            if receiver:
                return receiver.share(self._pass_on)
            return Source(self._workspace, self._entries or read_entries(self._workspace))

        receiver = self._receiver
        self._loop.do_aside(make_source, lambda source: self._answer(lambda: begin(source)), self._refuse)

    def _pass_on(self) -> None:
        if self._serving:
            self._serving.go_on()

    def order_fetch(self, m: FetchMsg) -> None:
        from .peers import Fetching

        if self._receiver:
            self._fetching = Fetching(
                self._loop, self._receiver, m["addrs"], int(m["port"]), self._secret, self._trace
            )

    def stop(self) -> None:
        """Take nothing more. May be called twice."""
        if self._receiver:
            self._receiver.close()

    def close(self) -> None:
        """Stop serving and fetching. May be called twice."""
        self._closed = True
        if self._serving:
            self._serving.close()
            self._serving = None
        if self._fetching:
            self._fetching.close()
