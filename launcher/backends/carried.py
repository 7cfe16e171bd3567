"""Agents that a carrier starts on nodes, such as mpirun or srun, and that dial the launcher.

The carrier only places: what it has started on a node dials our gate and proves the job's secret. The carrier
runs on a leash (leash.py), and ends by itself once what it has started has ended. For a head on a node the
agents come in the same way; then the first leads, and the others get its address.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar, cast

from pslaunch.runtime.shared import prove

from ..errors import NodeLostError, PreflightError, PslaunchError, ServiceError, SpecError
from ..node import codes
from ..node.agent.brought import SECRET_VARIABLE
from ..node.job import Limits, Node
from ..node.later import record, relay
from ..node.line import gate, wire
from ..node.loop import Loop
from .base import Backend
from .failures import CarrierFailure, FailureTable
from .gate_of_agents import Arrival, CarriedAgents, HeadAddress, Offer, open_gate
from .here import answer as answer_here
from .leash import LEASH_S, Leashed
from .lines import CLOSE_EXTRA_S, LAST_WORDS_S, OF_ANOTHER, Dial, Ended, Line, choose_last_words
from .node_answers import Answered, read_answer

DIAL_S: Final = 5.0  # for a head to answer a later shell
START_S: Final = 30.0  # for Python on all nodes, once they were reached
ASK_TRIES: Final = 3
START_LOOK_S: Final = 0.05  # between two looks if an answer is over
_MAX_KEPT_BYTES: Final = (1 << 31) - 4096  # of one read


class CarriedReach(Protocol):
    """A reach of a carrier: its own words, and the agents."""

    @property
    def agents(self) -> CarriedAgents: ...

    def list_expected(self) -> tuple[Node, ...]:
        """Return the planned nodes, as far as they are known."""


R = TypeVar("R", bound=CarriedReach)


class Command(NamedTuple):
    """Words and environment of a carrier, and the words of what runs after it."""

    argv: Sequence[str]
    env: Mapping[str, str]
    after: Sequence[str] = ()


class CarrierError(PreflightError):
    """The carrier failed before all agents were connected."""

    def __init__(self, cause: CarrierFailure) -> None:
        super().__init__(cause.text, cause.code)
        self.cause = cause


class LossyError(NodeLostError):
    """The carrier lost a part of a program's output."""


class CarriedBackend(Backend, ABC, Generic[R]):
    """Agents that a carrier has started, each with a line over TCP."""

    starts_again = True
    carrier: str  # its program, and
    unit: str  # what it starts, in messages
    mode: str  # of pslaunch.node, which it runs
    printer: str  # who has printed what is on its standard output
    failures: FailureTable  # of the carrier
    bring_s = 0.0  # for what it brings to nodes before it starts anything there

    def __init__(self, reach: R) -> None:
        self._reach = reach
        self._runs: list[Leashed] = []  # what holds its allocation, and the carriers of all epochs
        self._running: Leashed | None = None  # the last of them, once its epoch begins
        self._cancelled = threading.Event()
        self._asking: set[Leashed] = set()  # small carriers of `ask`
        self._awaiting: list[tuple[Node, Line]] = []  # agents that do not know the head's address yet
        self._dial: Dial | None = None  # of a head on a node,
        self._first = ""  # with this name
        self._lost_after_s, self._has_started = 0.0, False
        self._early: list[str] = []  # printed by the carrier itself, before the programs

    # --- What carriers do differently. ---

    @abstractmethod
    def _prepare(self, reach: R, offer: Offer, program: Sequence[str]) -> AbstractContextManager[Command]:
        """Make what the carrier needs to run a program, and yield its command. Raises PslaunchError."""

    @abstractmethod
    def _select(self, node: Node) -> R:
        """Return the reach of one process on this node. Raises PslaunchError."""

    @abstractmethod
    def _make_node(self, number: int, one: Arrival) -> Node: ...

    def _list_missing(self, came: Sequence[Arrival]) -> list[str]:
        """Return the names of nodes without an agent, as far as they are known."""
        return []

    def _find_cause(self, output: str) -> CarrierFailure:
        """Return the cause of a failure in the carrier's output, else its last lines."""
        return self.failures.find_cause(output)

    def _attribute(self, line: str, who: str) -> tuple[str, str]:
        """Return who has printed a line of the carrier's output, by default `who`, and its text."""
        return who, line

    def _make_order(self) -> dict[str, Any]:
        """Return the carrier's own part of the order to what it starts."""
        return {}

    def _run(self, command: Command, secret: bytes, stdout: int | None = None) -> Leashed:
        """Start the carrier. Raises ServiceError."""
        env = {**command.env, SECRET_VARIABLE: secret.hex()}
        return Leashed(command.argv, env, self._grace_s, after=command.after, stdout=stdout)

    def start(self, nodes: Sequence[Node], limits: Limits) -> list[tuple[Node, Line]]:
        started = self._start(limits, os.urandom(32), "launcher")
        before, here = [(n.name, n.trainers) for n in nodes], [(n.name, n.trainers) for n, _ in started]
        if nodes and before != here:
            for _, line in started:
                line.close()
            names = ", ".join(name for name, _ in here)
            raise NodeLostError(f"{self.carrier} has not placed the {self.unit} as before, but on {names}")
        return started

    def _start(self, limits: Limits, secret: bytes, head: str) -> list[tuple[Node, Line]]:
        self._lost_after_s, self._grace_s = limits.lost_after_s, limits.grace_s
        came: list[Arrival] = []
        refused, run = list[str](), None
        self._end_before()
        order = {
            "name": os.urandom(8).hex(), "head": head,
            "lost_after": limits.lost_after_s, "grace": limits.grace_s, **self._make_order(),
        }  # fmt: skip
        with contextlib.closing(Loop()) as loop:
            try:
                with contextlib.ExitStack() as at_end:
                    offer = at_end.enter_context(open_gate(loop, self._reach.agents, secret, came, refused))
                    order.update(addrs=offer.addrs, port=offer.port)
                    program = offer.make_program([self.mode, json.dumps(order)], self._reach.agents)
                    command = at_end.enter_context(self._prepare(self._reach, offer, program))
                    run = self._run(command, secret)
                    self._runs.append(run)
                    self._running = run
                    self.ended = Ended(run.fd, self.carrier, self._describe_end)
                    if self._cancelled.is_set():
                        run.end_now()
                    self._wait(loop, run, came, refused)
                self._has_started, self._early = True, [*self._early, *run.printed.read_new()]
                came.sort(key=lambda one: one.trainers[0])
                return [(self._make_node(i, one), one.line) for i, one in enumerate(came)]
            except BaseException:
                for one in came:
                    one.line.close()
                if run:
                    run.close()
                    self._runs.remove(run)
                self._running = self.ended = None
                raise

    def _end_before(self) -> None:
        """Let the carrier of the epoch before end, whose agents have lost their lines."""
        before, self._has_started, self._running, self.ended = self._running, False, None, None
        if before:  # its files stay open: the loop may just read them
            if not before.wait(self._grace_s):
                before.end_now()
                before.wait(LEASH_S)
            self._early = before.printed.read_new(last=True)

    def _wait(self, loop: Loop, run: Leashed, came: list[Arrival], refused: Sequence[str]) -> None:
        """Run the loop until all agents are connected; beat on their lines. Raises PslaunchError."""

        def beat() -> None:
            for one in came:
                with contextlib.suppress(OSError):  # a lost line is noticed later
                    one.line.send(wire.BEAT)

        over: list[bool] = []
        loop.watch(run.fd, read=lambda: over.append(True))
        loop.call_every(wire.HEARTBEAT_S, beat)
        limit_s = self._reach.agents.connect_timeout_s + START_S + self.bring_s
        loop.call_after(limit_s, lambda: over.append(True))
        loop.run(lambda: bool(over) or sum(len(one.trainers) for one in came) >= self._reach.agents.ranks)
        loop.watch(run.fd)
        if over:
            raise self._explain_failure(run, came, refused, limit_s)

    def _explain_failure(
        self, run: Leashed, came: Sequence[Arrival], refused: Sequence[str], limit_s: float
    ) -> PslaunchError:
        """Return the error for ranks that did not connect. refused: callers that are no agents of the job."""
        if self._cancelled.is_set():
            return ServiceError(f"{self.carrier} was ended before all {self.unit} were connected")
        there, silent = sum(len(one.trainers) for one in came), self._list_missing(came)
        text = f"{there} of {self._reach.agents.ranks} {self.unit} connected"
        text += f", none from {', '.join(silent)}" if silent else ""
        if not run.wait(0.0):
            text += f" within {limit_s:.0f} s; a host may hang, or need a longer --connect_timeout"
            text += f"; refused: {refused[-1]}" if refused else ""
            said = self.failures.read_last_lines(run.read_said())
            text += f"; {self.carrier} said: {said}" if said else ""
            return CarrierError(CarrierFailure(codes.PREFLIGHT, text, hosts=tuple(silent)))
        how, killed = run.describe()
        if killed:
            return NodeLostError(f"{text}; {self.carrier} was lost: {how}")
        cause = self._find_cause(run.read_said())
        return CarrierError(cause if cause.known else cause._replace(text=f"{text}: {cause.text}"))

    def read_output(self, *, last: bool = False) -> list[tuple[str, str]]:
        run = self._running  # which the thread of a start may take away
        if not (run and self._has_started):
            return []  # the error of a start has its cause
        if last:
            run.wait(max(LAST_WORDS_S, self.begin_close() - LEASH_S - time.monotonic()))
        printed = [self._attribute(line, self.printer) for line in run.printed.read_new(last=last)]
        if self._end_s < float("inf"):
            return printed  # at the end it complains of ranks that have ended
        lines, self._early = (*self._early, *run.said.read_new()), []
        said = [self._attribute(line.strip(), self.carrier) for line in lines]
        return [one for one in said if not self.failures.noise.fullmatch(one[1])] + printed

    def keep_output(self, folder: Path) -> None:
        if data := b"".join(run.printed.read(0, _MAX_KEPT_BYTES) for run in self._runs):
            (folder / f"{self.printer}.log").write_bytes(data)

    def _describe_end(self) -> tuple[str, bool]:
        """Return a text on the carrier's end, with its last output, and True for an end by a signal."""
        assert self._running
        how, killed = self._running.describe()
        said = "" if killed else self.failures.read_last_lines(self._running.read_said())
        return how + (f"; it said: {said}" if said else ""), killed

    def start_head(self, nodes: Sequence[Node], limits: Limits, secret: str) -> tuple[Sequence[Node], Line]:
        started = self._start(limits, bytes.fromhex(secret), "node")
        self._first, self._awaiting = started[0][0].name, started[1:]
        return [node for node, _ in started], started[0][1]

    def start_dialing(self, nodes: Sequence[Node], limits: Limits, dial: Dial) -> None:
        self._dial = dial
        gone = [node.name for node, line in self._awaiting if dial.send_over(line, node)]
        self._awaiting = []
        if gone:
            raise NodeLostError(f"{', '.join(gone)}: the agent ended before the job began")

    def keep_way(self, path: str) -> R:
        if self._dial is None:  # ended before it led the job
            return self._reach
        record.write_secret(path, self._dial.secret)
        head = HeadAddress(self._first, self._dial.addrs, self._dial.port, path)
        reach: Any = self._reach
        return cast(R, reach._replace(agents=reach.agents._replace(head=head)))

    def open_head_line(self, _record: Mapping[str, Any]) -> Line:
        head = self._get_head()
        secret = bytes.fromhex(Path(head.secret_file).read_text())
        try:
            return gate.dial(head.addrs, head.port, secret, gate.OBSERVER, DIAL_S)
        except prove.ProofError as e:
            raise ConnectionError(0, str(e)) from e

    def read_records(self) -> Iterator[bytes]:
        return self.ask(self._reach.agents.node._replace(name=self._get_head().node), ["records"])

    def _get_head(self) -> HeadAddress:
        if self._reach.agents.head is None:
            raise SpecError(OF_ANOTHER)
        return self._reach.agents.head

    def ask(self, node: Node, words: Sequence[str]) -> Iterator[bytes]:
        """Return the answer of a small carrier to the node, or from here if its folder is shared.

        There are several tries: a carrier that ends well may have lost some of its output.
        """
        if words[2:] and relay.is_here(*words[2:]):
            yield from answer_here(node.name, words)
            return
        answered = Answered()
        for left in reversed(range(ASK_TRIES)):
            try:
                yield from answered.skip(self._ask_there(node, words))
                return
            except LossyError:
                if not left or self._cancelled.is_set():
                    raise

    def _ask_there(self, node: Node, words: Sequence[str]) -> Iterator[bytes]:
        reach = self._select(node)
        with contextlib.ExitStack() as at_end:
            loop = at_end.enter_context(contextlib.closing(Loop()))
            secret = os.urandom(32)
            offer = at_end.enter_context(open_gate(loop, self._reach.agents, secret, [], []))
            program = offer.make_program(words, self._reach.agents)
            command = at_end.enter_context(self._prepare(reach, offer, program))
            read_fd, write_fd = os.pipe()
            answer = at_end.enter_context(os.fdopen(read_fd, "rb"))
            with os.fdopen(write_fd, "wb") as writing:
                run = self._run(command, secret, writing.fileno())
            self._asking.add(run)
            at_end.callback(run.close)
            at_end.callback(self._asking.discard, run)
            at_end.enter_context(_serve_aside(loop))
            find_words = functools.partial(_find_words, run, node.name)
            start_s = self._reach.agents.connect_timeout_s
            yield from read_answer(os.dup(answer.fileno()), node.name, words[0], find_words, start_s)

    def cancel(self) -> None:
        self._cancelled.set()
        run = self._running  # which the other thread may take away meanwhile
        if run:
            run.end_now()

    def prepare_release(self) -> str:
        return next(filter(None, map(self._follow, self._runs)), "")

    def _follow(self, run: Leashed) -> str:
        """Let a command go on as long as the job; return why it can't, or ""."""
        assert self._dial
        head = {**self._dial._asdict(), "lost_after": self._lost_after_s}
        if not (why := run.follow(head, DIAL_S)):
            return ""
        return (
            f"this machine can't connect to the job's head on {self._first}, as {self.carrier}'s leash and "
            f"later shells do: {why}; allow port {self._dial.port} of that host in firewalls (--port chooses "
            "it), choose its network with --nics, or leave --detach out"
        )

    def release(self) -> None:
        """End what is asked; the carrier runs on as long as the job."""
        for run in [*self._asking]:
            run.end_now()
        if self._running and self._dial:
            for run in self._runs:
                run.leave()
            self._running, self.ended, self._runs = None, None, []

    def close(self) -> None:
        """Wait for the carrier, which ends after its processes, and end it if it does not."""
        for _, line in self._awaiting:
            line.close()
        self._awaiting = []
        left_s = self.begin_close() - LEASH_S - time.monotonic()
        if self._running:
            self._running.wait(max(LAST_WORDS_S, left_s))
        self._running = self.ended = None
        while self._runs:
            self._runs.pop().close()


def _find_words(run: Leashed, name: str, cut: EOFError) -> str:
    """Wait for the end of a small carrier. Raises NodeLostError if its program did not report a failure."""
    if not run.wait(CLOSE_EXTRA_S):
        run.end_now()
        run.wait(LEASH_S)
    said = choose_last_words(run.read_said()) or str(cut)
    if run.code == codes.IO:
        return said
    if isinstance(cut, relay.DamagedError) or run.code == 0:
        raise LossyError(f"{name}: {cut}")
    raise NodeLostError(f"{name}: {said}")


@contextlib.contextmanager
def _serve_aside(loop: Loop) -> Iterator[None]:
    """Run a loop in a thread."""
    over = threading.Event()
    loop.call_every(START_LOOK_S, lambda: None)
    thread = threading.Thread(target=loop.run, args=(over.is_set,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
