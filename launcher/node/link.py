"""What the head knows of one node, what the parts of a head ask of it, and a question to many nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from . import job
    from .line.wire import MessageLine
    from .messages import ToAgent

Sent = TypeVar("Sent")


class Link:
    """The head's side of one node: its line and what it has answered."""

    def __init__(self, node: job.Node, line: MessageLine[ToAgent], diagnosis: Callable[[], str]) -> None:
        self.node, self.line, self.diagnosis = node, line, diagnosis
        self.host = node.name
        self.run_dir = ""
        self.addrs: list[str] = []  # by which others might reach it, the likeliest first
        self.door = 0  # port at which others try that
        self.reached: list[tuple[int, str]] = []  # what it could reach: a node, by an address
        self.gone = False
        self.shared: int | None = None  # the node that was first in its workspace, if that is another


class Round:
    """One question to many nodes at once: what comes next waits for the last answer."""

    def __init__(
        self,
        missing: Iterable[int] = (),
        then: Callable[[], None] = lambda: None,
        *,
        over: Callable[[], bool] = lambda: False,
    ) -> None:
        """`over`: whether nothing comes next any more."""
        self.missing = set(missing)  # whose answer is still to come
        self._then, self._over = then, over

    def ask(self, asked: Sequence[tuple[int, Callable[[Sent], Any], Sent]], then: Callable[[], None]) -> None:
        """Send each node its message; go on with `then` once all of them have answered."""
        self.missing, self._then = {node for node, _, _ in asked}, then
        for _, send, message in asked:
            send(message)
        self._go_on()

    def answered(self, node: int) -> None:
        """Take the answer of a node, or that none will come."""
        self.missing.discard(node)
        self._go_on()

    def _go_on(self) -> None:
        if not self.missing and not self._over():
            then, self._then = self._then, lambda: None  # once, whatever comes late
            then()


class Desk(Protocol):
    """What the opening needs of the head."""

    placed: job.Placed
    links: dict[int, Link]

    @property
    def ending(self) -> bool:
        """Whether the job ends already: then nothing more is asked."""
        ...

    def fail(
        self,
        what: str,
        node: int,
        code: int,
        text: str,
        advice: str = "",
        log: str = "",
        tail: Sequence[str] = (),
    ) -> None:
        """End the job. `tail`: the last lines of `log`."""
        ...

    def settle(self, nodes: Sequence[job.Node]) -> None:
        """More is known of the nodes than was declared."""
        ...

    def tell(self, event: str, **fields: Any) -> None:
        """Tell observers."""
        ...

    def start(self, bound: job.Bound) -> None:
        """All is known: start the programs."""
        ...
