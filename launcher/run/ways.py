"""The common ways to the head of a job: in the launcher, or on node 0."""

from __future__ import annotations

import functools
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..backends.base import Backend
from ..backends.lines import Dial
from ..backends.registry import find_face
from ..errors import FileError, NodeLostError, PreflightError, PslaunchError
from ..follow.watch import Watch
from ..follow.way import Scene, SlowWork, Started, Way, make_supply, stop_on_signals
from ..node import codes
from ..node.job import Limits, Node, Plan, to_data
from ..node.loop import Loop, ignore
from ..options.spec import JobSpec, Site
from ..plan import place_found

if TYPE_CHECKING:
    from ..follow.remote_head import RemoteHead
    from ..follow.way import AnyHead
    from ..node.head.head import Head


REVIVE_EVERY_S = 1.0  # between two tries to start an agent


def choose_way(spec: JobSpec, plan: Plan) -> Way:
    face = find_face(spec.draft.backend)
    if way := face.make_way(spec, plan):
        return way
    backend = face.make_backend(spec.site.reach)
    return (
        _OnNode(backend, plan, detach=spec.detach) if spec.head == "node" else _Here(backend, plan, spec.site)
    )


class _Here(Way):
    """Head in this process."""

    def __init__(self, backend: Backend, plan: Plan, site: Site) -> None:
        super().__init__(backend, plan)
        self._reach = to_data(site.reach) if site.remote else None
        self.starts_again = backend.starts_again

    def start(self) -> Started:
        return self.backend.start(self.plan.nodes, self.plan.limits)

    def find_head(self, scene: Scene, starting: SlowWork[Started]) -> Head:
        from ..node.head.head import Head
        from ..node.head.observed import Attached

        loop, plan = scene.loop, self.plan
        started = [] if plan.nodes else self.wait_for_nodes(scene, starting)
        placed = place_found(plan, [node for node, _ in started])
        secret, supply = os.urandom(32).hex(), make_supply(loop, placed, scene.warn)
        launcher = f"process {os.getpid()} on {socket.gethostname()}"
        head = Head(loop, placed, secret, time.time, supply, scene.trace, launcher)
        scene.at_end.callback(head.close)
        scene.at_end.callback(Attached(loop, head, self._reach).close)
        head.drain = scene.watch.show
        stop_on_signals(loop, self.backend, head.stop)
        cut = functools.partial(_cut, self.backend, scene.watch, head)
        started = starting.wait(lambda: head.done, cut) or []
        while started and not head.done:
            node, line = started[0]
            head.attach(node, line)
            started.pop(0)
        if self.backend.starts_again:
            head.revive = functools.partial(self._revive, scene, head)
        self._watch_carrier(loop, head)
        return head

    def _watch_carrier(self, loop: Loop, head: Head) -> None:
        if ended := self.backend.ended:

            def end() -> None:
                loop.watch(ended.fd)
                how, killed = ended.describe()
                head.lose_carrier(ended.carrier, how, killed=killed)

            loop.watch(ended.fd, read=end)

    def _revive(self, scene: Scene, head: Head, lost: Sequence[Node]) -> Sequence[Node]:
        """Start other agents for lost nodes, or for all where one carrier brings them; return which."""
        if ended := self.backend.ended:
            scene.loop.watch(ended.fd)
        if self.backend.carrier:
            lost = head.placed.nodes
        for nodes in [lost] if self.backend.carrier else [[node] for node in lost]:
            self._start_again(scene, head, nodes)
        return lost

    def _start_again(self, scene: Scene, head: Head, nodes: Sequence[Node]) -> None:
        backend = self.backend

        def take(started: Started) -> None:
            for node in filter(None, [head.find_awaited(node.id) for node in nodes]):
                head.attach(node, started.pop(0)[1])
            self._watch_carrier(scene.loop, head)

        def give_up(why: str) -> None:
            if backend.carrier:
                head.lose_carrier(backend.carrier, f"it can't be started again: {why}", killed=True)
            else:
                head.give_up(nodes[0], why)

        start = functools.partial(backend.start, nodes, self.plan.limits)
        _keep_trying(scene, backend, self.plan.limits, start, take, give_up)


class _OnNode(Way):
    """Head that this launcher starts on node 0."""

    is_found_later = True

    def __init__(self, backend: Backend, plan: Plan, *, detach: bool) -> None:
        super().__init__(backend, plan)
        self._secret, self._detach = os.urandom(32).hex(), detach
        self.starts_again = backend.starts_again and not (backend.carrier or detach)

    def start(self) -> Started:
        self.nodes, line = self.backend.start_head(self.plan.nodes, self.plan.limits, self._secret)
        return [(self.nodes[0], line)]

    def find_head(self, scene: Scene, starting: SlowWork[Started]) -> RemoteHead:
        backend, plan = self.backend, self.plan
        awaited = plan.nodes[0].name if plan.nodes else "the cluster"
        started = self.wait_for_nodes(scene, starting, awaited)
        placed = place_found(plan, self.nodes)
        head = self.follow(scene, started.pop()[1], make_supply(scene.loop, placed, scene.warn))
        port, addrs = head.lead(placed, self._secret, detach=self._detach)
        if port:
            head.follow()
            dial = Dial(addrs, port, self._secret)
            rest, limits = placed.nodes[1:], plan.limits
            cut = functools.partial(_cut, backend, scene.watch, head)
            work = SlowWork(scene.loop, lambda: backend.start_dialing(rest, limits, dial))
            work.wait(lambda: head.done, cut)
            head.expect(functools.partial(self._bring, scene, dial) if self.starts_again else None)
        elif not head.done:
            refused = head.answers.get("refused", {"code": codes.NODE_LOST, "text": ""})
            kinds = {codes.PREFLIGHT: PreflightError, codes.IO: FileError}
            text = f"node 0 ({self.nodes[0].name}) does not lead the job: {refused['text'] or 'no answer'}"
            raise kinds.get(refused["code"], NodeLostError)(text)
        return head

    def _bring(self, scene: Scene, dial: Dial, lost: Sequence[Node]) -> None:
        """Let other agents on lost nodes dial the head, which waits for them."""

        def give_up(why: str) -> None:
            scene.warn(f"no other agent can be started: {why}")

        def start(node: Node) -> Started:
            backend.start_dialing([node], limits, dial)
            return []

        backend, limits = self.backend, self.plan.limits
        for node in lost:
            _keep_trying(scene, backend, limits, functools.partial(start, node), ignore, give_up)


def _keep_trying(
    scene: Scene,
    backend: Backend,
    limits: Limits,
    start: Callable[[], Started],
    take: Callable[[Started], None],
    give_up: Callable[[str], None],
) -> None:
    """Start agents again; try for as long as a silent node counts as there."""
    over, end_s = threading.Event(), time.monotonic() + limits.lost_after_s

    def work_on() -> Started:
        while True:
            try:
                return start()
            except PslaunchError:
                if time.monotonic() >= end_s or over.wait(REVIVE_EVERY_S):
                    raise

    def tell() -> None:
        try:
            take(work.wait(lambda: False, backend.cancel) or [])
        except PslaunchError as e:
            give_up(str(e))

    def leave() -> None:
        over.set()
        work.leave(backend.cancel)

    work = SlowWork(scene.loop, work_on, tell)
    scene.at_end.callback(leave)


def _cut(backend: Backend, watch: Watch, head: AnyHead) -> None:
    """Reach no more nodes and show the end; not earlier: a question may be open on the terminal."""
    backend.cancel()
    watch.begin(head)
