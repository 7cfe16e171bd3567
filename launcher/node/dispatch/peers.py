"""Nodes pass a package on to each other, over their own network, so that the head sends it once.

A node that has it listens; another one dials, both prove the job's secret, and the same messages and pieces
pass as between head and node. What can't be had so is asked of the head.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..line import gate
from ..line.gate import Gate, Seals
from ..line.wire import NONSENSE, MessageLine
from ..loop import Aside, Loop
from .receiver import Receiver
from .sender import Sender, Source

if TYPE_CHECKING:
    from ..line.trace import Note
    from ..messages import Dispatch, Lacks, OfPackage, Received

REACH_LIMIT_S = 3.0
LOST_AFTER_S = 30.0


class Serving:
    """This node's package, for others that lack it."""

    def __init__(
        self, loop: Loop, addr: str, secret: bytes, source: Source, trace: Note | None = None
    ) -> None:
        self._loop, self._source, self._aside, self._trace = loop, source, Aside(loop), trace
        self._peers: dict[MessageLine[Dispatch], Sender] = {}
        self._gate = Gate(
            loop, addr, secret, check=_wants_files, admit=self._admit, refused=lambda _why: None
        )
        self.port = self._gate.port

    def _admit(self, _text: bytes, fd: int, seals: Seals) -> None:
        def heard(m: Lacks | Received) -> None:
            try:
                if m["type"] == "lacks":
                    self._peers[line].lacks(m)
                elif m["type"] == "received":
                    self._peers[line].received(m)
            except NONSENSE:
                self._drop(line)

        line: MessageLine[Dispatch] = MessageLine(
            self._loop,
            fd,
            fd,
            lost_after_s=LOST_AFTER_S,
            on_message=heard,
            on_lost=lambda _why: self._drop(line),
            seals=seals,
            trace=self._trace,
        )

        # What goes wrong here is no failure: who asked sees the line close, and asks the head.
        def failed(_e: Exception) -> None:
            self._drop(line)

        self._peers[line] = Sender(self._aside, self._source, line, failed=failed, offer=False)

    def _drop(self, line: MessageLine[Dispatch]) -> None:
        line.close()
        if sender := self._peers.pop(line, None):
            self._aside.do(sender.close, lambda _failed: None)

    def close(self) -> None:
        """Serve nobody any more."""
        self._gate.close()
        for line in list(self._peers):
            self._drop(line)
        self._aside.close()


def _wants_files(text: bytes) -> str:
    return "" if b'"files"' in text else "this is no head"


class Fetching:
    """A receiver gets what it lacks from a node that has it, or else from the head."""

    def __init__(
        self,
        loop: Loop,
        receiver: Receiver,
        addrs: Sequence[str],
        port: int,
        secret: bytes,
        trace: Note | None = None,
    ) -> None:
        self._loop, self._receiver, self._trace, self._closed = loop, receiver, trace, False
        self._line: MessageLine[OfPackage] | None = None
        reached: list[tuple[int, Seals]] = []
        text = json.dumps({"files": True}).encode()
        loop.do_aside(
            lambda: reached.append(gate.dial(addrs, port, secret, text, REACH_LIMIT_S)),
            lambda failed: self._begin(*reached[0]) if not failed else self._lost(""),
        )

    def _begin(self, fd: int, seals: Seals) -> None:
        self._line = MessageLine(
            self._loop,
            fd,
            fd,
            lost_after_s=LOST_AFTER_S,
            on_message=lambda _m: None,
            on_lost=self._lost,
            on_data=self._receiver.take,
            seals=seals,
            trace=self._trace,
        )
        if self._closed:
            self._line.close()
        else:
            self._receiver.ask_of(self._line.send, alone=False)

    def _lost(self, _why: str) -> None:
        if not self._closed:
            self.close()
            self._receiver.ask_of(None, alone=True)

    def close(self) -> None:
        """It is over, one way or the other."""
        self._closed = True
        if self._line:
            self._line.close()
