"""Service of a package to other nodes, over their own network, so that the head sends it once.

A node that has it, or still receives it, listens; another one dials (filling.py), both prove the job's secret
and exchange the same messages and pieces as head and node. The head sends files that a node can't get so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..line.gate import Gate
from ..line.wire import PEER_LOST_AFTER_S, MessageLine
from ..loop import Aside, Loop, ignore
from .sender import Sender, Source

if TYPE_CHECKING:
    from ..line.trace import Note
    from ..line.wire import Line
    from ..messages import DispatchMsg

REQUEST = b"files"  # of a node at the gate of another one


class Serving:
    def __init__(
        self, loop: Loop, addr: str, secret: bytes, source: Source, trace: Note | None = None
    ) -> None:
        self._loop, self._source, self._aside, self._trace = loop, source, Aside(loop), trace
        self._peers: dict[MessageLine[DispatchMsg], Sender] = {}
        self._gate = Gate(
            loop,
            addr,
            secret,
            check=lambda text: "" if text == REQUEST else "this is not a head",
            admit=self._admit,
            note_refusal=ignore,
        )
        self.port = self._gate.port

    def _admit(self, _text: bytes, own: Line) -> None:
        # No failure of the job: the other node sees the line close, and asks the head.
        def give_up(_why: object) -> None:
            self._drop(line)

        line: MessageLine[DispatchMsg] = MessageLine(
            self._loop,
            own,
            lost_after_s=PEER_LOST_AFTER_S,
            on_message=lambda m: self._peers[line].obey(m, give_up),
            on_lost=give_up,
            trace=self._trace,
        )
        self._peers[line] = Sender(self._aside, self._source, line, fail=give_up, offer=False)

    def _drop(self, line: MessageLine[DispatchMsg]) -> None:
        line.close()
        if sender := self._peers.pop(line, None):
            self._aside.do(sender.close)

    def go_on(self) -> None:
        """Send more: the source has grown."""
        for sender in self._peers.values():
            sender.go_on()

    def close(self) -> None:
        self._gate.close()
        for line in list(self._peers):
            self._drop(line)
        self._aside.close()
