"""The way to the head of a job that begins by itself, in the pods of a cluster."""

from __future__ import annotations

import signal
import socket
import threading
from collections import deque

from ...errors import PslaunchError
from ...follow.remote_head import RemoteHead
from ...follow.watch import TICK_S, Watch
from ...follow.way import Scene, SlowWork, Started, Way, make_supply, stop_on_signals
from ...node.head.events import Event
from ...node.job import Plan, place
from ...node.loop import Loop, ignore
from ..lines import Line, News
from .backend import K8sBackend


class PodsWay(Way):
    is_found_later = True
    backend: K8sBackend

    def __init__(self, backend: K8sBackend, plan: Plan) -> None:
        super().__init__(backend, plan)
        self._news: deque[News] = deque()
        self.starts_again = plan.outlives_head  # the cluster does
        self._head: RemoteHead | None = None
        self._end: Event | None = None  # of a job that was over before its head was found

    def start(self) -> Started:
        found = self.backend.begin(self.plan, self._news.append)
        if isinstance(found, Line):
            return [(self.plan.nodes[0], found)]
        self._end = found
        return []

    def find_head(self, scene: Scene, starting: SlowWork[Started]) -> RemoteHead | None:
        scene.loop.call_every(TICK_S, lambda: self._tell(scene.watch))
        try:
            started = self.wait_for_nodes(scene, starting)
        except PslaunchError:
            self.remove(scene.loop, scene.watch)
            raise
        self._tell(scene.watch)
        if not (started or self._end):
            return None
        line = started.pop()[1] if started else _make_cut_line()
        placed = place(self.plan, self.plan.nodes)
        supply = make_supply(scene.loop, placed, ignore)  # its backend has warned
        self._head = self.follow(scene, line, supply, self.backend.reopen)
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
        over, confirm = threading.Event(), self.backend.confirm
        SlowWork(loop, lambda: confirm(over)).wait(lambda: head.done, over.set)

    def free(self, _loop: Loop) -> bool:
        return self._head is not None and self._head.free()

    def keeps_files(self, watch: Watch) -> bool:
        is_stopped = self._head is not None and self._head.is_stopped
        return self.backend.keeps_files and not is_stopped and (watch.any_began or self._end is not None)

    @property
    def has_ended(self) -> bool:
        return self._head is not None and self._head.done and not self._head.lost

    @property
    def drops_results(self) -> bool:
        return self._head is not None and self._head.hurried

    def cut_fetch(self) -> None:
        self.backend.cancel()

    def explain_end(self, loop: Loop, watch: Watch, code: int) -> int:
        self.backend.silent.update(self.plan.nodes[number].name for number in watch.silent)
        return super().explain_end(loop, watch, code)

    def remove(self, loop: Loop, watch: Watch) -> bool:
        """Remove the rest of the job in the cluster, at once after its end or a signal."""
        if self.has_ended:
            self.backend.limit_end(0.0)
        stop_on_signals(loop, self.backend, lambda _number, _why: self.backend.limit_end(0.0))
        work = SlowWork(loop, self.backend.remove)
        left = work.wait(lambda: False, self.backend.cancel) or []
        for each in left:
            watch.say(each, "warning")
        return not left


def _make_cut_line() -> Line:
    """Return the line to a head that is over."""
    here, there = socket.socketpair()
    there.close()
    fd = here.detach()
    return Line(fd, fd, lambda: "")
