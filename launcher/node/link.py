"""The head's state of one node, the head's interface for its parts, and questions to many nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from . import codes

if TYPE_CHECKING:
    from . import job
    from .line.wire import MessageLine
    from .messages import StartMsg, ToAgent

Sent = TypeVar("Sent")


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


def make_pause_failure(who: str, node: int, pause: str, by: str) -> JobFailure:
    """Return the failure of this process, which stood still (`pause`, in words) until `by` gave it up."""
    advice = "start the job again, and let this process run, or give a longer --lost_after"
    return JobFailure(who, node, codes.NODE_LOST, f"{pause}, so {by} gave it up", advice=advice)


class Link:
    """The head's side of one node: its line and its answers."""

    def __init__(self, node: job.Node, line: MessageLine[ToAgent], diagnosis: Callable[[], str]) -> None:
        self.node, self.line, self.diagnosis = node, line, diagnosis
        self.host = node.name
        self.run_dir = ""
        self.addrs: list[str] = []  # possible addresses, the likeliest first
        self.door = 0  # port at which others try them
        self.reached: list[tuple[int, str]] = []  # nodes that it could reach, each with an address
        self.gone = False
        self.shared: int | None = None  # the node that was first in its workspace, if another

    @property
    def name(self) -> str:
        return f"node {self.node.id} ({self.host})"

    def make_failure(self, code: int, text: str, **more: Any) -> JobFailure:
        return JobFailure(self.name, self.node.id, code, text, **more)


class Round:
    """One question to many nodes at once; continues after the last answer."""

    def __init__(
        self,
        missing: Iterable[int] = (),
        answers: Collection[str] = (),
        then: Callable[[], None] = lambda: None,
        *,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """`answers`: types of messages that answer it; `is_over` returns True when nothing may follow."""
        self.missing = set(missing)  # nodes that have not answered
        self._answers = answers
        self._then, self._is_over = then, is_over

    def ask(
        self,
        asked: Sequence[tuple[int, Callable[[Sent], Any], Sent]],
        answers: Collection[str],
        then: Callable[[], None],
    ) -> None:
        """Send each node its message; call `then` once all have answered."""
        self.missing, self._answers, self._then = {node for node, _, _ in asked}, answers, then
        for _, send, message in asked:
            send(message)
        self._go_on()

    def take_answer(self, node: int, answer: str) -> None:
        """Note that a node has answered, or never will. Raises ValueError for an unasked answer."""
        if answer not in self._answers:
            raise ValueError(f"{answer!r} was not asked for")
        self.missing.discard(node)
        self._go_on()

    def _go_on(self) -> None:
        if not self.missing and not self._is_over():
            then, self._then = self._then, lambda: None  # only once, even after late answers
            then()


class Desk(Protocol):
    """The head, as its startup and dispatch use it."""

    placed: job.Placed
    links: dict[int, Link]

    @property
    def is_ending(self) -> bool:
        """True once the job ends or has failed: nothing more is asked."""

    def fail(self, failure: JobFailure) -> None:
        """End the job for a failure other than the exit of a process."""

    def settle(self, nodes: Sequence[job.Node]) -> None:
        """Replace the nodes by these, which have more facts."""

    def tell(self, event: str, **fields: Any) -> None:
        """Send observers an event."""

    def start(self, starts: Sequence[StartMsg]) -> None:
        """Start the programs."""
