"""A desk of the head for tests of a dispatch: keeps events and failures, supplies a folder as the package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pslaunch.node.dispatch.sender import Source
from pslaunch.node.link import JobFailure
from pslaunch.node.messages import Memory, StartMsg

if TYPE_CHECKING:
    from pslaunch.node.dispatch.dispatch import Parts


class QuietDesk:
    """Desk of a job that goes on, and supply of the package."""

    is_ending = False
    filled: frozenset[int] = frozenset()
    source: Source

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.failed: list[str] = []
        self.over: list[bool] = []

    def get(
        self,
        then: Callable[[Source], None],
        _failed: Callable[[Exception], None],
        _mine: Parts | None,
        _tell: Callable[[Any], None],
    ) -> None:
        then(self.source)

    def fail(self, failure: JobFailure) -> None:
        self.failed.append(failure.text)

    def settle(self) -> None: ...

    def count_on(self, known: Memory, ago_s: float) -> None: ...

    def start(self, starts: Sequence[StartMsg]) -> None: ...

    def tell(self, event: str, **fields: Any) -> None:
        self.events.append(fields)
