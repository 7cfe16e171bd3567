"""The launcher's view of a head that is elsewhere: the same interface as the head itself, over a line."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from ..backends.base import Line
from ..node import codes
from ..node.dispatch.head_side import Supply, explain_failure
from ..node.dispatch.sender import Sender, Source
from ..node.head.events import Event, Recent
from ..node.head.supervise import lost_advice
from ..node.job import Placed, to_data
from ..node.later.record import STATUS
from ..node.line.reach import check_addrs
from ..node.line.wire import MessageLine
from ..node.logs import clean_all
from ..node.loop import Aside, Loop
from ..node.shapes import check, is_code, is_failure_code, is_port

if TYPE_CHECKING:
    from ..node import messages
    from ..node.line.trace import Note

# What a head answers, of which the last of each kind is kept.
ANSWERS: Mapping[str, Any] = {
    "leading": {"port": is_port, "addrs": [str]},
    "places": {"places": [[str]]},
    "refused": {"code": is_failure_code, "text": str},
    "status": {**STATUS, "events": int},
    "stopping": {},
    "freed": {},
}
SLOW_S = 1.0  # for a head to show that it heard a request to end
GIVE_UP_S = 8.0  # after a second request to end; a head that nobody sends to is done with it in 7


class HeadView(Protocol):
    """What session and view know of a head, wherever it is (node/head.py has the same)."""

    @property
    def done(self) -> bool:
        """Whether the job is over."""
        ...

    @property
    def code(self) -> int:
        """The job's exit code, once done."""
        ...

    def events(self, cursor: int, limit: int | None = None) -> tuple[list[Event], int]:
        """What happened from number `cursor` on, and the next cursor."""
        ...

    def stop(self, number: int, reason: str, code: int = 0) -> None:
        """Request the end: the first time in order, the second at once. The job's code is 128 + `number`,
        or `code` where one is given."""
        ...


class RemoteHead:
    """A head at the other end of a line. `answers` keeps what is no event, by its type."""

    def __init__(
        self,
        loop: Loop,
        line: Line,
        *,
        name: str,
        lost_after_s: float,
        supply: Supply | None = None,
        trace: Note | None = None,
    ) -> None:
        self._loop, self._name, self._diagnosis = loop, name, line.diagnosis
        self._job_id = "JOB_ID"  # until it leads one
        self._supply = supply
        self._sender: Sender | None = None  # of the package to the node of the head
        self._aside: Aside | None = None  # where it reads
        self._events = Recent()
        self._next = 0
        self._code: int | None = None
        self._end_code: int | None = None  # as its last event says it
        self._stopped: tuple[int, str] | None = None  # the code and the reason that we have asked for
        self._hurried = False  # asked for twice
        self.lost = ""  # why nothing more is heard of a job that was not over
        self.told = False  # whether it has said anything
        self.on_slow: Callable[[str], None] = lambda _text: None  # what to tell while it does not answer
        self.answers: dict[str, Any] = {}
        self._line: MessageLine[messages.OfObserver] = MessageLine(
            loop,
            line.read_fd,
            line.write_fd,
            lost_after_s=lost_after_s,
            on_message=self._heard,
            on_lost=self._lost,
            seals=line.seals,
            trace=trace,
        )

    # --- the interface of a head ---

    @property
    def done(self) -> bool:
        return self._code is not None

    @property
    def code(self) -> int:
        return codes.NODE_LOST if self._code is None else self._code

    def events(self, cursor: int, limit: int | None = None) -> tuple[list[Event], int]:
        told: list[Event] = []
        for event in self._events.since(cursor, limit):
            if event["n"] > cursor:  # forgotten by the head, or here
                told.append(_missing(event, event["n"] - cursor))
            told.append(event)
            cursor = event["n"] + 1
        return told, cursor if told else max(cursor, self._next)

    def stop(self, number: int, reason: str, code: int = 0) -> None:
        if not self._stopped:
            self._loop.call_after(SLOW_S, self._slow)
        elif not self._hurried:
            self._hurried = True
            self._loop.call_after(GIVE_UP_S, self._give_up)
        self._stopped = self._stopped or (code or codes.SIGNAL_BASE + number, reason)
        self._line.send({"type": "stop", "number": number, "reason": reason, "code": code})

    def _slow(self) -> None:
        if not self.done and "stopping" not in self.answers:
            text = f"{self._name} was told to end the job, and does not answer"
            self.on_slow(f"{text}; asked once more, it gets {GIVE_UP_S:g} s")

    def _give_up(self) -> None:
        if not self.done:
            self._lost(f"asked twice to end, it did not for {GIVE_UP_S:g} s; its keeper will")

    @property
    def refusal(self) -> str:
        """Why the head refused the last request; "" where it did not."""
        return str(self.answers.get("refused", {}).get("text", ""))

    # --- requests ---

    def lead(self, placed: Placed, secret: str, *, detach: bool = False) -> tuple[int, tuple[str, ...]]:
        """Have the node lead this job; port and addresses that agents dial, port 0 where it does not.

        detach: only where later shells will find the job.
        """
        self._job_id = placed.plan.job_id
        self._line.send({"type": "lead", "placed": to_data(placed), "secret": secret, "detach": detach})
        answer: messages.Leading | None = self.ask("leading")
        return (int(answer["port"]), tuple(answer["addrs"])) if answer else (0, ())

    def expect(self) -> None:
        """The other nodes' agents were told where to dial."""
        self._line.send({"type": "expect"})

    def follow(self) -> None:
        """Have all events sent, from the first that is remembered."""
        self._line.send({"type": "follow", "cursor": 0})

    def free(self) -> bool:
        """Let the job go on without us."""
        self._line.send({"type": "free"})
        return bool(self.ask("freed"))

    def status(self) -> messages.Status | None:
        """Return how the job stands; None where the head does not answer."""
        self._line.send({"type": "status"})
        status: messages.Status | None = clean_all(self.ask("status"))
        return status

    def ask(self, kind: str) -> Any:
        """Return the answer of this kind, once it has come; None if the line is lost, or the head refuses."""
        for old in (kind, "refused"):
            self.answers.pop(old, None)
        self._loop.run(lambda: kind in self.answers or "refused" in self.answers or self.done)
        return self.answers.pop(kind, None)

    def close(self) -> None:
        """Say no more. May be called twice."""
        self._line.close()
        if self._aside and self._sender:
            self._aside.do(self._sender.close, lambda _failed: None)
            self._aside.close()
        self._sender = self._aside = None

    # --- the line ---

    def _heard(self, message: messages.ToObserver) -> None:
        self.told = True
        if message["type"] == "events":
            for event in message["events"]:
                self._keep(event)
        elif message["type"] == "over":
            check(message["code"], is_code, "code")
            if self._end_code not in (None, message["code"]):
                raise ValueError(f"the job has ended with {self._end_code}")
            self._code = message["code"]
            self.close()  # its agent ends now, which is no loss any more
        elif message["type"] == "wants":
            self._send_package()
        elif message["type"] == "lacks" and self._sender:
            self._lacks(self._sender, message)
        elif message["type"] == "received" and self._sender:
            self._sender.received(message)
        elif message["type"] in ANSWERS:
            check(message, ANSWERS[message["type"]], message["type"])
            if message["type"] == "leading":
                check_addrs(message["addrs"])
            self.answers[message["type"]] = message

    def _send_package(self) -> None:
        """The node of the head is to be filled by us."""

        def failed(e: Exception) -> None:
            code, text = explain_failure(e)
            self._line.send({"type": "no_package", "code": code, "text": text})

        def send(source: Source) -> None:
            if self._line.open and self._sender is None:
                self._aside = Aside(self._loop)
                self._sender = Sender(self._aside, source, self._line, failed=failed)

        if self._supply:
            self._supply.get(send, failed, None, lambda _far: None)

    def _lacks(self, sender: Sender, m: messages.Lacks) -> None:
        def answer() -> None:
            try:
                sender.lacks(m)
            except (ValueError, KeyError, TypeError) as e:
                self._lost(f"asks for {e}")

        if m.get("files"):
            sender.when_read(answer)
        else:
            answer()

    def _keep(self, event: Event) -> None:
        if event["n"] < self._next:
            raise ValueError(f"event {event['n']} after {self._next - 1}")
        self._events.add(event)
        self._next = event["n"] + 1
        if event["event"] == "end":
            self._end_code = event["code"]

    def _lost(self, reason: str) -> None:
        self.close()
        said = self._diagnosis()
        text = f"was lost: its agent: {reason}" + (f"; {said}" if said else "")
        code, failure = codes.NODE_LOST, self._failure(text)
        self.lost = text = f"{self._name} {text}"
        if self._stopped:  # what goes wrong then is not the reason of the end
            code, failure = self._stopped[0], {}
            text = f"{self._stopped[1]}; then {text}"
        self._tell("end", code=code, reason=text, elapsed_s=0.0, failure=failure or None)
        self._code = code

    def _failure(self, text: str) -> dict[str, Any]:
        return {"what": self._name, "node": 0, "code": codes.NODE_LOST, "text": text, "signal": "", "log": "",
                "tail": [], "advice": lost_advice(self._job_id)}  # fmt: skip

    def _tell(self, event: str, **fields: Any) -> None:
        self._keep({"n": self._next, "time": round(time.time(), 3), "event": event, **fields})


def _missing(event: Event, count: int) -> Event:
    text = f"{count} lines were left out here, as they were too many; the logs are complete"
    note = {"event": "note", "level": "warning", "text": text, "missing": count}
    return {"n": event["n"] - 1, "time": event["time"], **note}
