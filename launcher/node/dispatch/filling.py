"""An agent's part of a dispatch: fills its workspace from the head or another node, serves others."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Callable

from ..line.wire import PEER_LOST_AFTER_S, MessageLine
from ..loop import ignore
from .receiver import Receiver

if TYPE_CHECKING:
    from ..line.trace import Trace
    from ..line.wire import Data, Line
    from ..loop import Loop
    from ..messages import DispatchedMsg, DispatchMsg, FetchMsg, OfPackage, ServeMsg, ServingMsg
    from .peers import Serving
    from .sender import Source

REACH_LIMIT_S = 3.0


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
        self._loop, self._secret = loop, secret
        self._say, self._answer, self._refuse = say, answer, refuse
        self._trace = trace and trace.make_note("another node")
        self._closed = False
        self._serving: Serving | None = None
        self._server: MessageLine[OfPackage] | None = None  # the node that sends us the package
        self._receiver = Receiver(loop, workspace, say=say, end=self._finish, tell=say)

    def order_dispatch(self, m: DispatchMsg) -> None:
        self._receiver.take_offer(m)

    def take(self, piece: Data) -> None:
        self._receiver.take(piece)

    def _finish(self, failed: Exception | None) -> None:
        if self._server:
            self._server.close()
        if failed:
            self._refuse(failed)
        else:
            self._say({"type": "dispatched"})

    def order_serve(self, m: ServeMsg) -> None:
        """Serve the package to other nodes, also during its own transfer."""
        from .peers import Serving

        def begin(source: Source) -> None:
            if not self._closed:
                self._serving = Serving(self._loop, m["addr"], self._secret, source, self._trace)
                self._say({"type": "serving", "port": self._serving.port})

        self._loop.do_aside(
            lambda: self._receiver.share(self._pass_on),
            lambda source: self._answer(lambda: begin(source)),
            self._refuse,
        )

    def _pass_on(self) -> None:
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
        if self._receiver.closed:
            self._server.close()
        leave = functools.partial(self._ask_head, "a content has a wrong hash")
        self._receiver.ask_of(self._server.send, alone=False, leave=leave)

    def _ask_head(self, _why: object) -> None:
        if self._server:
            self._server.close()
        self._receiver.ask_of(None, alone=True)

    def close(self) -> None:
        """Take nothing more and stop serving. May be called twice."""
        self._closed = True
        for part in (self._receiver, self._server, self._serving):
            if part:
                part.close()
