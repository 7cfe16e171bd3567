"""What the head knows of one node, and what the parts of a head ask of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from . import job
    from .line.wire import MessageLine


class Link:
    """The head's side of one node: its line and what it has answered."""

    def __init__(self, node: job.Node, line: MessageLine, diagnosis: Callable[[], str]) -> None:
        self.node, self.line, self.diagnosis = node, line, diagnosis
        self.host = node.name
        self.run_dir = ""
        self.addrs: list[str] = []  # by which others might reach it, the likeliest first
        self.door = 0  # port at which others try that
        self.reached: list[tuple[int, str]] = []  # what it could reach: a node, by an address
        self.gone = False
        self.shared: int | None = None  # the node that was first in its workspace, if that is another


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
