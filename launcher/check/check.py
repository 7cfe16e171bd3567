"""`pslaunch check`: inspects all hosts of a job in parallel, reports all problems, and starts no program.

Agents start as for a job; they inspect their nodes (node/agent/inspect.py), test the network, and end.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TextIO, TypeVar

from pslaunch.runtime.shared.env import PSERVER

from .. import __version__
from ..backends.base import Line, make_starting_backend
from ..errors import STOP_SIGNALS, EndedEarlyError, HostError, PreflightError, PslaunchError, SpecError
from ..node import codes, job
from ..node.dispatch.head_side import split_by_node
from ..node.job import Facts, Node, Placed, Plan
from ..node.line import reach
from ..node.line.trace import Trace
from ..node.line.wire import NONSENSE, MessageLine
from ..node.link import Round
from ..node.loop import Loop
from ..options.imports import find_imports
from ..options.locate import DEFAULT_PROGRAM
from ..options.spec import JobSpec
from ..plan import make_plan, place_found
from ..ship.package import list_sizes
from ..ship.wheel import list_pins
from .findings import Finding, Seen, Wanted, choose_exit_code, find
from .report import make_table, tell
from .table import align

if TYPE_CHECKING:
    from pathlib import Path

    from ..node import messages
    from ..node.dispatch.manifest import Entry

STAGE_LIMIT_S: Final = 45.0  # longer than the slowest answer of a node takes
OURS: Final = "pslaunch"
RUNTIME: Final = ("pslaunch.runtime", "numpy")
FOR_VENV: Final = ("venv", "ensurepip")
PACKAGES: Final = (OURS, "numpy")  # whose versions matter
TOP_PORT: Final = 65535

T = TypeVar("T")


def check(
    spec: JobSpec,
    out: TextIO,
    *,
    as_json: bool = False,
    failed: Mapping[int, HostError] | None = None,
    trace: Trace | None = None,
) -> int:
    """Inspect all hosts of the job, report the findings, and return the exit code.

    failed: known unreachable hosts, by node; they are not tried again.
    """
    _, seen, findings = examine(spec, failed or {}, trace)
    tell(seen, findings, out, as_json=as_json)
    return choose_exit_code(findings)


def begin_trace(path: Path, side: str) -> Trace:
    """Open the file of --trace, before anything is started. Raises SpecError."""
    trace = Trace(side)
    try:
        trace.begin(str(path))
    except OSError as e:
        text = f"the trace {path} can't be written: {e.strerror}; give another --trace or PSLAUNCH_TRACE"
        raise SpecError(text) from None
    return trace


def check_after_failed_start(spec: JobSpec, failed: Mapping[int, HostError]) -> bool:
    """Show the check of all hosts on stderr after some could not be reached; return False if not possible."""
    if sys.stderr is None:  # it is closed
        return False
    try:
        code = check(spec, sys.stderr, failed=failed)
        if code == codes.OK:
            print("the checks find nothing else wrong with the hosts; see the failure above", file=sys.stderr)
    except (PslaunchError, OSError):
        return False
    return True


def examine(
    spec: JobSpec, failed: Mapping[int, HostError], trace: Trace | None = None
) -> tuple[tuple[Node, ...], list[Seen], list[Finding]]:
    """Inspect all hosts; return nodes, observations and findings. Raises EndedEarlyError."""
    plan = make_plan(spec, "check")
    wanted = find_wanted(spec, plan.server)
    entries = list_sizes(plan.package) if plan.package else []
    backend, loop = make_starting_backend(spec.backend, spec.site.reach), Loop()
    inspection = Inspection(loop, trace)
    try:
        tried = [node for node in plan.nodes if node.id not in failed]
        started = inspection.run_aside(lambda: backend.try_start(tried, plan.limits))
        opened: dict[int, Line | HostError] = {**failed, **{node.id: x for node, x in started}}
        lines = [(node, x) for node, x in started if isinstance(x, Line)]
        inspection.attach(lines, plan.limits.lost_after_s)
        placed = place_found(plan, [node for node, _ in started])
        wanted = wanted._replace(sent=placed.is_sent)
        inspection.ask_facts(lambda node: make_question(spec, wanted, placed, node))
        inspection.try_network(plan.port or 0)
        inspection.end()
    except StoppedError as e:
        number = signal.Signals(e.args[0])
        raise EndedEarlyError(number, STOP_SIGNALS[number]) from e
    finally:
        inspection.close()
        backend.close()
        loop.close()
    sent = count_sent_bytes(placed, entries if placed.is_sent else [])
    errors = {node: x for node, x in opened.items() if isinstance(x, HostError)}
    seen = [inspection.add_answers(Seen(host=n.name, failed=errors.get(n.id)), n.id) for n in placed.nodes]
    seen = [reject_nonsense(one, wanted, size) for one, size in zip(seen, sent, strict=True)]
    return placed.nodes, seen, find(seen, wanted, sent)


def reject_nonsense(one: Seen, wanted: Wanted, size: int) -> Seen:
    """Return the host, marked as lost if its facts can't be judged and shown."""
    if one.facts is None:
        return one
    try:
        align(make_table([one], find([one], wanted, [size])))
        paths = [folder["path"] for folder in one.facts["folders"].values()]
        "".join([*paths, one.facts["agent_python"]["executable"]])
    except NONSENSE as e:
        return Seen(host=one.host, lost=f"its answer is invalid: {type(e).__name__}: {e}")
    return one


def find_facts(spec: JobSpec, plan: Plan) -> tuple[Placed, Facts]:
    """Return the job with facts of its hosts: addresses, paths, Pythons, free ports.

    Raises PreflightError with the exit code of a check after showing any problem on stderr.
    """
    nodes, seen, findings = examine(spec, {})
    if code := choose_exit_code(findings):
        tell(seen, findings, sys.stderr, as_json=False)
        raise PreflightError("a dry run with --connect needs hosts without problems; see above", code)
    placed = job.place(plan, [_add_facts(plan, *pair) for pair in zip(nodes, seen, strict=True)])
    facts = Facts.make_symbolic(placed)
    if any(why for one in seen if one.facts for why in one.facts["ports"].values()):
        return placed, facts  # the job chooses others at its start
    first = plan.port or job.FIRST_PORT
    proposed = job.propose_ports(placed, first, job.FIRST_PORT)
    pservers = {p.key: proposed[p.key] for p in placed.list_processes(PSERVER)}
    return placed, facts._replace(ports={**facts.ports, **pservers})


def _add_facts(plan: Plan, node: Node, one: Seen) -> Node:
    facts = one.facts
    assert facts is not None
    workspace = str(facts["folders"]["workspace"]["path"])
    logs = facts["folders"].get("log_dir")
    python = "" if plan.install else str(facts["agent_python"]["executable"])
    known = node._replace(addr=one.addr or str(facts["addrs"][0]), python=python)
    return known.place_in(workspace, str(logs["path"]) if logs else None)


# --- Needs and questions. ---


def find_wanted(spec: JobSpec, server: str) -> Wanted:
    """Return the needs of the job on every node."""
    program = spec.program or DEFAULT_PROGRAM
    found = find_imports(spec.workspace / program, spec.workspace)
    needed, later = dict(found.needed), dict(found.later)
    ours = needed.pop(OURS, "") or later.pop(OURS, "")
    who = "the pserver" if server == "bundled" else ours
    if who:
        needed = {**{name: needed.get(name, who) for name in RUNTIME}, **needed}
    return Wanted(
        sent=spec.site.package is not None,
        port_given=spec.port is not None,
        modules=dict.fromkeys(FOR_VENV, "--install") if spec.install else needed,
        later={} if spec.install else {name: where for name, where in later.items() if name not in needed},
        install=spec.install,
        pins=tuple(list_pins()) if spec.install else (),
        wheels=tuple(path.name for path in spec.wheelhouse.iterdir()) if spec.wheelhouse else None,
        version=__version__ if who else "",
    )


def make_question(spec: JobSpec, wanted: Wanted, placed: Placed, node: int) -> messages.Question:
    """Return the question to the agent of a node."""
    here, plan = placed.nodes[node], placed.plan
    paths = {"workspace": here.workspace}
    if spec.log_dir is not None:
        paths["log_dir"] = here.log_dir
    return {
        "nic": plan.nic,
        "paths": paths,
        "lock": f"{here.state_dir}/lock",
        "files": [] if wanted.sent else [f"{here.workspace}/{spec.program or DEFAULT_PROGRAM}"],
        "links": sorted(set(plan.package.links.values())) if plan.package else [],
        "ports": list_ports(placed, node),
        "python": spec.python or "",
        "modules": [*wanted.modules, *wanted.later],
        "packages": PACKAGES,
        "pins": list(wanted.pins) if wanted.wheels is None else [],
        "env": dict(plan.added_env),
    }


def list_ports(placed: Placed, node: int) -> list[int]:
    """Return the ports of the node's pservers; without --port, those proposed first."""
    mine = {p.key for p in placed.list_processes(PSERVER) if p.node == node}
    first = placed.plan.port or job.FIRST_PORT
    proposed = job.propose_ports(placed, first, job.FIRST_PORT)
    return sorted(p for key, ports in proposed.items() if key in mine for p in ports if p <= TOP_PORT)


def count_sent_bytes(placed: Placed, entries: Sequence[Entry]) -> list[int]:
    """Return the size of the package, with these entries, for each node, as if it had no file yet."""
    nodes, parts = placed.nodes, split_by_node(placed, {})
    if parts is None:
        return [sum(e.size for e in entries)] * len(nodes)
    part = parts(entries)
    return [sum(e.size for e in part(node.id)) for node in nodes]


# --- Asking. ---


class StoppedError(Exception):
    """End by a signal; the argument is its number."""


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
        self.lost = ""  # reason of its loss
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
        """Return the result of `work`, run in a thread, which signals interrupt. Raises StoppedError."""
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

    def ask_facts(self, question: Callable[[int], messages.Question]) -> None:
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
            return {"type": "reach", "doors": one.doors, "limit_s": reach.TRY_S}

        self._ask(order, "reached")
        if any(one.lost for one in answering):
            return
        places = {one.node: i for i, one in enumerate(answering)}
        opened = {i: [(places[node], addr) for node, addr in one.reached] for i, one in enumerate(answering)}
        known = [one.addrs for one in answering]
        chosen, wrong = reach.sort_out([one.name for one in answering], known, opened)
        self._chosen = {answering[i].node: addr for i, addr in chosen.items()}
        self._cut_off = {answering[i].node: f"its port {answering[i].door} {why}" for i, why in wrong.items()}

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
                raise StoppedError(self._stopped_by)
            return until()

        self._loop.run(is_over)


def _parse_port(said: object) -> int:
    port = int(str(said))
    if not 0 < port <= TOP_PORT:
        raise ValueError(f"{port} is not a port")
    return port
