"""A head on a node: leads the job from there, lets agents in by the gate, serves whoever looks on.

Observers speak over the same wire: the launcher that started the job over the line it has to this
node, later ones over a Unix socket in the run folder. All they can do is `follow`, `status` and `stop`;
the launcher's line also holds the job, until it says `free`.
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

from pslaunch.runtime.shared.env import PSERVER

from .. import codes, job, logs
from ..dispatch.from_launcher import FromLauncher
from ..later import record
from ..line import reach
from ..line.gate import Gate, Seals
from ..line.listener import Listening
from ..line.wire import NONSENSE, Data, Message, MessageLine
from ..loop import Loop
from .head import Head

if TYPE_CHECKING:
    from .. import messages
    from ..line.trace import Trace

CHUNK = 200  # events in one message
SAY_GOODBYE_S = 2.0  # for an observer to take the next piece of what is left to tell, once the job is over


class Observer:
    """One who looks on: its line, and how far it has been told."""

    def __init__(self) -> None:
        self.line: MessageLine[messages.ToObserver] | None = None
        self.cursor: int | None = None  # the next event it gets, once it follows
        self.told_over = False


class Lead:
    """Leads one job. `own_fd` is the head's end of the line to the agent in this process."""

    def __init__(
        self, loop: Loop, read_fd: int, write_fd: int, own_fd: int, run_dir: str, lost_after_s: float
    ) -> None:
        self._loop, self._own_fd, self._run_dir, self._lost_after_s = loop, own_fd, run_dir, lost_after_s
        self._head: Head | None = None
        self._gate: Gate | None = None
        self._held = True
        self._trace: Trace | None = None
        self._record = record.Record("", {})
        self._over_s: float | None = None  # when the job was over, or an observer took a piece after that
        self._listening: Listening | None = None
        self._observers: list[Observer] = []
        self._launcher = self._observe(read_fd, write_fd)
        self._supply = FromLauncher(loop, lambda m: self._answer(self._launcher, m), self._job)

    @property
    def over(self) -> bool:
        """Whether nothing is left to lead, and all who look on have been told."""
        if self._own_fd >= 0 or self._head is None:
            return self._own_fd < 0
        if not self._head.done or self._over_s is None:
            return False
        # The launcher may be about to ask: a job can be refused before it has.
        told = all(
            o.told_over and o.line and o.line.idle
            for o in self._observers
            if o.cursor is not None or o is self._launcher
        )
        return told or self._loop.now() >= self._over_s + SAY_GOODBYE_S

    @property
    def leads(self) -> bool:
        """Whether there is a job that its head can end."""
        return self._head is not None

    # --- observers ---

    def _observe(self, read_fd: int, write_fd: int) -> Observer:
        observer = Observer()
        self._observers.append(observer)  # before its line can break
        observer.line = MessageLine(
            self._loop,
            read_fd,
            write_fd,
            lost_after_s=self._lost_after_s,
            on_message=lambda m: self._obey(observer, m),
            on_lost=lambda reason: self._lost(observer, reason),
            on_data=lambda piece: self._take(observer, piece),
            trace=self._trace and self._trace.of("observer"),
        )
        return observer

    def _lost(self, observer: Observer, reason: str) -> None:
        self._observers.remove(observer)
        if observer is not self._launcher:
            return
        if self._head is None:
            self._give_up()
        elif self._held and not self._head.done:
            self._head.stop(signal.SIGHUP, f"the launcher is gone: {reason}")

    def _give_up(self) -> None:
        """The launcher went before it said what to lead: without a head the agent ends by itself."""
        if self._own_fd >= 0:
            os.close(self._own_fd)
            self._own_fd = -1

    def _obey(self, observer: Observer, m: Message) -> None:
        handler: Callable[[Observer, Message], None] | None = getattr(self, f"_order_{m['type']}", None)
        if handler is None:
            self._refuse(observer, f"unknown request {m['type']!r}")
        elif self._head is None and m["type"] not in ("hello", "lead"):
            self._refuse(observer, "there is no job here yet")
        else:
            handler(observer, m)

    @staticmethod
    def _answer(observer: Observer, message: messages.ToObserver) -> None:
        if observer.line:
            observer.line.send(message)

    def _refuse(self, observer: Observer, text: str, code: int = codes.NODE_LOST) -> None:
        self._answer(observer, {"type": "refused", "code": code, "text": text})

    def _order_hello(self, _observer: Observer, _m: messages.Hello) -> None:
        """The wire has compared the versions already."""

    def _order_lead(self, observer: Observer, m: messages.Lead) -> None:
        """The launcher says what to lead; the answer says where other nodes' agents dial."""
        if observer is not self._launcher or self._head is not None:
            self._refuse(observer, "only the launcher begins a job, and once")
            return
        placed = job.placed_from_data(m["placed"])
        first = placed.nodes[0]
        try:
            addrs = [first.addr] if first.addr else reach.candidates(placed.plan.nic)
        except LookupError as e:
            self._refuse(observer, str(e.args[0]), codes.PREFLIGHT)
            return
        secret = str(m["secret"])
        self._gate = Gate(
            self._loop,
            first.addr,
            bytes.fromhex(secret),
            check=self._check,
            admit=self._admit,
            refused=lambda why: self._warn(f"refused a connection: {why}"),
            port=_gate_port(placed),
        )
        self._listen()
        path = os.path.join(record.folder(os.environ), f"{placed.plan.job_id}.json")
        self._record = record.Record(path, record.of_job(placed, self._socket_path))
        why = self._record.write({"state": "running"})
        if why and m["detach"]:
            self._refuse(observer, f"later shells could not find it: {why}", codes.IO)
            return
        if placed.plan.trace and observer.line:
            from ..line.trace import Trace

            self._trace = Trace("head")
            observer.line.trace = self._trace.of("launcher")
        self._head = Head(self._loop, placed, secret, time.time, self._supply, self._trace)
        own, self._own_fd = self._own_fd, -1
        self._head.drain, self._head.settled = self.push, self._settled
        self._head.attach(first, own, own, lambda: "")
        self._answer(observer, {"type": "leading", "port": self._gate.port, "addrs": addrs})

    def _note(self, changing: messages.JobRecord) -> None:
        """Write the record, with the folders that the nodes have by now."""
        known = record.of_job(self._job(), "")
        self._record.write({"places": known["places"], "processes": known["processes"]} | changing)

    def _settled(self) -> None:
        """Where nodes share a folder, only now is known which are theirs."""
        self._begin_trace()
        self._note({"state": "running"})
        places = [(n.log_dir, n.state_dir) for n in self._job().nodes]
        self._answer(self._launcher, {"type": "places", "places": places})

    def _begin_trace(self) -> None:
        """Write beside the logs of node 0 what there is by now; a folder that was never made gets nothing."""
        if self._trace:
            with contextlib.suppress(OSError):
                log_dir = os.path.expanduser(self._job().nodes[0].log_dir)
                self._trace.begin(os.path.join(log_dir, logs.HEAD_TRACE))

    def _job(self) -> job.Placed:
        assert self._head is not None
        return self._head.placed

    def _order_dispatch(self, observer: Observer, m: messages.Dispatch | messages.NoPackage) -> None:
        if observer is self._launcher:
            self._supply.heard(m)

    _order_no_package = _order_dispatch

    def _take(self, observer: Observer, piece: Data) -> None:
        if observer is self._launcher:
            self._supply.take(piece)

    def _order_expect(self, observer: Observer, _m: messages.Expect) -> None:
        """The other nodes' agents know where to dial."""
        if observer is self._launcher and self._head and self._gate:
            self._head.expect(self._gate.port)

    def _order_free(self, observer: Observer, _m: messages.Free) -> None:
        """The job goes on without the launcher."""
        if observer is self._launcher:
            self._held = False
            self._answer(observer, {"type": "freed"})

    def _order_follow(self, observer: Observer, m: messages.Follow) -> None:
        observer.cursor = int(m["cursor"])

    def _order_status(self, observer: Observer, _m: messages.StatusRequest) -> None:
        assert self._head is not None
        self._answer(observer, {"type": "status", **self._head.status()})

    def _order_stop(self, observer: Observer, m: messages.Stop) -> None:
        assert self._head is not None
        self._answer(observer, {"type": "stopping"})
        self._head.stop(int(m["number"]), str(m["reason"]), int(m["code"]))

    def push(self) -> None:
        """Give each observer that keeps up what is new; call it after each round of the loop."""
        if self._head is None:
            return
        if self._head.done and self._over_s is None:
            self._over_s = self._loop.now()
            self._close()
        for observer in list(self._observers):  # one whose line breaks is removed meanwhile
            while observer.cursor is not None and observer.line and observer.line.open and observer.line.idle:
                events, following = self._head.events(observer.cursor, CHUNK)
                if events:
                    observer.cursor = following
                    observer.line.send({"type": "events", "events": events})
                    self._over_s = self._loop.now() if self._head.done else None
                elif self._head.done and not observer.told_over:
                    observer.told_over = True
                    observer.line.send({"type": "over", "code": self._head.code})
                else:
                    break

    # --- the doors ---

    @property
    def _socket_path(self) -> str:
        return os.path.join(self._run_dir, "head.sock")

    def _listen(self) -> None:
        """The door of later observers: the run folder is the user's alone."""
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        server.bind(self._socket_path)
        server.listen(16)
        self._listening = Listening(self._loop, server, self._come_in)

    def _come_in(self, sock: socket.socket, _address: object) -> None:
        fd = sock.detach()
        self._observe(fd, fd)

    def _check(self, text: bytes) -> str:
        assert self._head is not None
        node = _node_number(text)
        return "" if self._head.awaits(node) else f"node {node} is none of this job, or is there already"

    def _admit(self, text: bytes, fd: int, seals: Seals) -> None:
        assert self._head is not None
        node = self._head.awaits(_node_number(text))
        if node is None:
            os.close(fd)
        else:
            self._head.attach(node, fd, fd, lambda: "", seals)

    def _warn(self, text: str) -> None:
        if self._head is not None:
            self._head.note("warning", text)

    def _close(self) -> None:
        assert self._head is not None
        self._begin_trace()
        states = zip(self._head.status()["processes"], self._head.placed.processes)
        processes = [{**state, "log": process.log} for state, process in states]
        end = self._head.end
        self._note({"state": "ended", "processes": processes, "code": end["code"], "reason": end["reason"],
                    "elapsed_s": end["elapsed_s"], "failure": end["failure"]})  # fmt: skip
        self._supply.close()
        if self._gate:
            self._gate.close()
        if self._listening:
            self._listening.close()


def _gate_port(placed: job.Placed) -> int:
    """Where the user gave the pservers' first port, the next one that can't be any pserver's; else 0, any."""
    plan = placed.plan
    of_pservers = len(placed.of(PSERVER)) * (plan.ports_num + plan.ports_num_for_sparse)
    port = plan.port + max(1, of_pservers) if plan.port else 0  # doors are at the first one, pserver or not
    return port if port < 1 << 16 else 0


def _node_number(text: bytes) -> int:
    """The node that a dialling agent says it is; -1 where it says none."""
    try:
        said: Any = json.loads(text)
        return int(said["node"])
    except NONSENSE:
        return -1
