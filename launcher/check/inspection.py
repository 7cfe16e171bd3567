"""Inspection of the hosts of a check: questions to their agents in stages, and the answers.

All hosts answer one question before the next; a host that is lost, or answers nonsense, is left out.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pslaunch.runtime.shared.env import parse_port

from ..backends.lines import Line
from ..errors import STOP_SIGNALS, EndedEarlyError
from ..follow.way import Started
from ..node.dealing import check_resources
from ..node.job import Node
from ..node.line import reach
from ..node.line.trace import Trace
from ..node.line.wire import MessageLine
from ..node.loop import Loop
from ..views.table import align
from .findings import Seen, Wanted, judge_hosts
from .report import make_hosts_table

if TYPE_CHECKING:
    from ..node import messages

STAGE_LIMIT_S: Final = 45.0  # longer than the slowest answer of a node takes


class ReachedHost:
    """One reached host: its line, and what it has answered."""

    def __init__(
        self, loop: Loop, node: Node, line: Line, wanted: Wanted, lost_after_s: float, trace: Trace | None
    ) -> None:
        self.node, self._wanted, self._diagnosis = node.id, wanted, line.diagnosis
        self.seen = Seen(node.name)
        self.answers: set[str] = set()  # their types
        self.addrs: list[str] = []
        self.free_port = self.door = 0
        self.doors: list[tuple[int, str, int]] = []  # of other nodes, to try: node, address, port
        self.reached: list[tuple[int, str]] = []  # the reached ones
        self._sent = 0.0, 0.0  # time by the wall clock and by the monotonic clock
        self.line: MessageLine[messages.OfCheck] = MessageLine(
            loop,
            line,
            lost_after_s=lost_after_s,
            on_message=self._hear,
            on_lost=self._lose,
            trace=trace and trace.make_note(f"node {node.id} ({node.name})"),
        )

    def send(self, message: messages.OfCheck) -> None:
        self._sent = time.time(), time.monotonic()
        self.line.send(message)

    def _hear(self, message: messages.OfAgent) -> None:
        """Parse the whole answer here, so that an invalid one loses this host alone."""
        if message["type"] == "clock":
            began_s, since_s = self._sent
            self.seen.clock_off_s = float(message["time"]) - began_s - (time.monotonic() - since_s) / 2
        elif message["type"] == "trouble" and not message["key"]:  # else of a rank, which others explain
            self.seen.lost = self.seen.lost or str(message["text"])
        elif message["type"] == "inspected":
            facts = message["facts"]
            check_resources(facts["resources"])
            self.addrs = reach.check_addrs(facts["addrs"]) if facts["addrs"] else []
            free = (port for port, why in facts["ports"].items() if not why)
            self.free_port = next((parse_port(port, "port") for port in free), 0)
            if not self.addrs and not facts["interface_error"]:
                raise ValueError("it reports no address and no error")
            check_facts(facts, self._wanted)
            self.seen.facts = facts
        elif message["type"] == "opened":
            self.door = parse_port(message["port"], "port")
        elif message["type"] == "reached":
            self.reached = [(int(node), str(addr)) for node, addr in message["reached"]]
            if not set(self.reached) <= {(node, addr) for node, addr, _ in self.doors}:
                raise ValueError("it reports doors that it was not asked to try")
        elif message["type"] == "allreduced":
            self.seen.mpi = str(message["text"])
        elif message["type"] not in ("hello", "shut", "finished"):
            return
        self.answers.add(message["type"])

    def _lose(self, reason: str) -> None:
        if not self.seen.lost and "finished" not in self.answers:
            self.seen.lost = "; ".join(filter(None, (reason, self._diagnosis())))


def check_facts(facts: messages.NodeFacts, wanted: Wanted) -> None:
    """Raise an error, one of NONSENSE, for facts that can't be judged and shown."""
    one, no_room = [Seen("", facts=facts)], [2**63]
    align(make_hosts_table(one, judge_hosts(one, wanted, no_room)))
    paths = [folder["path"] for folder in facts["folders"].values()]
    "".join([*paths, facts["agent_python"]["executable"]])


class Inspection:
    """Questions to the reached hosts, in stages: all answer one before the next."""

    def __init__(
        self, loop: Loop, started: Started, wanted: Wanted, lost_after_s: float, trace: Trace | None = None
    ) -> None:
        """Take over the lines to agents. From then on a signal raises EndedEarlyError."""
        self._loop = loop
        self._hosts = [ReachedHost(loop, *one, wanted, lost_after_s, trace) for one in started]
        loop.handle_signals({n: functools.partial(_stop, n) for n in STOP_SIGNALS})

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
        answering = [one for one in self._hosts if one.addrs and not one.seen.lost]
        tries = reach.plan_tries(len(answering))

        def order(one: ReachedHost) -> messages.ReachMsg:
            doors = [answering[k] for k in tries[answering.index(one)]] if one in answering else []
            one.doors = [(x.node, addr, x.door) for x in doors for addr in x.addrs]
            return {"type": "reach", "doors": one.doors, "limit_s": reach.REACH_S}

        self._ask(order, "reached")
        if any(one.seen.lost for one in answering):
            return
        places = {one.node: i for i, one in enumerate(answering)}
        opened = {i: [(places[node], addr) for node, addr in one.reached] for i, one in enumerate(answering)}
        known = [one.addrs for one in answering]
        chosen, wrong = reach.sort_out([one.seen.host for one in answering], known, opened)
        for i, addr in chosen.items():
            answering[i].seen.addr = addr
        for i, why in wrong.items():
            answering[i].seen.cut_off = f"its port {answering[i].door} {why}"

    def try_mpi(self, python: str, env: dict[str, str], limit_s: float) -> None:
        """Let the ranks of all nodes add up a number by MPI, if all can import mpi4py."""
        found = [one.seen.facts for one in self._hosts]
        if all(facts and "mpi4py" not in facts["programs"]["missing"] for facts in found):
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

    def list_seen(self) -> dict[int, Seen]:
        return {one.node: one.seen for one in self._hosts}

    def _ask(self, message: Callable[[ReachedHost], messages.OfCheck], answer: str) -> None:
        """Ask all hosts and wait for their answers; a host silent until the limit is lost."""
        waited = [one for one in self._hosts if not one.seen.lost]
        for one in waited:
            one.send(message(one))
        end_s = self._loop.now() + STAGE_LIMIT_S
        timer = self._loop.call_at(end_s, lambda: None)
        self._loop.run(
            lambda: self._loop.now() >= end_s or all(one.seen.lost or answer in one.answers for one in waited)
        )
        timer.cancel()
        for one in waited:
            if answer not in one.answers:
                one.seen.lost = one.seen.lost or f"it did not answer within {STAGE_LIMIT_S:g} s"


def _stop(number: int) -> None:
    raise EndedEarlyError(number, STOP_SIGNALS[number])
