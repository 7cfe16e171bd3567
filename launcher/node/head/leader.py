"""A head on a node: leads the job, admits agents through the gate, serves observers.

Observers speak the same wire: the launcher that started the job over its line to this node, later ones over
a Unix socket in the run folder, or through the gate with proof of the secret. They may only `follow`,
`status`, `stop` and `hold`. The job ends when the lines of all its holders, at first the launcher alone,
have been lost for the lease, unless it is free.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import codes, job, logs
from ..dispatch.from_launcher import FromLauncher
from ..later import record
from ..line import reach
from ..line.gate import OBSERVER, Gate, Seals
from ..line.listener import Listener
from ..line.trace import Trace
from ..line.wire import NONSENSE, Data, Message, MessageLine
from ..loop import Loop, Timer
from ..shapes import check_shape, is_code, is_failure_code
from .head import Head

if TYPE_CHECKING:
    from .. import messages

CHUNK, CHUNK_BYTES = 200, 1024 * 1024  # of events in one message: as JSON at most six times as large
MAX_OBSERVERS = 64
SAY_GOODBYE_S = 2.0  # for an observer to take the next piece of the last events, or its refusal


class Observer:
    """An observer: its line, and its position in the events."""

    def __init__(self, line: MessageLine[messages.ToObserver]) -> None:
        self.line = line
        self.cursor: int | None = None  # the next event for it, once it follows
        self.told_over = False


class Leader:
    """Leader of one job. `own_fd`: the head's end of the line to the agent in this process."""

    def __init__(
        self,
        loop: Loop,
        read_fd: int,
        write_fd: int,
        own_fd: int,
        run_dir: str,
        lost_after_s: float,
        seals: Seals | None = None,
        secret: bytes = b"",
    ) -> None:
        """`seals`, `secret`: of the launcher's line, if it was dialed."""
        self._secret = secret
        self._loop, self._own_fd, self._lost_after_s = loop, own_fd, lost_after_s
        self._socket_path = os.path.join(run_dir, "head.sock")
        self._head: Head | None = None
        self._gate: Gate | None = None
        self._held = True
        self._lease_s = self._linger_s = 0.0
        self._lease: Timer | None = None  # running while nobody holds the job
        self._lease_is_over = self._holders_supply = False
        self._told_holder = False  # about the end
        self._trace: Trace | None = None
        self._record_path = ""
        self._record: messages.JobRecord = {}  # the part that stays
        self._over_s: float | None = None  # end of the job, or of the last piece sent after it
        self._observers: list[Observer] = []
        self._launcher = self._observe(read_fd, write_fd, seals)
        self._holders = {self._launcher}
        self._supplier = self._launcher  # of the package
        self._supply = FromLauncher(loop, self._launcher.line.send, lambda: self._led.placed)

    @property
    def is_over(self) -> bool:
        """True once the job has ended and all observers know it."""
        if self._own_fd >= 0 or self._head is None:
            return self._own_fd < 0
        if not self._head.done or self._over_s is None:
            return False
        # The launcher may not follow yet: a job can be refused before.
        followers = [o for o in self._observers if o.cursor is not None or o is self._launcher]
        told = all(o.told_over and o.line.is_idle for o in followers)
        wait_s = 0.0 if self._told_holder else self._choose_linger_s()
        return (told and not wait_s) or self._loop.now() >= self._over_s + max(wait_s, SAY_GOODBYE_S)

    def wait_for_nobody(self) -> None:
        """End soon after the job, even if no holder connects to learn of its end."""
        self._told_holder = True

    # --- observers ---

    def _observe(self, read_fd: int, write_fd: int, seals: Seals | None = None) -> Observer:
        line: MessageLine[messages.ToObserver] = MessageLine(
            self._loop,
            read_fd,
            write_fd,
            lost_after_s=self._lost_after_s,
            on_message=lambda m: self._obey(observer, m),
            on_lost=lambda reason: self._lose(observer, reason),
            on_data=lambda piece: self._take(observer, piece),
            seals=seals,
            trace=self._trace and self._trace.make_note("observer"),
        )
        observer = Observer(line)
        self._observers.append(observer)
        if len(self._observers) > MAX_OBSERVERS:
            self._refuse(observer, f"{MAX_OBSERVERS} shells follow this job already: end one of them")
            self._loop.call_after(SAY_GOODBYE_S, lambda: self._dismiss(observer))
        return observer

    def _dismiss(self, observer: Observer) -> None:
        if observer.line.open:
            observer.line.close()
            self._lose(observer, "refused")

    def _lose(self, observer: Observer, reason: str) -> None:
        self._observers.remove(observer)
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
                self._lease_is_over = True
                since = f" for {self._lease_s:g} s" if self._lease_s else ""
                self._head.stop(signal.SIGHUP, f"the launcher is gone{since}: {reason}")

        if self._lease_s:
            self._lease = self._loop.call_after(self._lease_s, end)
        else:
            end()

    def _obey(self, observer: Observer, m: Message) -> None:
        handler: Callable[[Observer, Message], None] | None = getattr(self, f"order_{m['type']}", None)
        if handler is None:
            self._refuse(observer, f"unknown request {m['type']!r}")
        elif self._head is None and m["type"] not in ("hello", "lead"):
            self._refuse(observer, "no job has begun here yet")
        else:
            handler(observer, m)

    def _refuse(self, observer: Observer, text: str, code: int = codes.NODE_LOST) -> None:
        observer.line.send({"type": "refused", "code": code, "text": text})

    def order_hello(self, _observer: Observer, _m: messages.HelloMsg) -> None:
        """Do nothing: the wire has compared the versions."""

    def order_lead(self, observer: Observer, m: messages.LeadMsg) -> None:
        """Lead the job; answer with the addresses for the agents of other nodes."""
        if observer is not self._launcher or self._head is not None:
            self._refuse(observer, "only the launcher begins a job, and once")
            return
        self._holders_supply = not m["supplies"]
        placed: job.Placed = job.parse(job.Placed, m["placed"])
        first = placed.nodes[0]
        try:
            addrs = [first.addr] if first.addr else reach.list_candidates(placed.plan.nic)
        except codes.Refusal as e:
            self._refuse(observer, str(e), e.code)
            return
        secret = self._secret.hex() if m["secret"] is None else str(m["secret"])
        self._gate = Gate(
            self._loop,
            first.addr,
            bytes.fromhex(secret),
            check=self._check,
            admit=self._admit,
            note_refusal=lambda why: self._warn(f"refused a connection: {why}"),
            port=job.choose_head_port(placed),
        )
        self._listen()
        self._record_path = os.path.join(record.get_folder(), f"{placed.plan.job_id}.json")
        self._record = record.describe_job(placed, self._socket_path)
        why = record.write_record(self._record_path, {**self._record, "state": "running"})
        if why and m["detach"]:
            self._refuse(observer, f"later shells could not find it: {why}", codes.IO)
            return
        if placed.plan.trace:
            self._trace = Trace("head")
            observer.line.trace = self._trace.make_note("launcher")
        self._head = Head(self._loop, placed, secret, time.time, self._supply, self._trace)
        own, self._own_fd = self._own_fd, -1
        self._head.drain, self._head.settled = self.push, self._tell_places
        self._head.choose_linger_s = self._choose_linger_s
        self._head.attach(first, own, own, lambda: "")
        observer.line.send({"type": "leading", "port": self._gate.port, "addrs": addrs})

    def _note(self, changing: messages.JobRecord) -> None:
        """Write the record with the nodes' present folders."""
        known = record.describe_job(self._led.placed, "")
        places: messages.JobRecord = {"places": known["places"], "processes": known["processes"]}
        record.write_record(self._record_path, {**self._record, **places, **changing})

    def _tell_places(self) -> None:
        """Send the launcher the nodes' folders, final only now where nodes share one."""
        self._begin_trace()
        self._note({"state": "running"})
        places = [(n.log_dir, n.state_dir) for n in self._led.placed.nodes]
        self._launcher.line.send({"type": "places", "places": places})

    def _begin_trace(self) -> None:
        """Write the trace beside the logs of node 0, if that folder exists."""
        if self._trace:
            with contextlib.suppress(OSError):
                log_dir = os.path.expanduser(self._led.placed.nodes[0].log_dir)
                self._trace.begin(os.path.join(log_dir, logs.HEAD_TRACE))

    @property
    def _led(self) -> Head:
        """The head, once it leads."""
        assert self._head is not None
        return self._head

    def order_dispatch(self, observer: Observer, m: messages.DispatchMsg | messages.NoPackageMsg) -> None:
        if observer is self._supplier:
            self._supply.take_answer(m)

    order_no_package = order_dispatch

    def _take(self, observer: Observer, piece: Data) -> None:
        if observer is self._supplier:
            self._supply.take(piece)

    def order_expect(self, observer: Observer, m: messages.ExpectMsg) -> None:
        """Expect the agents of the other nodes, which have got our address."""
        if observer is self._launcher and self._head and self._gate:
            self._head.expect(self._gate.port, float(m["limit_s"]))

    def order_lease(self, observer: Observer, m: messages.LeaseMsg) -> None:
        """Let another observer hold the job instead of this one; a lease of 0 s is for a free job."""
        if observer is self._launcher:
            self._lease_s, self._linger_s = float(m["lease_s"]), float(m["linger_s"])
            self._held = self._lease_s > 0
            self._leave(observer, "it never connected")

    def order_hold(self, observer: Observer, _m: messages.HoldMsg) -> None:
        self._holders.add(observer)
        if self._lease:
            self._lease.cancel()
        if self._holders_supply:
            self._supplier = observer
            self._supply.ask_again(observer.line.send)

    def _choose_linger_s(self) -> float:
        """Return the time for which nodes stay after the end, since a launcher will fetch their files."""
        return 0.0 if self._lease_is_over else self._linger_s

    def order_free(self, observer: Observer, _m: messages.FreeMsg) -> None:
        self._held &= observer not in self._holders
        if not self._held:
            observer.line.send({"type": "freed"})

    def order_follow(self, observer: Observer, m: messages.FollowMsg) -> None:
        observer.cursor = int(m["cursor"])

    def order_status(self, observer: Observer, _m: messages.StatusRequestMsg) -> None:
        observer.line.send({"type": "status", **self._led.make_status()})

    def order_stop(self, observer: Observer, m: messages.StopMsg) -> None:
        check_shape(codes.SIGNAL_BASE + m["number"], is_failure_code, "number")
        check_shape(m["code"], is_code, "code")
        observer.line.send({"type": "stopping"})
        self._led.stop(m["number"], str(m["reason"]), m["code"])

    def push(self) -> None:
        """Send new events to each observer that keeps up; called after each round of the loop."""
        if self._head is None:
            return
        if self._head.done and self._over_s is None:
            self._over_s = self._loop.now()
            self._close()
        for observer in list(self._observers):  # an observer with a broken line is removed meanwhile
            while observer.cursor is not None and observer.line.open and observer.line.is_idle:
                events, following = self._head.list_events(observer.cursor, CHUNK, CHUNK_BYTES)
                if events:
                    observer.cursor = following
                    observer.line.send({"type": "events", "events": events})
                    self._over_s = self._loop.now() if self._head.done else None
                elif self._head.done and not observer.told_over:
                    observer.told_over = True
                    self._told_holder |= observer in self._holders
                    observer.line.send({"type": "over", "code": self._head.code})
                else:
                    break

    # --- the doors ---

    def _listen(self) -> None:
        """Listen for later observers in the run folder, which is private to the user."""
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        server.bind(self._socket_path)
        server.listen(16)
        Listener(self._loop, server, self._accept)

    def _accept(self, sock: socket.socket, _address: object) -> None:
        fd = sock.detach()
        self._observe(fd, fd)

    def _check(self, text: bytes) -> str:
        if text == OBSERVER or self._led.find_awaited(_parse_node_number(text)):
            return ""
        return f"node {_parse_node_number(text)} is not of this job, or has connected already"

    def _admit(self, text: bytes, fd: int, seals: Seals) -> None:
        node = self._led.find_awaited(_parse_node_number(text))
        if text == OBSERVER:
            self._observe(fd, fd, seals)
        elif node is None:
            os.close(fd)
        else:
            self._led.attach(node, fd, fd, lambda: "", seals)

    def _warn(self, text: str) -> None:
        if self._head is not None:
            self._head.note("warning", text)

    def _close(self) -> None:
        self._begin_trace()
        states = zip(self._led.make_status()["processes"], self._led.placed.processes)
        processes = [{**state, "log": process.log} for state, process in states]
        has_setup = self._led.has_setup
        ended: Any = {"state": "ended", "processes": processes, "has_setup": has_setup, **self._led.end}
        self._note(ended)
        self._supply.close()
        if self._gate:
            self._gate.close()


def _parse_node_number(text: bytes) -> int:
    """Return the node number sent by a dialling agent, -1 for none."""
    try:
        said: Any = json.loads(text)
        return int(said["node"])
    except NONSENSE:
        return -1
