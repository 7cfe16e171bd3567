"""Inspection of the hosts of a check: questions to their agents in stages, and the answers.

All hosts answer one question before the next; a host that is lost, or answers nonsense, is left out.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from ..backends.lines import Line
from ..errors import STOP_SIGNALS, EndedEarlyError
from ..node.job import Node
from ..node.line import reach
from ..node.line.trace import Trace
from ..node.line.wire import MessageLine
from ..node.link import Round
from ..node.loop import Loop
from .findings import Seen

if TYPE_CHECKING:
    from ..node import messages

STAGE_LIMIT_S: Final = 45.0  # longer than the slowest answer of a node takes
TOP_PORT: Final = 65535

T = TypeVar("T")


class ReachedHost:
    """One reached host: its line, and its last answer of each type."""

    def __init__(
        self,
        loop: Loop,
        node: Node,
        line: Line,
        lost_after_s: float,
        news: Callable[[ReachedHost], None],
        trace: Trace | None,
    ) -> None:
        """Take over a line; calls `news` after each answer and when the host is lost."""
        self.node, self.name, self._diagnosis, self._news = node.id, node.name, line.diagnosis, news
        self.answers: dict[str, messages.OfAgent] = {}
        self.addrs: list[str] = []
        self.free_port = self.door = 0
        self.doors: list[tuple[int, str, int]] = []  # of other nodes, to try: node, address, port
        self.reached: list[tuple[int, str]] = []  # the reached ones
        self.lost = self.mpi = ""  # reason of its loss; of the failure of MPI
        self.clock_off_s = 0.0
        self._sent = 0.0, 0.0  # time by the wall clock and by the monotonic clock
        self.line: MessageLine[messages.OfCheck] = MessageLine(
            loop,
            line.read_fd,
            line.write_fd,
            lost_after_s=lost_after_s,
            on_message=self._hear,
            on_lost=self._lose,
            seals=line.seals,
            trace=trace and trace.make_note(f"node {self.node} ({self.name})"),
        )

    def send(self, message: messages.OfCheck) -> None:
        self._sent = time.time(), time.monotonic()
        self.line.send(message)

    def _hear(self, message: messages.OfAgent) -> None:
        """Parse the whole answer here, so that an invalid one loses this host alone."""
        if message["type"] == "clock":
            began_s, since_s = self._sent
            self.clock_off_s = float(message["time"]) - began_s - (time.monotonic() - since_s) / 2
        elif message["type"] == "refused" or message["type"] == "trouble":
            self.lost = self.lost or str(message["text"])
        elif message["type"] == "inspected":
            facts = message["facts"]
            self.addrs = reach.check_addrs(facts["addrs"]) if facts["addrs"] else []
            self.free_port = next((_parse_port(port) for port, why in facts["ports"].items() if not why), 0)
            if not self.addrs and not facts["interface_error"]:
                raise ValueError("it reports no address and no error")
        elif message["type"] == "opened":
            self.door = _parse_port(message["port"])
        elif message["type"] == "reached":
            self.reached = [(int(node), str(addr)) for node, addr in message["reached"]]
            if not set(self.reached) <= {(node, addr) for node, addr, _ in self.doors}:
                raise ValueError("it reports doors that it was not asked to try")
        elif message["type"] == "allreduced":
            self.mpi = str(message["text"])
        elif message["type"] not in ("hello", "shut", "finished"):
            return
        self.answers[message["type"]] = message
        self._news(self)

    def _lose(self, reason: str) -> None:
        if not self.lost and "finished" not in self.answers:
            self.lost = "; ".join(filter(None, (reason, self._diagnosis())))
        self._news(self)

    @property
    def facts(self) -> messages.NodeFacts | None:
        said = self.answers.get("inspected")
        return said["facts"] if said and said["type"] == "inspected" else None


class Inspection:
    """Questions to the reached hosts, in stages: all answer one before the next."""

    def __init__(self, loop: Loop, trace: Trace | None = None) -> None:
        self._loop, self._trace = loop, trace
        self._hosts: list[ReachedHost] = []
        self._round, self._answer = Round(answers=[""]), ""
        self._chosen: dict[int, str] = {}
        self._cut_off: dict[int, str] = {}
        self._stopped_by = 0
        loop.handle_signals({n: functools.partial(self._stop, n) for n in STOP_SIGNALS})

    def _stop(self, number: int) -> None:
        self._stopped_by = number

    def run_aside(self, work: Callable[[], list[T]]) -> list[T]:
        """Return the result of `work`, run in a thread, which signals interrupt. Raises EndedEarlyError."""
        found: list[list[T]] = []
        failed: list[Exception] = []
        self._loop.do_aside(work, found.append, failed.append)
        self._run(lambda: bool(found or failed))
        if failed:
            raise failed[0]
        return found[0]

    def attach(self, started: Sequence[tuple[Node, Line]], lost_after_s: float) -> None:
        """Take over the lines to agents."""
        self._hosts = [
            ReachedHost(self._loop, *one, lost_after_s, self._hear, self._trace) for one in started
        ]

    def ask_facts(self, question: Callable[[int], messages.InspectQuestion]) -> None:
        """Ask for facts and clocks; `question` returns the question to a node."""
        secret = os.urandom(32).hex()
        self._ask(
            lambda one: {**question(one.node), "type": "inspect", "node": one.node, "secret": secret},
            "inspected",
        )

    def try_network(self, port: int = 0) -> None:
        """Let all nodes connect to each other, on a free port of a pserver if any, else on `port`."""
        self._ask(lambda one: {"type": "door", "port": one.free_port or port}, "opened")
        answering = [one for one in self._find_answering() if one.addrs]
        tries = reach.plan_tries(len(answering))

        def order(one: ReachedHost) -> messages.ReachMsg:
            doors = [answering[k] for k in tries[answering.index(one)]] if one in answering else []
            one.doors = [(x.node, addr, x.door) for x in doors for addr in x.addrs]
            return {"type": "reach", "doors": one.doors, "limit_s": reach.REACH_S}

        self._ask(order, "reached")
        if any(one.lost for one in answering):
            return
        places = {one.node: i for i, one in enumerate(answering)}
        opened = {i: [(places[node], addr) for node, addr in one.reached] for i, one in enumerate(answering)}
        known = [one.addrs for one in answering]
        chosen, wrong = reach.sort_out([one.name for one in answering], known, opened)
        self._chosen = {answering[i].node: addr for i, addr in chosen.items()}
        self._cut_off = {answering[i].node: f"its port {answering[i].door} {why}" for i, why in wrong.items()}

    def try_mpi(self, python: str, env: dict[str, str], limit_s: float) -> None:
        """Let the ranks of all nodes add up a number by MPI, if all can import mpi4py."""
        if all(one.facts and "mpi4py" not in one.facts["programs"]["missing"] for one in self._hosts):
            order: messages.AllreduceMsg = {
                "type": "allreduce", "python": python, "env": env, "limit_s": min(limit_s, STAGE_LIMIT_S / 2),
            }  # fmt: skip
            self._ask(lambda _one: order, "allreduced")

    def end(self) -> None:
        """End the agents, which clean up their hosts."""
        self._ask(lambda _one: {"type": "finish", "linger_s": 0.0}, "finished")

    def close(self) -> None:
        """Close the lines; agents then end by themselves."""
        for one in self._hosts:
            one.line.close()

    def add_answers(self, one: Seen, node: int) -> Seen:
        """Return `one` with the answers of its host."""
        host = next((x for x in self._hosts if x.node == node), None)
        if host is None:
            return one
        return one._replace(
            lost=host.lost,
            mpi=host.mpi,
            facts=host.facts,
            clock_off_s=host.clock_off_s,
            addr=self._chosen.get(node, ""),
            cut_off=self._cut_off.get(node, ""),
        )

    def _find_answering(self) -> list[ReachedHost]:
        return [one for one in self._hosts if not one.lost]

    def _ask(self, message: Callable[[ReachedHost], messages.OfCheck], answer: str) -> None:
        """Ask all hosts and wait for their answers; a host silent until the limit is lost."""
        waited, self._answer = self._find_answering(), answer
        self._round.ask([(one.node, one.send, message(one)) for one in waited], [answer], lambda: None)
        for one in waited:
            self._hear(one)
        end_s = self._loop.now() + STAGE_LIMIT_S
        timer = self._loop.call_at(end_s, lambda: None)
        self._run(lambda: self._loop.now() >= end_s or not self._round.missing)
        timer.cancel()
        for one in waited:
            if one.node in self._round.missing:
                one.lost = f"it did not answer within {STAGE_LIMIT_S:g} s"

    def _hear(self, one: ReachedHost) -> None:
        if one.lost or self._answer in one.answers:
            self._round.take_answer(one.node, self._answer)

    def _run(self, until: Callable[[], bool]) -> None:
        def is_over() -> bool:
            if self._stopped_by:
                raise EndedEarlyError(self._stopped_by, STOP_SIGNALS[self._stopped_by])
            return until()

        self._loop.run(is_over)


def _parse_port(said: object) -> int:
    port = int(str(said))
    if not 0 < port <= TOP_PORT:
        raise ValueError(f"{port} is not a port")
    return port
