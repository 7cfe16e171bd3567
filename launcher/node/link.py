"""The head's state of one node, and the head's interface for its parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from . import job
    from .line.wire import MessageLine
    from .messages import Memory, StartMsg, ToAgent


class JobFailure(NamedTuple):
    """First failure of a job, for its exit code and its last lines."""

    what: str  # "trainer/1", "node 2", ...
    node: int
    code: int
    text: str  # in words: "ended with 3", "was killed by SIGSEGV", ...
    signal: str = ""
    log: str = ""
    tail: tuple[str, ...] = ()
    advice: str = ""

    @property
    def why(self) -> str:
        """The failure as a sentence."""
        of_process = "/" in self.what or self.text.startswith(("was lost", "did not run"))
        return f"{self.what} {self.text}" if of_process else f"{self.what}: {self.text}"


class Link:
    """The head's side of one node: its line and its answers."""

    def __init__(
        self, node: job.Node, line: MessageLine[ToAgent], diagnosis: Callable[[], str], epoch: int = 0
    ) -> None:
        self.node, self.line, self.diagnosis = node, line, diagnosis
        self.host = node.name
        self.run_dir = ""
        self.epoch = epoch  # of the programs that it may speak of
        self.addrs: list[str] = []  # possible addresses, the likeliest first
        self.door = 0  # port at which others try them
        self.reached: list[tuple[int, str]] = []  # nodes that it could reach, each with an address
        self.gone = False  # nothing more comes of it
        self.bereft = False  # what has brought its agent is gone: only this epoch goes on with it
        self.shared: int | None = None  # the node that was first in its workspace, if another

    @property
    def name(self) -> str:
        return f"node {self.node.id} ({self.host})"

    def make_failure(self, code: int, text: str, **more: Any) -> JobFailure:
        return JobFailure(self.name, self.node.id, code, text, **more)


class Desk(Protocol):
    """The head, as its startup and dispatch use it."""

    placed: job.Placed
    links: dict[int, Link]

    @property
    def is_ending(self) -> bool:
        """True once the job ends or has failed: nothing more is asked."""

    def count_on(self, known: Memory, ago_s: float) -> None:
        """Lead the epoch that another head has left so long ago: it ends for the loss of that node."""

    def fail(self, failure: JobFailure) -> None:
        """End the job for a failure other than the exit of a process."""

    def settle(self) -> None:
        """Replace the nodes by those of the links, which have more facts."""

    def tell(self, event: str, **fields: Any) -> None:
        """Send observers an event."""

    def start(self, starts: Sequence[StartMsg]) -> None:
        """Start the programs."""
