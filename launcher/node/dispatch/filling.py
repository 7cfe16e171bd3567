"""An agent's part of a dispatch: fills its workspace from the head or another node, serves others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

from ..line.wire import PEER_LOST_AFTER_S, MessageLine
from ..loop import ignore
from .receiver import Receiver

if TYPE_CHECKING:
    from ..line.trace import Trace
    from ..line.wire import Line
    from ..loop import Loop
    from ..messages import DispatchedMsg, FetchMsg, OfPackage, ServeMsg, ServingMsg
    from .peers import Serving
    from .sender import Source

REACH_LIMIT_S = 3.0


class Filling(Receiver):
    """Dispatch into one workspace, from the head or from another node, and service to others.

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
        def finish(failed: Exception | None) -> None:
            if self._server:
                self._server.close()
            if failed:
                refuse(failed)
            else:
                say({"type": "dispatched"})

        super().__init__(loop, workspace, say=say, end=finish, tell=say)
        self._secret, self._tell_head, self._answer, self._refuse = secret, say, answer, refuse
        self._trace = trace and trace.make_note("another node")
        self._left = False
        self._serving: Serving | None = None
        self._server: MessageLine[OfPackage] | None = None  # the node that sends us the package

    def order_serve(self, m: ServeMsg) -> None:
        """Serve the package to other nodes, also during its own transfer."""
        from .peers import Serving

        def begin(source: Source) -> None:
            if not self._left:
                self._serving = Serving(self._loop, m["addr"], self._secret, source, self._trace)
                self._tell_head({"type": "serving", "port": self._serving.port})

        self._loop.do_aside(self.share, lambda source: self._answer(lambda: begin(source)), self._refuse)

    def _note_growth(self) -> None:
        if self._serving:
            self._serving.go_on()

    def order_fetch(self, m: FetchMsg) -> None:
        """Get the package from another node's server; ask the head if that fails."""
        from ..line import gate
        from .peers import REQUEST

        self._loop.do_aside(
            lambda: gate.dial(m["addrs"], int(m["port"]), self._secret, REQUEST, REACH_LIMIT_S),
            self._begin_fetching,
            self._ask_head,
        )

    def _begin_fetching(self, line: Line) -> None:
        self._server = MessageLine(
            self._loop,
            line,
            lost_after_s=PEER_LOST_AFTER_S,
            on_message=ignore,
            on_lost=self._ask_head,
            on_data=self.take,
            trace=self._trace,
        )
        if self.closed:
            self._server.close()
        self.ask_of(self._server.send, self._ask_head)

    def _ask_head(self, _why: object = None) -> None:
        if self._server:
            self._server.close()
        self.ask_of(None)

    def close(self) -> None:
        """Take nothing more and stop serving. May be called twice."""
        super().close()
        self._left = True
        for part in (self._server, self._serving):
            if part:
                part.close()
