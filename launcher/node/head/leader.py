"""A head on a node: leads the job, admits agents through the gate, serves observers.

Observers speak the same wire: the launcher that started the job over its line to this node, later ones over
a Unix socket in the run folder, or through the gate with proof of the secret. They may only `follow`,
`status`, `stop` and `hold`. The job ends when the lines of all its holders, at first the launcher alone,
have been lost for the lease, unless it is free.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .. import codes, job, logs
from ..dispatch.from_launcher import FromLauncher
from ..later import record
from ..line import reach
from ..line.gate import OBSERVER, Gate
from ..line.trace import Trace
from ..line.wire import NONSENSE, Data, Line
from ..loop import Loop, Silence, Timer
from .head import Head
from .observed import SAY_GOODBYE_S, Observed, Observer

if TYPE_CHECKING:
    from .. import messages


class Leader(Observed):
    """Leader of one job. `own_fd`: the head's end of the line to the agent in this process."""

    def __init__(
        self,
        loop: Loop,
        line: Line,
        own_fd: int,
        run_dir: str,
        lost_after_s: float,
        secret: bytes = b"",
    ) -> None:
        """`line`: to the launcher; `secret`: the job's, if it was dialed."""
        self._secret = secret
        super().__init__(loop, lost_after_s)
        self._own_fd, self._socket_path = own_fd, os.path.join(run_dir, "head.sock")
        self._gate: Gate | None = None
        self._held = True
        self._lease_s = 0.0
        self._lease: Timer | None = None  # running while nobody holds the job
        self._told_holder = False  # about the end
        self._launcher = self._observe(line)
        self._holders = {self._launcher}
        self._supplier: Observer | None = self._launcher  # of the package; None: one that holds the job
        self._supply = FromLauncher(loop, self._launcher.line.send, lambda: self._led.placed)

    @property
    def is_over(self) -> bool:
        """True once the job has ended, or another head has to come, and all observers know it."""
        if self._own_fd >= 0 or self._head is None:
            return self._own_fd < 0
        if self._head.has_left:
            return not any(observer.line.open for observer in self._observers)
        if not self._head.done or self._over_s is None:
            return False
        # The launcher may not follow yet: a job can be refused before.
        followers = [o for o in self._observers if o.cursor is not None or o is self._launcher]
        told = all(o.told_over and o.line.is_idle for o in followers)
        wait_s = 0.0 if self._told_holder else self._head.linger_s
        return (told and not wait_s) or self._loop.now() >= self._over_s + max(wait_s, SAY_GOODBYE_S)

    def wait_for_nobody(self) -> None:
        """End soon after the job, even if no holder connects to learn of its end."""
        self._told_holder = True

    # --- observers ---

    def _lose(self, observer: Observer, reason: str) -> None:
        super()._lose(observer, reason)
        if self._head is None:
            if observer is self._launcher and self._own_fd >= 0:
                os.close(self._own_fd)  # it left without a job: the agent ends by itself
                self._own_fd = -1
        elif observer in self._holders:
            self._leave(observer, reason)

    def _leave(self, holder: Observer, reason: str) -> None:
        """End the job once the lease is over, unless another observer holds it."""
        self._holders.discard(holder)
        if self._holders or not self._held:
            return

        def end() -> None:
            if self._head and not self._head.done:
                self._head.linger_s = 0.0
                since = f" for {self._lease_s:g} s" if self._lease_s else ""
                self._head.stop(signal.SIGHUP, f"the launcher is gone{since}: {reason}")

        if self._lease_s:
            self._lease = self._loop.call_after(self._lease_s, end)
        else:
            end()

    def order_lead(self, observer: Observer, m: messages.LeadMsg) -> None:
        """Lead the job; answer with the addresses for the agents of other nodes."""
        if observer is not self._launcher or self._head is not None:
            self._refuse(observer, "only the launcher begins a job, and once")
            return
        self._supplier = observer if m["supplies"] else None
        placed: job.Placed = job.parse(job.Placed, m["placed"])
        first = placed.nodes[0]
        try:
            addrs = [first.addr] if first.addr else reach.list_candidates(placed.plan.nic)
        except codes.Refusal as e:
            self._refuse(observer, str(e), e.code)
            return
        secret = self._secret if m["secret"] is None else bytes.fromhex(m["secret"])
        gate = Gate(
            self._loop,
            first.addr,
            secret,
            check=self._check,
            admit=self._admit,
            note_refusal=lambda why: self._led.note("warning", f"refused a connection: {why}"),
            port=job.choose_head_port(placed),
        )
        self._listen(self._socket_path)
        self._record_path = os.path.join(record.get_folder(), f"{placed.plan.job_id}.json")
        self._record = record.describe_job(placed, self._socket_path)
        why = record.write_record(self._record_path, {**self._record, "state": "running"})
        if why and m["detach"]:
            gate.close()
            self._refuse(observer, f"later shells could not find it: {why}", codes.IO)
            return
        if placed.plan.trace:
            self._trace = Trace("head")
            observer.line.trace = self._trace.make_note("launcher")
        head = self._head = Head(self._loop, placed, secret.hex(), time.time, self._supply, self._trace)
        self._gate = gate
        own, self._own_fd = self._own_fd, -1
        head.drain, head.settled = self.push, self._tell_places
        head.attach(first, Line(own, own))
        observer.line.send({"type": "leading", "port": gate.port, "addrs": addrs})

    def _tell_places(self) -> None:
        """Send the launcher the nodes' folders, final only now where nodes share one."""
        self._begin_trace()
        self._led.log.keep_in(os.path.join(self._led.placed.nodes[0].log_dir, logs.EVENTS_LOG))
        self._note({"state": "running"})
        places = [(n.log_dir, n.state_dir) for n in self._led.placed.nodes]
        self._launcher.line.send({"type": "places", "places": places})

    def _begin_trace(self) -> None:
        """Write the trace beside the logs of node 0, if that folder exists."""
        if self._trace:
            with contextlib.suppress(OSError):
                log_dir = os.path.expanduser(self._led.placed.nodes[0].log_dir)
                self._trace.begin(os.path.join(log_dir, logs.HEAD_TRACE))

    def order_dispatch(self, observer: Observer, m: messages.DispatchMsg | messages.NoPackageMsg) -> None:
        if observer is self._supplier:
            self._supply.take_answer(m)

    order_no_package = order_dispatch

    def _take(self, observer: Observer, piece: Data) -> None:
        if observer is self._supplier:
            self._supply.take(piece)

    def order_expect(self, observer: Observer, m: messages.ExpectMsg) -> None:
        """Expect the agents of the other nodes, which have got our address."""
        if observer is self._launcher:
            expect = functools.partial(self._expect, float(m["limit_s"]))
            expect()
            if m["again"]:
                self._led.revive = functools.partial(self._revive, expect)

    def push(self) -> None:
        super().push()
        if self._head and self._head.has_left:
            gate, self._gate = self._gate, None
            if gate:
                gate.close()
            for observer in [one for one in self._observers if one.line.is_idle]:
                observer.line.close()

    def _revive(self, expect: Callable[[], None], lost: Sequence[job.Node]) -> Sequence[job.Node]:
        """Let the launcher or the cluster start other agents for lost nodes."""
        self._launcher.line.send({"type": "bring", "nodes": [node.id for node in lost]})
        expect()
        return lost

    def _expect(self, limit_s: float) -> None:
        """Expect the missing agents to dial our gate within this time, unless others are lost meanwhile."""
        head, silence, epoch = self._led, Silence(self._loop.now()), self._led.placed.plan.epoch

        def look() -> None:
            if head.placed.plan.epoch != epoch or not self._gate:
                return
            if silence.measure(self._loop.now()) < limit_s:
                self._loop.call_after(1.0, look)
                return
            for node in filter(None, map(head.find_awaited, range(len(head.placed.nodes)))):
                head.give_up(node, f"its agent never came to port {self._gate.port} of node 0")

        look()

    def order_lease(self, observer: Observer, m: messages.LeaseMsg) -> None:
        """Let another observer hold the job instead of this one; a lease of 0 s is for a free job."""
        if observer is self._launcher:
            self._lease_s, self._led.linger_s = float(m["lease_s"]), float(m["linger_s"])
            self._held = self._lease_s > 0
            self._leave(observer, "it never connected")

    def order_hold(self, observer: Observer, _m: messages.HoldMsg) -> None:
        self._holders.add(observer)
        if self._lease:
            self._lease.cancel()
        if self._supplier is not self._launcher:
            self._supplier = observer
            self._supply.ask_again(observer.line.send)

    def order_free(self, observer: Observer, _m: messages.FreeMsg) -> None:
        self._held &= observer not in self._holders
        if not self._held:
            observer.line.send({"type": "freed"})

    def _tell_over(self, observer: Observer) -> None:
        self._told_holder |= observer in self._holders
        super()._tell_over(observer)

    def _close(self) -> None:
        self._begin_trace()
        super()._close()
        self._supply.close()
        if self._gate:
            self._gate.close()

    # --- the gate ---

    def _check(self, text: bytes) -> str:
        if text == OBSERVER or self._led.find_awaited(_parse_node_number(text)):
            return ""
        return f"node {_parse_node_number(text)} is not of this job, or has connected already"

    def _admit(self, text: bytes, line: Line) -> None:
        if text == OBSERVER:
            self._observe(line)
        elif node := self._led.find_awaited(_parse_node_number(text)):
            self._led.attach(node, line)
        else:  # another has connected since the check
            line.close()


def _parse_node_number(text: bytes) -> int:
    """Return the node number sent by a dialling agent, -1 for none."""
    try:
        said: Any = json.loads(text)
        return int(said["node"])
    except NONSENSE:
        return -1
