"""Ways to the head of a job, as a session sees them, and what they have in common.

A session chooses one, starts nodes by it in a thread of its own, then finds the head. Afterwards all heads
look alike, and a way only knows how its job is left or removed.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import signal
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeAlias, TypeVar

from ..backends.base import Backend
from ..backends.lines import CLOSE_EXTRA_S, Line, News
from ..errors import STOP_SIGNALS, EndedEarlyError
from ..node import codes
from ..node.job import Node, Placed, Plan
from ..node.loop import Loop, ignore
from .watch import TICK_S, Watch

if TYPE_CHECKING:
    from ..node.dispatch.dispatch import Supply
    from ..node.head.events import Event
    from ..node.head.head import Head
    from ..node.line.trace import Trace
    from .remote_head import RemoteHead

    AnyHead: TypeAlias = Head | RemoteHead
    Reopen: TypeAlias = Callable[[], Line | Event]

AT_ONCE_S = 0.02  # for a start without a network
T = TypeVar("T")
Started = list[tuple[Node, Line]]


class SlowWork(Generic[T]):
    """Slow work with nodes in a thread of its own, started at once."""

    def __init__(self, loop: Loop, work: Callable[[], T], tell: Callable[[], None] = lambda: None) -> None:
        """`tell` is called from the loop once it is over."""
        self._loop = loop
        self._found: list[T] = []
        self._over: list[Exception | None] = []
        self._done = done = threading.Event()

        def run() -> None:
            try:
                self._found.append(work())
            finally:
                done.set()

        def note(e: Exception | None) -> None:
            self._over.append(e)
            tell()

        loop.do_aside(run, note, note)

    def give_time(self) -> None:
        """Let fast work finish: imports here would slow the thread down, by 10 ms and more."""
        self._done.wait(AT_ONCE_S)

    def leave(self: SlowWork[Started], cut: Callable[[], None]) -> None:
        """End the work, by `cut` if it is unfinished, and close the lines that no head took."""
        if not self._done.is_set():
            cut()
            self._done.wait(CLOSE_EXTRA_S)
        for _, line in itertools.chain(*self._found):
            line.close()

    def wait(self, asked: Callable[[], bool], cut: Callable[[], None]) -> T | None:
        """Run the loop until the work ends and return its result. Once `asked` is true, `cut` ends it soon.

        Then returns None if there is no result; otherwise raises the work's exception.
        """
        self._loop.run(lambda: bool(self._over) or asked())
        while not self._over:
            cut()
            self._loop.run_once(TICK_S)
        if self._over[0] and not asked():
            raise self._over[0]
        return self._found[0] if self._found else None

    def finish(self, backend: Backend, cut: Callable[[], None], tell: Callable[[str], object] = ignore) -> T:
        """Return the result, as `wait` does. Raises EndedEarlyError for a signal; `tell` gets its words."""
        asked: list[EndedEarlyError] = []

        def ask(number: int, why: str) -> None:
            if not asked:
                tell(why)
            asked.append(EndedEarlyError(number, why))

        stop_on_signals(self._loop, backend, ask)
        found = self.wait(lambda: bool(asked), cut)
        if asked:
            raise asked[0]
        assert found is not None
        return found


class Scene(NamedTuple):
    """Surroundings of a job in its session."""

    loop: Loop
    watch: Watch
    at_end: contextlib.ExitStack
    trace: Trace | None

    def warn(self, text: str) -> None:
        self.watch.say(text, "warning")


class Way(ABC):
    """A way to the head of one job. `nodes` are known once the head is."""

    is_found_later = False  # by later shells, at its head on a node
    starts_again = False  # agents of lost nodes

    def __init__(self, backend: Backend, plan: Plan) -> None:
        self.backend, self.plan = backend, plan
        self.nodes: Sequence[Node] = plan.nodes
        self.head: RemoteHead | None = None  # that was followed
        self._news: deque[News] = deque()
        backend.tell = self._news.append

    @abstractmethod
    def start(self) -> Started:
        """Start agents; slow, in a thread. Raises PslaunchError."""

    @abstractmethod
    def find_head(self, scene: Scene, starting: SlowWork[Started]) -> AnyHead | None:
        """Wait for the nodes and return the head; None if this user may not attach. Raises PslaunchError."""

    def wait_for_nodes(
        self, scene: Scene, starting: SlowWork[Started], shown: str = "the cluster"
    ) -> Started:
        """Return the started nodes, without which no head can exist. Raises EndedEarlyError."""

        def tell(why: str) -> None:
            scene.watch.say(f"ending: {why}; no longer waiting for {shown}")

        def show() -> None:
            """Show news, also of a job that runs, which a failure ends."""
            while self._news:
                news = self._news.popleft()
                if news.code and self.head:
                    self.head.stop(signal.SIGTERM, news.text, news.code)
                else:
                    scene.watch.say(news.text, news.level)
            for who, text in backend.read_output():
                scene.watch.say(text, who=who)

        backend = self.backend
        scene.loop.call_every(TICK_S, show)
        started = starting.finish(backend, backend.cancel, tell)
        show()
        return started

    def follow(
        self, scene: Scene, line: Line, supply: Supply | None, reopen: Reopen | None = None
    ) -> RemoteHead:
        """Return the head at the other end of a line to node 0."""
        from .remote_head import RemoteHead

        head = self.head = RemoteHead(
            scene.loop,
            line,
            name=f"node 0 ({self.nodes[0].name})",
            lost_after_s=self.plan.limits.lost_after_s,
            supply=supply,
            trace=scene.trace and scene.trace.make_note("head"),
            reopen=reopen,
        )
        scene.at_end.callback(head.close)
        head.on_slow = scene.warn
        stop_on_signals(scene.loop, self.backend, head.stop)
        return head

    def confirm(self, loop: Loop, watch: Watch) -> None:  # noqa: B027 # most backends do not care
        """Tell the backend once all programs run."""

    def free(self, loop: Loop) -> bool:
        """Let the job run on without this launcher; return False if that fails."""
        head = self.head
        if head is None:
            return False
        why = SlowWork(loop, self.backend.prepare_release).wait(lambda: head.done, self.backend.cancel)
        if why:
            head.stop(signal.SIGTERM, why, codes.PREFLIGHT)
        return not why and head.free()

    def keeps_files(self, _watch: Watch) -> bool:
        """Return True if the nodes of an ended job, which are its own, keep its files for later shells."""
        return False

    @property
    def has_ended(self) -> bool:
        """True once the end of the job was seen."""
        return self.head is None or (self.head.done and not self.head.lost)

    def explain_end(self, loop: Loop, watch: Watch, code: int) -> int:
        """Show the backend's reason for the end of a job, if it has one; return the job's exit code."""
        if code not in (codes.NODE_LOST, codes.TERM):
            return code
        work = SlowWork(loop, lambda: self.backend.explain_end(code))
        reason, code = work.wait(lambda: False, self.backend.cancel) or ("", code)
        if reason:
            watch.say(reason, "warning")
        return code

    @property
    def drops_results(self) -> bool:
        """True if the user has asked twice for the end: for no results any more, which end with the nodes."""
        return self.backend.owns_nodes and self.head is not None and len(self.head.stops) > 1

    def cut_fetch(self) -> None:
        """Let a fetch fail soon. The job has ended: nothing on the nodes needs a wait."""
        self.backend.release()

    def remove(self, _loop: Loop, _watch: Watch) -> bool:
        """Remove the rest of an ended job; return True if nothing is left for later shells."""
        return False


def stop_on_signals(loop: Loop, backend: Backend, stop: Callable[[int, str], None]) -> None:
    """Call `stop` with each signal that ends a job, and its words; after the first the backend hurries."""
    came: list[int] = []

    def ask(number: int, why: str) -> None:
        if came:
            backend.limit_end(0.0)
        came.append(number)
        stop(number, why)

    loop.handle_signals({n: functools.partial(ask, n, why) for n, why in STOP_SIGNALS.items()})


def make_supply(loop: Loop, placed: Placed, warn: Callable[[str], object]) -> Supply | None:
    package = placed.plan.package
    if package is None:
        return None
    from ..ship.package import PackageFolder

    return PackageFolder(loop, package, warn)
