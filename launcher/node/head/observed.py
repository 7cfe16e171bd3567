"""The observers of a head: served on any machine with events, status and requests to stop; the job's record.

They speak the wire of agents, over a Unix socket or, at a head on a node, in other ways too.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING, Any, Callable

from .. import codes, logs, procs
from ..later import record
from ..line.wire import Data, Line, Message, MessageLine
from ..loop import Listener, Loop
from ..shapes import check_shape, is_code, is_failure_code

if TYPE_CHECKING:
    from .. import messages
    from ..line.trace import Trace
    from .head import Head

CHUNK, CHUNK_BYTES = 200, 1024 * 1024  # of events in one message: as JSON at most six times as large
PUSH_EVERY_S = 0.125  # an attached head's observers
MAX_OBSERVERS = 64
SAY_GOODBYE_S = 2.0  # for an observer to take the next piece of the last events, or its refusal


class Observer:
    def __init__(self, line: MessageLine[messages.ToObserver]) -> None:
        self.line = line
        self.cursor: int | None = None  # the next event for it, once it follows
        self.told_over = False


class Observed:
    """Server of the observers of one head, once it is there."""

    def __init__(self, loop: Loop, lost_after_s: float) -> None:
        self._loop, self._lost_after_s = loop, lost_after_s
        self._head: Head | None = None
        self._trace: Trace | None = None
        self._record_path = ""
        self._record: messages.JobRecord = {}  # the part that stays
        self._over_s: float | None = None  # end of the job, or of the last piece sent after it
        self._observers: list[Observer] = []

    def _observe(self, own: Line) -> Observer:
        line: MessageLine[messages.ToObserver] = MessageLine(
            self._loop,
            own,
            lost_after_s=self._lost_after_s,
            on_message=lambda m: self._obey(observer, m),
            on_lost=lambda reason: self._lose(observer, reason),
            on_data=lambda piece: self._take(observer, piece),
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

    def _lose(self, observer: Observer, _reason: str) -> None:
        self._observers.remove(observer)

    def _take(self, _observer: Observer, _piece: Data) -> None:
        """Do nothing: observers send no packages."""

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

    @property
    def _led(self) -> Head:
        """The head, once it leads."""
        assert self._head is not None
        return self._head

    def order_follow(self, observer: Observer, m: messages.FollowMsg) -> None:
        is_ours = m.get("of") in (None, self._led.log.begin["time"])
        observer.cursor = int(m["cursor"]) if is_ours else 0

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
                    self._tell_over(observer)
                else:
                    break

    def _tell_over(self, observer: Observer) -> None:
        observer.told_over = True
        observer.line.send({"type": "over", "code": self._led.code})

    def _listen(self, path: str) -> Listener:
        """Listen for later observers; `@` begins an abstract name, which needs no file."""
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        server.bind(procs.name_socket(path))
        server.listen(16)
        return Listener(self._loop, server, self._accept)

    def _accept(self, sock: socket.socket, _address: object) -> None:
        if not procs.is_of_user(sock):
            sock.close()
            return
        fd = sock.detach()
        self._observe(Line(fd, fd))

    # --- the record ---

    def _note(self, changing: messages.JobRecord) -> None:
        """Write the record with the nodes' present folders."""
        known = record.describe_job(self._led.placed, "")
        places: messages.JobRecord = {"places": known["places"], "processes": known["processes"]}
        record.write_record(self._record_path, {**self._record, **places, **changing})

    def _close(self) -> None:
        status = self._led.make_status()
        states = zip(status["processes"], self._led.placed.processes)
        processes = [{**state, "log": process.log} for state, process in states]
        has_setup = self._led.has_setup
        ended: Any = {"state": "ended", "processes": processes, "has_setup": has_setup, **self._led.end,
                      "restarts": status["restarts"]}  # fmt: skip
        self._note(ended)


class Attached(Observed):
    """Server of the observers of a head in the launcher, from the time that the nodes' folders are known."""

    def __init__(self, loop: Loop, head: Head, reach: Any) -> None:
        """reach: of the nodes for later shells, as data; None if they are on this machine."""
        super().__init__(loop, head.placed.plan.limits.lost_after_s)
        self._attached, self._reach = head, reach
        self._listener: Listener | None = None
        head.settled = self._begin

    def _begin(self) -> None:
        """Open the file of events, the record and the socket; called again when addresses are known."""
        head, plan = self._attached, self._attached.placed.plan
        if self._head is None:
            self._head = head
            self._record_path = os.path.join(record.get_folder(), f"{plan.job_id}.json")
            path = f"@pslaunch-{os.urandom(12).hex()}"
            self._record = {**record.describe_job(head.placed, path), "attached": True}
            events = os.path.join(head.placed.nodes[0].log_dir, logs.EVENTS_LOG)
            if self._reach is not None:
                events = os.path.join(record.get_folder(), plan.job_id + record.EVENTS_SUFFIX)
                self._record = {**self._record, "reach": self._reach, "events": events}
            with contextlib.suppress(OSError):  # the job goes on; later shells can't find it
                os.makedirs(record.get_folder(), mode=0o700, exist_ok=True)
                self._listener = self._listen(path)
            head.log.keep_in(events)
            self._loop.call_every(PUSH_EVERY_S, self.push)
        self._note({"state": "running"})

    def close(self) -> None:
        """Tell observers the end, after all events, and record it, if the job has ended."""
        begun_s, ended = self._loop.now(), self._attached.done

        def is_over() -> bool:
            followers = [o for o in self._observers if o.cursor is not None and ended]
            told = all(o.told_over for o in followers) and all(o.line.is_idle for o in self._observers)
            return told or self._loop.now() >= max(begun_s, self._over_s or 0.0) + SAY_GOODBYE_S

        self.push()
        self._loop.run(is_over, [self.push])
        for observer in self._observers:
            observer.line.close()
        if self._listener:
            self._listener.close()
