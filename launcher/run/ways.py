"""Ways to the head of a job: in the launcher, on node 0, or in a job that begins by itself.

A session chooses one, starts nodes by it in a thread of its own, then finds the head. Afterwards all heads
look alike, and a way only knows how its job is left or removed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ..backends.base import (
    Backend,
    BeginningBackend,
    Dial,
    Ended,
    LaterBackend,
    LeadingBackend,
    Line,
    News,
    find_backend,
    make_leading_backend,
    make_starting_backend,
)
from ..errors import STOP_SIGNALS, EndedEarlyError, FileError, NodeLostError, PreflightError, PslaunchError
from ..node import codes
from ..node.job import Node, Placed, Plan, place
from ..node.loop import Loop, ignore
from ..options.spec import JobSpec
from ..plan import place_found
from .slow_work import SlowWork
from .watch import TICK_S, Watch

if TYPE_CHECKING:
    from ..backends.base import StartingBackend
    from ..node.dispatch.head_side import Supply
    from ..node.head.events import Event
    from ..node.head.head import Head
    from ..node.line.trace import Trace
    from .observe import RemoteHead

    AnyHead = Head | RemoteHead

T = TypeVar("T")
Started = list[tuple[Node, Line]]


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

    backend: Backend
    later: LaterBackend | None = None  # by which later shells reach the job

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.nodes: Sequence[Node] = plan.nodes

    @abstractmethod
    def start(self) -> Started:
        """Start agents; slow, in a thread. Raises PslaunchError."""

    @abstractmethod
    def find_head(self, scene: Scene, starting: SlowWork[Started]) -> AnyHead | None:
        """Wait for the nodes and return the head; None if nobody here may follow it. Raises PslaunchError."""

    def confirm(self, loop: Loop, watch: Watch) -> None:  # noqa: B027 # most backends do not care
        """Tell the backend once all programs run."""

    def free(self, _loop: Loop) -> bool:
        """Let the job run on without this launcher; return False if that fails."""
        return False

    def keeps_files(self, _watch: Watch) -> bool:
        """Return True if the nodes of an ended job, which are its own, keep its files for later shells."""
        return False

    @property
    def has_ended(self) -> bool:
        """True once the end of the job was seen."""
        return True

    def describe_keeping(self) -> str:
        """Return a line about the time for which a detached job keeps its results, "" for no limit."""
        return ""

    def explain_loss(self, _loop: Loop, _watch: Watch) -> int:
        """Show the backend's reason for the loss of a node, if it has one; return the job's exit code."""
        return codes.NODE_LOST

    @property
    def drops_results(self) -> bool:
        """True if the user wants no results any more."""
        return False

    def cut_fetch(self) -> None:
        """Let a fetch fail soon. The job has ended: nothing on the nodes needs a wait."""
        self.backend.release()

    def remove(self, _loop: Loop, _watch: Watch) -> bool:
        """Remove the rest of an ended job; return True if nothing is left for later shells."""
        return False


def choose_way(spec: JobSpec, plan: Plan) -> Way:
    """Return the way for a job. Raises SpecError if its backend has none."""
    backend = find_backend(spec.backend).make_backend(spec.site.reach)
    if isinstance(backend, BeginningBackend):
        return _ByItself(backend, plan)
    if spec.head == "node":
        return _OnNode(make_leading_backend(spec.backend, spec.site.reach), plan, detach=spec.detach)
    return _Here(make_starting_backend(spec.backend, spec.site.reach), plan)


class _Here(Way):
    """Head in this process."""

    def __init__(self, backend: StartingBackend, plan: Plan) -> None:
        super().__init__(plan)
        self.backend = self._starting = backend

    def start(self) -> Started:
        return self._starting.start(self.plan.nodes, self.plan.limits)

    def find_head(self, scene: Scene, starting: SlowWork[Started]) -> Head:
        from ..node.head.head import Head

        loop, plan = scene.loop, self.plan
        started = [] if plan.nodes else _wait_for_nodes(scene, self.backend, starting, "the cluster")
        placed = place_found(plan, [node for node, _ in started])
        secret, supply = os.urandom(32).hex(), _make_supply(loop, placed, scene.warn)
        launcher = f"process {os.getpid()} on {socket.gethostname()}"
        head = Head(loop, placed, secret, time.time, supply, scene.trace, launcher)
        scene.at_end.callback(head.close)
        head.drain = scene.watch.show
        stop_on_signals(loop, self.backend, head.stop)
        cut = functools.partial(_cut, self.backend, scene.watch, head)
        started = starting.wait(lambda: head.done, cut) or []
        while started and not head.done:
            node, line = started[0]
            head.attach(node, *line)
            started.pop(0)
        if self.backend.ended:
            _end_with_carrier(loop, self.backend.ended, head)
        return head


class _OnNode(Way):
    """Head that this launcher starts on node 0."""

    def __init__(self, backend: LeadingBackend, plan: Plan, *, detach: bool) -> None:
        super().__init__(plan)
        self.backend = self.later = self._leading = backend
        self._secret, self._detach = os.urandom(32).hex(), detach

    def start(self) -> Started:
        self.nodes, line = self._leading.start_head(self.plan.nodes, self.plan.limits, self._secret)
        return [(self.nodes[0], line)]

    def find_head(self, scene: Scene, starting: SlowWork[Started]) -> RemoteHead:
        backend, plan = self._leading, self.plan
        awaited = plan.nodes[0].name if plan.nodes else "the cluster"
        started = _wait_for_nodes(scene, backend, starting, awaited)
        placed = place_found(plan, self.nodes)
        first, line = started.pop()
        supply = _make_supply(scene.loop, placed, scene.warn)
        head = _follow(scene, backend, plan, first, line, supply=supply)
        port, addrs = head.lead(placed, self._secret, detach=self._detach)
        if port:
            head.follow()
            dial = Dial(addrs, port, self._secret)
            rest, limits = placed.nodes[1:], plan.limits
            cut = functools.partial(_cut, backend, scene.watch, head)
            work = SlowWork(scene.loop, lambda: backend.start_dialing(rest, limits, dial))
            work.wait(lambda: head.done, cut)
            head.expect()
        elif not head.done:
            kinds = {codes.PREFLIGHT: PreflightError, codes.IO: FileError}
            kind = kinds.get(head.answers.get("refused", {}).get("code", codes.NODE_LOST), NodeLostError)
            raise kind(f"node 0 ({first.name}) does not lead the job: {head.refusal or 'no answer'}")
        self._head = head
        return head

    def free(self, loop: Loop) -> bool:
        head = self._head
        why = SlowWork(loop, self._leading.prepare_release).wait(lambda: head.done, self._leading.cancel)
        if why:
            head.stop(signal.SIGTERM, why, codes.PREFLIGHT)
        return not why and head.free()


class _ByItself(Way):
    """Head of a job that begins by itself."""

    def __init__(self, backend: BeginningBackend, plan: Plan) -> None:
        super().__init__(plan)
        self.backend = self.later = self._beginning = backend
        self._news: deque[News] = deque()
        self._head: RemoteHead | None = None
        self._end: Event | None = None  # of a job that was over before its head was found

    def start(self) -> Started:
        found = self._beginning.begin(self.plan, self._news.append)
        if isinstance(found, Line):
            return [(self.plan.nodes[0], found)]
        self._end = found
        return []

    def find_head(self, scene: Scene, starting: SlowWork[Started]) -> RemoteHead | None:
        backend, plan = self._beginning, self.plan
        scene.loop.call_every(TICK_S, lambda: self._tell(scene.watch))
        try:
            started = _wait_for_nodes(scene, backend, starting, "the cluster")
        except PslaunchError:
            self.remove(scene.loop, scene.watch)
            raise
        self._tell(scene.watch)
        if not (started or self._end):
            return None
        first, line = started.pop() if started else (plan.nodes[0], _make_cut_line())
        placed = place(plan, plan.nodes)
        supply = _make_supply(scene.loop, placed, ignore)  # its backend has warned
        self._head = _follow(scene, backend, plan, first, line, supply=supply, reopen=backend.reopen)
        if self._end:
            self._head.take_end(placed, self._end)
        else:
            self._head.hold(placed)
        return self._head

    def _tell(self, watch: Watch) -> None:
        """Show the news of the backend; a failure ends the job."""
        while self._news:
            news = self._news.popleft()
            if news.code and self._head:
                self._head.stop(signal.SIGTERM, news.text, news.code)
            else:
                watch.say(news.text, news.level)

    def confirm(self, loop: Loop, watch: Watch) -> None:
        head = self._head
        assert head is not None
        watch.run_until(lambda: watch.has_started_all or head.done)
        over, confirm = threading.Event(), self._beginning.confirm
        SlowWork(loop, lambda: confirm(over)).wait(lambda: head.done, over.set)

    def free(self, _loop: Loop) -> bool:
        return self._head is not None and self._head.free()

    def keeps_files(self, watch: Watch) -> bool:
        is_stopped = self._head is not None and self._head.is_stopped
        return self._beginning.keeps_files and not is_stopped and (watch.any_began or self._end is not None)

    @property
    def has_ended(self) -> bool:
        return self._head is not None and self._head.done and not self._head.lost

    def describe_keeping(self) -> str:
        return self._beginning.describe_keeping()

    def explain_loss(self, loop: Loop, watch: Watch) -> int:
        work = SlowWork(loop, self._beginning.explain_loss)
        reason, code = work.wait(lambda: False, self.backend.cancel) or ("", codes.NODE_LOST)
        if reason:
            watch.say(reason, "warning")
        return code

    @property
    def drops_results(self) -> bool:
        return self._head is not None and self._head.hurried

    def cut_fetch(self) -> None:
        self.backend.cancel()

    def remove(self, loop: Loop, watch: Watch) -> bool:
        """Remove the rest of the job in the cluster, at once after a signal."""
        stop_on_signals(loop, self.backend, lambda _number, _why: self.backend.limit_end(0.0))
        work = SlowWork(loop, self._beginning.remove)
        left = work.wait(lambda: False, self.backend.cancel) or []
        for each in left:
            watch.say(each, "warning")
        return not left


def stop_on_signals(loop: Loop, backend: Backend, stop: Callable[[int, str], None]) -> None:
    """Call `stop` with each signal that ends a job, and its words; after the first the backend hurries."""
    came: list[int] = []

    def ask(number: int, why: str) -> None:
        if came:
            backend.limit_end(0.0)
        came.append(number)
        stop(number, why)

    loop.handle_signals({n: functools.partial(ask, n, why) for n, why in STOP_SIGNALS.items()})


class Asked(NamedTuple):
    """Signal that ended slow work, and its words."""

    number: int
    why: str


def wait_for_work(
    loop: Loop,
    backend: Backend,
    work: SlowWork[T],
    cut: Callable[[], None],
    tell: Callable[[str], None] = lambda _why: None,
) -> T | Asked:
    """Return the result of slow work, or the first signal that came; then `tell` has its words.

    cut: ends the work soon. Raises the exception of work that was not cut.
    """
    asked: list[Asked] = []

    def ask(number: int, why: str) -> None:
        if not asked:
            tell(why)
        asked.append(Asked(number, why))

    stop_on_signals(loop, backend, ask)
    found = work.wait(lambda: bool(asked), cut)
    if asked:
        return asked[0]
    assert found is not None
    return found


def _follow(
    scene: Scene,
    backend: Backend,
    plan: Plan,
    first: Node,
    line: Line,
    *,
    supply: Supply | None = None,
    reopen: Callable[[], Line | Event] | None = None,
) -> RemoteHead:
    """Return the head at the other end of a line to node 0."""
    from .observe import RemoteHead

    head = RemoteHead(
        scene.loop,
        line,
        name=f"node 0 ({first.name})",
        lost_after_s=plan.limits.lost_after_s,
        supply=supply,
        trace=scene.trace and scene.trace.make_note("head"),
        reopen=reopen,
    )
    scene.at_end.callback(head.close)
    head.on_slow = lambda text: scene.watch.say(text, "warning")
    stop_on_signals(scene.loop, backend, head.stop)
    return head


def _wait_for_nodes(scene: Scene, backend: Backend, starting: SlowWork[Started], shown: str) -> Started:
    """Return the started nodes, without which no head can exist. Raises EndedEarlyError."""

    def tell(why: str) -> None:
        scene.watch.say(f"ending: {why}; no longer waiting for {shown}")

    found = wait_for_work(scene.loop, backend, starting, backend.cancel, tell)
    if isinstance(found, Asked):
        raise EndedEarlyError(*found)
    return found


def _make_cut_line() -> Line:
    """Return the line to a head that is over."""
    here, there = socket.socketpair()
    there.close()
    fd = here.detach()
    return Line(fd, fd, lambda: "")


def _end_with_carrier(loop: Loop, ended: Ended, head: Head) -> None:
    """End the job once the carrier of all agents is gone."""

    def end() -> None:
        loop.watch(ended.fd)
        how, killed = ended.describe()
        head.lose_carrier(ended.carrier, how, killed=killed)

    loop.watch(ended.fd, read=end)


def _cut(backend: Backend, watch: Watch, head: AnyHead) -> None:
    """Reach no more nodes and show the end; not earlier: a question may be open on the terminal."""
    backend.cancel()
    watch.begin(head)


def _make_supply(loop: Loop, placed: Placed, warn: Callable[[str], object]) -> Supply | None:
    package = placed.plan.package
    if package is None or not placed.is_sent:
        return None
    from ..ship.package import Folder

    return Folder(loop, package, warn=warn)
