"""The way to the head of a job that begins by itself, in the pods of a cluster."""

from __future__ import annotations

import os
import threading

from ...errors import PslaunchError
from ...follow.remote_head import RemoteHead
from ...follow.watch import Watch
from ...follow.way import Scene, SlowWork, Started, Way, make_supply, stop_on_signals
from ...node.head.events import Event
from ...node.job import Plan, place
from ...node.loop import Loop, ignore
from ..lines import Line
from .backend import K8sBackend


class PodsWay(Way):
    is_found_later = True
    backend: K8sBackend

    def __init__(self, backend: K8sBackend, plan: Plan) -> None:
        super().__init__(backend, plan)
        self.starts_again = plan.outlives_head  # the cluster does
        self._end: Event | None = None  # of a job that was over before its head was found

    def start(self) -> Started:
        found = self.backend.begin(self.plan, self._news.append)
        if isinstance(found, Line):
            return [(self.plan.nodes[0], found)]
        self._end = found
        return []

    def find_head(self, scene: Scene, starting: SlowWork[Started]) -> RemoteHead | None:
        try:
            started = self.wait_for_nodes(scene, starting)
        except PslaunchError:
            self.remove(scene.loop, scene.watch)
            raise
        if not (started or self._end):
            return None
        line = started.pop()[1] if started else Line(*os.pipe())  # on which a head that is over says nothing
        placed = place(self.plan, self.plan.nodes)
        supply = make_supply(scene.loop, placed, ignore)  # its backend has warned
        head = self.follow(scene, line, supply, self.backend.reopen)
        if self._end:
            head.take_end(placed, self._end)
        else:
            head.hold(placed)
        return head

    def confirm(self, loop: Loop, watch: Watch) -> None:
        head = self.head
        assert head is not None
        watch.run_until(lambda: watch.has_started_all or head.done)
        over, confirm = threading.Event(), self.backend.confirm
        SlowWork(loop, lambda: confirm(over)).wait(lambda: head.done, over.set)

    def keeps_files(self, watch: Watch) -> bool:
        is_stopped = self.head is not None and self.head.stops
        return self.backend.keeps_files and not is_stopped and (watch.any_began or self._end is not None)

    def cut_fetch(self) -> None:
        self.backend.cancel()

    def explain_end(self, loop: Loop, watch: Watch, code: int) -> int:
        self.backend.silent.update(self.plan.nodes[number].name for number in watch.silent)
        return super().explain_end(loop, watch, code)

    def remove(self, loop: Loop, watch: Watch) -> bool:
        """Remove the rest of the job in the cluster, at once after its end or a signal."""
        if self.head and self.has_ended:
            self.backend.limit_end(0.0)
        stop_on_signals(loop, self.backend, lambda _number, _why: self.backend.limit_end(0.0))
        work = SlowWork(loop, self.backend.remove)
        left = work.wait(lambda: False, self.backend.cancel) or []
        for each in left:
            watch.say(each, "warning")
        return not left
