"""Remote heads: the interface of a head over a line, on the launcher's side."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..backends.lines import Line
from ..errors import PslaunchError
from ..node import codes
from ..node.dispatch.dispatch import Supply
from ..node.dispatch.to_head import ToHead
from ..node.head.events import Event, RecentEvents
from ..node.head.supervisor import make_loss
from ..node.job import Node, Placed, Plan, to_data
from ..node.later.record import STATUS_SHAPE
from ..node.line.reach import check_addrs
from ..node.line.wire import MessageLine
from ..node.logs import clean_all
from ..node.loop import Loop, ignore
from ..node.shapes import MOST_COUNTED, check_shape, is_code, is_count, is_failure_code, is_port

if TYPE_CHECKING:
    from ..node import messages
    from ..node.line.trace import Note

# Answers of a head; the last of each kind is kept.
ANSWERS: Mapping[str, Any] = {
    "leading": {"port": is_port, "addrs": [str]},
    "places": {"places": [[str]]},
    "bring": {"nodes": [is_count]},
    "refused": {"code": is_failure_code, "text": str},
    "status": {**STATUS_SHAPE, "events": int, "begin?": dict},
    "stopping": {},
    "freed": {},
}
SLOW_S = 1.0  # limit for a head to confirm a request to end
GIVE_UP_S = 8.0  # after a second request to end; a healthy head needs at most 7


class RemoteHead:
    """Head at the other end of a line. `answers` keeps messages other than events, by type."""

    def __init__(
        self,
        loop: Loop,
        line: Line,
        *,
        name: str,
        lost_after_s: float,
        supply: Supply | None = None,
        trace: Note | None = None,
        reopen: Callable[[], Line | Event] | None = None,
    ) -> None:
        """`reopen`: returns a new line for a lost one, or the event `end` of a job that is over. Slow."""
        self._loop, self._name = loop, name
        self._lost_after_s, self._trace, self._reopen = lost_after_s, trace, reopen
        # The job that it leads, with the nodes' actual folders once they are known.
        self.placed = Placed(Plan(job_id="JOB_ID"), (), ())
        self._events = RecentEvents()
        self._next = 0
        self._first_time: float | None = None  # of an event, by the head's clock
        self._begun: tuple[int, float | None] = 0, None  # number here, and time, of the head's first event
        self._code: int | None = None
        self._end_code: int | None = None  # as in its `end` event
        self.stops: list[messages.StopMsg] = []  # our requests to end
        self._closed = False
        self.lost = ""  # why the line was lost before the job ended
        self.told = False  # any message has arrived
        self.on_slow: Callable[[str], None] = lambda _text: None  # called if the head does not answer
        self.bring: Callable[[Sequence[Node]], object] = ignore  # starts agents for lost nodes
        self.answers: dict[str, Any] = {}
        self._supply = supply
        self._take_line(line)

    def _take_line(self, line: Line) -> None:
        self._diagnosis = line.diagnosis
        self._line: MessageLine[messages.OfObserver] = MessageLine(
            self._loop,
            line,
            lost_after_s=self._lost_after_s,
            on_message=self._handle,
            on_lost=self._lose_line,
            trace=self._trace,
        )
        self._package = ToHead(self._loop, self._line, self._supply, self._lose)

    # --- the interface of a head, as of node/head/head.py ---

    @property
    def done(self) -> bool:
        return self._code is not None

    @property
    def code(self) -> int:
        return codes.NODE_LOST if self._code is None else self._code

    def list_events(self, cursor: int) -> tuple[list[Event], int]:
        told = self._events.list_with_gaps(cursor)  # dropped by the head, or here
        return told, told[-1]["n"] + 1 if told else max(cursor, self._next)

    def stop(self, number: int, reason: str, code: int = 0) -> None:
        self.stops.append({"type": "stop", "number": number, "reason": reason, "code": code})
        self._line.send(self.stops[-1])
        if len(self.stops) == 1:
            self._loop.call_after(SLOW_S, self._report_slow)
        elif len(self.stops) == 2:
            self._loop.call_after(GIVE_UP_S, self._give_up)

    def _report_slow(self) -> None:
        if not self.done and "stopping" not in self.answers:
            text = f"{self._name} does not answer the request to end the job"
            self.on_slow(f"{text}; {GIVE_UP_S:g} s after a second request it is given up")

    def _give_up(self) -> None:
        if not self.done:
            self._lose(f"did not end {GIVE_UP_S:g} s after a second request; its keeper will end it")

    # --- requests ---

    def lead(self, placed: Placed, secret: str, *, detach: bool = False) -> tuple[int, tuple[str, ...]]:
        """Let the node lead this job; returns port and addresses that agents dial, port 0 if it refuses.

        detach: refuse unless later shells will find the job.
        """
        self.placed = placed
        told = None if self._line.is_sealed else secret
        lead: messages.LeadMsg = {
            "type": "lead", "placed": to_data(placed), "secret": told, "detach": detach, "supplies": True,
        }  # fmt: skip
        answer: messages.LeadingMsg | None = self._ask(lead, "leading")
        return (int(answer["port"]), tuple(answer["addrs"])) if answer else (0, ())

    def expect(self, bring: Callable[[Sequence[Node]], object] | None) -> None:
        """Tell that all agents have the address. bring: lets others dial it for nodes that are lost."""
        self.bring = bring or self.bring
        self._line.send({"type": "expect", "limit_s": self._lost_after_s, "again": bring is not None})

    def follow(self, cursor: int = 0) -> None:
        """Request all further events, from the first after `cursor` that the head still has."""
        self._next = max(self._next, cursor)
        self._line.send({"type": "follow", "cursor": self._next - self._begun[0], "of": self._begun[1]})

    def hold(self, placed: Placed) -> None:
        """Follow the job that a head leads, which may end once our line is lost for its lease."""
        self.placed = placed
        self._line.send({"type": "hold"})
        self.follow()

    def take_end(self, placed: Placed, end: Event) -> None:
        """End with the event `end` of a job whose head is over."""
        self.placed = placed
        self._keep({**end, "n": self._next})
        self._code = end["code"]
        self.close()

    def free(self) -> bool:
        """Let the job run on without this launcher; returns False if the head refuses."""
        return bool(self._ask({"type": "free"}, "freed"))

    def get_status(self) -> messages.StatusMsg | None:
        """Return the job's status; None if the head does not answer."""
        status: messages.StatusMsg | None = self._ask({"type": "status"}, "status")
        return status

    def _ask(self, request: messages.OfObserver, kind: str) -> Any:
        """Wait for the answer of this kind; None if the line is lost, or the head refuses."""
        for old in (kind, "refused"):
            self.answers.pop(old, None)
        self._line.send(request)
        self._loop.run(lambda: kind in self.answers or "refused" in self.answers or self.done)
        return self.answers.pop(kind, None)

    def close(self) -> None:
        """Close the line. May be called twice."""
        self._closed = True
        self._line.close()
        self._package.close()

    # --- the line ---

    def _handle(self, message: messages.ToObserver) -> None:
        self.told = True
        if message["type"] == "events":
            for event in message["events"]:
                if event["n"] == 0 and event["event"] == "job":
                    self._begun = self._next, event["time"]
                number = self._begun[0] + event["n"]
                if not self._next <= number < MOST_COUNTED:
                    raise ValueError(f"event {event['n']} after {self._next - self._begun[0] - 1}")
                self._keep({**event, "n": number})
        elif message["type"] == "over":
            check_shape(message["code"], is_code, "code")
            if self._end_code not in (None, message["code"]):
                raise ValueError(f"the job has ended with {self._end_code}")
            self._code = message["code"]
            self.close()  # its agent ends now, which is not a loss
        elif message["type"] in ANSWERS:
            check_shape(message, ANSWERS[message["type"]], message["type"])
            if message["type"] == "leading":
                check_addrs(message["addrs"])
            elif message["type"] == "bring":
                self.bring([self.placed.nodes[node] for node in message["nodes"]])
            elif message["type"] == "places":
                told = zip(self.placed.nodes, message["places"], strict=True)
                nodes = tuple(n._replace(log_dir=logs, state_dir=state) for n, (logs, state) in told)
                self.placed = self.placed._replace(nodes=nodes)
            # Cleaned here, where a nesting too deep for it is an error of the head.
            self.answers[message["type"]] = clean_all(message) if message["type"] == "status" else message
        else:
            self._package.hear(message)

    def _keep(self, event: Event) -> None:
        self._events.add(event)  # which checks it
        if self._first_time is None:
            self._first_time = event["time"]
        self._next = event["n"] + 1
        if event["event"] == "end":
            self._end_code = event["code"]

    def _lose_line(self, reason: str) -> None:
        """Open a lost line again, if that is possible."""
        self._package.close()
        if not self._reopen:
            self._lose(reason)
            return
        said = self._diagnosis()
        why = reason + (f"; {said}" if said else "")
        self.on_slow(f"the line to {self._name} was lost, and is opened again: {why}")
        self._loop.do_aside(self._reopen, self._resume, self._fail_to_resume)

    def _resume(self, found: Line | Event) -> None:
        if not isinstance(found, Line):
            if not self._closed:
                self.take_end(self.placed, found)
        elif self._closed:
            found.close()
        else:
            self._take_line(found)
            self.hold(self.placed)
            for stop in self.stops:
                self._line.send(stop)

    def _fail_to_resume(self, e: Exception) -> None:
        if not isinstance(e, PslaunchError):
            raise e
        if not self._closed:
            self._lose(str(e))

    def _lose(self, reason: str) -> None:
        self.close()
        said, reason = self._diagnosis(), self.answers.get("refused", {"text": reason})["text"]
        why = f"its agent: {reason}" + (f"; {said}" if said else "")
        pause = self._loop.describe_pause(self._lost_after_s)
        failure = make_loss(self.placed.plan, self._name, 0, why, "the launcher", pause)
        end: Event = {"code": codes.NODE_LOST, "reason": failure.why}
        self.lost = end["reason"]
        for stop in self.stops[:1]:  # later failures are not the reason of the end
            code = stop["code"] or codes.SIGNAL_BASE + stop["number"]
            end = {"code": code, "reason": f"{stop['reason']}; then {self.lost}"}
        now = time.time()
        elapsed_s = max(0.0, round(now - (self._first_time or now), 3))  # the head's clock may be ahead
        self._keep({"n": self._next, "time": round(now, 3), "event": "end", **end, "elapsed_s": elapsed_s,
                    "failure": None if self.stops else failure._asdict()})  # fmt: skip
        self._code = end["code"]
