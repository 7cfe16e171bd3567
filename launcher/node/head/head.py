"""The head: the one place of a job that decides, wherever it runs.

Speaks to agents over lines, carries out what supervise.py decides, and tells what happens as events.
Observers know only its interface: `events` from a cursor, and requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .. import codes, job, logs
from ..dispatch.head_side import Dispatch, Supply
from ..ending import NEVER, Signal
from ..line.wire import Message, MessageLine, Output, WireError
from ..link import Link
from ..loop import Loop, Timer
from ..procs import WHY_LEFT
from ..shapes import check, fits, is_code, is_failure_code
from ..silence import Silence
from .events import PROGRESS, Event, Recent
from .startup import Opening, setup_key
from .supervise import Exit, Failure, Finish, Member, Supervisor, lost_advice

if TYPE_CHECKING:
    from .. import messages
    from ..line.seal import Seal
    from ..line.trace import Trace

DRAIN_BYTES = 8192  # of output between two drains: never more events than are remembered
FINISH_LIMIT_S = 5.0  # for a node that says nothing once it is told to finish
SHOW_LINES = 1000  # of each process that come once the job ends, where control must not wait behind a flood
FINISH_MOST_S = 60.0  # for one that says other things: its answer comes behind the output of its programs


class Head:
    """Runs one placed job over the agents' lines; `done` once every node has answered the end."""

    def __init__(
        self,
        loop: Loop,
        placed: job.Placed,
        secret: str,
        wall_clock: Callable[[], float],
        supply: Supply | None = None,
        trace: Trace | None = None,
    ) -> None:
        self._loop, self.placed, self._wall, self._trace = loop, placed, wall_clock, trace
        plan = placed.plan
        self._started_s = loop.now()
        self._lost_advice = lost_advice(plan.job_id)
        self.links: dict[int, Link] = {}
        self._numbers = {p.key: i for i, p in enumerate(placed.processes)}
        # Of which node each is. After the processes comes what makes each node ready.
        self._node_of = {p.key: p.node for p in placed.processes}
        self._node_of |= {setup_key(n.id): n.id for n in placed.nodes}
        self._names = list(self._node_of)  # whose output an agent's number means
        self._streams = [logs.Stream(loop.now) for _ in self._names]
        self._late_lines = dict.fromkeys(self._names, 0)  # of each process since the job ends
        self._supervisor = Supervisor(
            {p.key: Member(p.role, p.node, p.log) for p in placed.processes}, plan.limits.grace_s, plan.server
        )
        self._events = Recent()
        self._next_event = 0
        self._opening = Opening(self, secret, Dispatch(loop, self, supply))
        self._timer: Timer | None = None
        self._told_ending = False
        self.drain: Callable[[], None] = lambda: None  # lets observers take what is new
        self.settled: Callable[[], None] = lambda: None  # the nodes' paths or addresses are known
        self._finishing = False
        self._finish_s = 0.0  # when all were told
        self._owing: set[int] = set()  # nodes that have not answered the end
        self.done = False
        self.end: dict[str, Any] = {}  # how the job ended, once `done`
        self._states: dict[str, dict[str, Any]] = {p.key: {"state": "waiting"} for p in placed.processes}
        self._expected: Silence | None = None  # of agents that are to dial
        self._port = 0  # where they do
        loop.every(1.0, self._look_for_missing)
        self._tell_job()

    # --- the interface of observers ---

    def events(self, cursor: int, limit: int | None = None) -> tuple[list[Event], int]:
        """Events from number `cursor` on that are still remembered, at most `limit`, and the next cursor."""
        found = self._events.since(cursor, limit)
        return found, found[-1]["n"] + 1 if found else self._next_event

    def status(self) -> messages.JobStatus:
        """How the job stands now: each process with its state and the last it told."""
        return {
            "job": self.placed.plan.job_id,
            "elapsed_s": round(self._loop.now() - self._started_s, 3),
            "events": self._next_event,
            "state": "ended" if self.done else "ending" if self._told_ending else "running",
            "processes": [
                {"process": p.key, "node": p.node, **self._states[p.key]} for p in self.placed.processes
            ],
        }

    def stop(self, number: int, reason: str, code: int = 0) -> None:
        """Request the end: the first time in order, the second at once. The job's code is 128 + `number`,
        or `code` where one is given."""
        self._supervisor.stop(number, reason, self._loop.now(), code)
        self._decide()

    @property
    def code(self) -> int:
        """The job's exit code; only once `done`."""
        return int(self.end["code"])

    # --- lines ---

    def awaits(self, number: int) -> job.Node | None:
        """The node of this number, if its agent is still to come."""
        nodes = self.placed.nodes
        known = 0 <= number < len(nodes) and number not in self.links and not self._finishing
        return nodes[number] if known else None

    def attach(
        self,
        node: job.Node,
        read_fd: int,
        write_fd: int,
        diagnosis: Callable[[], str],
        seals: tuple[Seal, Seal] | None = None,
    ) -> None:
        """Take over the line to this node's agent. `diagnosis` tells what its side said on its way out."""
        line: MessageLine[messages.ToAgent] = MessageLine(
            self._loop,
            read_fd,
            write_fd,
            lost_after_s=self.placed.plan.limits.lost_after_s,
            on_message=lambda m: self._heard(self.links[node.id], m),
            on_output=lambda piece: self._output(node.id, piece),
            on_lost=lambda reason: self._lost(self.links[node.id], reason),
            seals=seals,
            trace=self._trace and self._trace.of(f"node {node.id} ({node.name})"),
        )
        self.links[node.id] = Link(node, line, diagnosis)

    def close(self) -> None:
        """Close all lines: what runs on the nodes ends there. May be called twice."""
        for link in self.links.values():
            link.line.close()

    def expect(self, port: int) -> None:
        """All agents know that we listen at `port`: each has as long to come as one that is silent."""
        self._expected, self._port = Silence(self._loop.now()), port

    def _look_for_missing(self) -> None:
        now = self._loop.now()
        if self._expected and self._expected.measure(now) >= self.placed.plan.limits.lost_after_s:
            self._expected = None
            self._miss_nodes()

    def _miss_nodes(self) -> None:
        if self._finishing:
            return
        text = f"its agent never came to port {self._port} of node 0"
        for node in [n for n in self.placed.nodes if n.id not in self.links]:
            self.tell("node", node=node.id, state="lost", text=text)
            self._supervisor.node_lost(node.id, node.name, text, self._loop.now(), self._lost_advice)
        self._decide()

    def _lost(self, link: Link, reason: str) -> None:
        link.gone = True
        self._owing.discard(link.node.id)
        said = link.diagnosis()
        text = f"its agent: {reason}" + (f"; {said}" if said else "")
        if not self._finishing:
            self.tell("node", node=link.node.id, state="lost", text=text)
            self._supervisor.node_lost(link.node.id, link.host, text, self._loop.now(), self._lost_advice)
        self._decide()

    def _heard(self, link: Link, message: Message) -> None:
        if self._node_of.get(message.get("key", ""), link.node.id) != link.node.id:
            raise ValueError(f"it tells of {message['key']}, which is of another node")
        handler = getattr(self, f"_on_{message['type']}", None)
        if handler is not None:
            handler(link, message)
        elif not self._opening.heard(link, message):
            self.tell("note", level="warning", text=f"{link.host}: unknown message {message['type']!r}")
        self._decide()

    # --- starting ---

    def start(self, bound: job.Bound) -> None:
        """Order the start of every program; the nodes have answered all that was asked."""
        starts: dict[int, list[job.Start]] = {node: [] for node in self.links}
        for start in bound.starts:
            starts[start.node].append(start)
            self._supervisor.starting(start.key)
        for link in self.links.values():
            self.tell("node", node=link.node.id, state="ready", text=link.host)
            numbers = {s.key: self._numbers[s.key] for s in starts[link.node.id]}
            link.line.send(
                {"type": "begin", "workspace": link.node.workspace, "nodes": bound.addrs, "numbers": numbers}
            )
            for start in starts[link.node.id]:
                link.line.send(start.to_data())

    def settle(self, nodes: Sequence[job.Node]) -> None:
        """Place the processes anew: paths and addresses of the nodes are known now."""
        self.placed = job.place(self.placed.plan, nodes)
        for p in self.placed.processes:
            self._supervisor.members[p.key] = Member(p.role, p.node, p.log)
        self.settled()

    @property
    def ending(self) -> bool:
        """Whether the job ends, or has failed already."""
        return bool(self._supervisor.why or self._supervisor.failure)

    def fail(
        self,
        what: str,
        node: int,
        code: int,
        text: str,
        advice: str = "",
        log: str = "",
        tail: Sequence[str] = (),
    ) -> None:
        """End the job for something that is no process's exit."""
        failure = Failure(what, node, code, text, log=log, tail=tuple(tail), advice=advice)
        self._supervisor.trouble(failure, self._loop.now())
        self._loop.call_after(0.0, self._decide)  # it may be no message that brought it

    # --- running ---

    def _on_started(self, link: Link, m: messages.Started) -> None:
        self.tell("process", process=m["key"], node=link.node.id, state="running", pid=m["pid"])

    def _on_not_started(self, _link: Link, m: messages.NotStarted) -> None:
        self._supervisor.not_started(str(m["key"]))

    def _on_trouble(self, link: Link, m: messages.Trouble) -> None:
        key = str(m["key"])
        member = self._supervisor.members.get(key)
        what = key if member else f"node {link.node.id} ({link.host})"
        check(m["code"], is_failure_code, "code")
        code, text, advice = int(m["code"]), str(m["text"]), ""
        if code == codes.NODE_LOST:
            text, advice = f"was lost: {text}", self._lost_advice
        log = member.log if member else ""
        failure = Failure(what, link.node.id, code, text, log=log, advice=advice)
        self._supervisor.trouble(failure, self._loop.now())

    def _on_progress(self, _link: Link, m: messages.Progress) -> None:
        fields = {k: v for k, v in m.items() if k in PROGRESS and fits(v, PROGRESS[k])}
        if fields.get("state") in ("connected", "finished"):
            self._supervisor.progress(str(m["key"]), str(fields["state"]))
        if "why" in fields:
            self._supervisor.explained(str(m["key"]), str(fields["why"]), str(fields.get("blames", "")))
        self.tell("progress", process=m["key"], **fields)

    def _on_exited(self, link: Link, m: messages.Exited) -> None:
        key = str(m["key"])
        stream = self._streams[self._names.index(key)]
        self._show(key, stream.end(int(m["written"])))
        tail = tuple(str(line)[: logs.MAX_LINE_CHARS] for line in m["tail"][: logs.TAIL_LINES])
        check(m["code"], is_failure_code if m["signal"] else is_code, "code")
        how = Exit(int(m["code"]), str(m["signal"]), bool(m["asked"]), bool(m["oom"]), tail)
        if key not in self._numbers:
            self._opening.furnished(link, how)
            return
        self.tell(
            "process",
            process=key,
            node=link.node.id,
            state="exited",
            code=how.code,
            signal=how.signal or None,
        )
        self._supervisor.exited(key, how, self._loop.now())

    def _output(self, node: int, piece: Output) -> None:
        if piece.process >= len(self._streams):
            return
        key = self._names[piece.process]
        if self._node_of[key] != node:
            raise WireError(f"output of {key}, which is of another node")
        stream = self._streams[piece.process]
        if key in self._numbers and self._supervisor.has_had_its_say(key):
            return  # told with its exit, as a gap
        for at in range(0, len(piece.data), DRAIN_BYTES):
            if self._late_lines[key] >= SHOW_LINES:  # the log has the others
                self._show(key, stream.end(piece.offset + len(piece.data)))
                break
            found = stream.feed(piece.offset + at, piece.data[at : at + DRAIN_BYTES])
            if self._told_ending or self._finishing:
                self._late_lines[key] += len(found)
            self._show(key, found)
            self.drain()

    def _show(self, key: str, found: Iterable[logs.Text | int]) -> None:
        for item in found:
            if isinstance(item, int):
                self.tell("gap", process=key, bytes=item)
            else:
                more = {"more": True} if item.more else {}
                self.tell("line", process=key, text=item.text, **more)

    # --- deciding and ending ---

    def _decide(self) -> None:
        """Carry out what is due, and come back when the next thing is."""
        now = self._loop.now()
        for action in self._supervisor.actions(now):
            if isinstance(action, Signal):
                self._signal(action)
            else:
                assert isinstance(action, Finish)
                self._finish()
        if self._supervisor.why and not self._told_ending:
            self._told_ending = True
            self.tell("ending", why=self._supervisor.why, grace_s=self.placed.plan.limits.grace_s)
        if self._finishing:
            self._maybe_done()
            return
        due_s = self._supervisor.due_s(now)
        if self._timer:
            self._timer.cancel()
        self._timer = self._loop.call_at(due_s, self._decide) if due_s < NEVER else None

    def _signal(self, action: Signal) -> None:
        keys_of: dict[int, list[str]] = {}
        for key in action.keys:
            keys_of.setdefault(self._supervisor.members[key].node, []).append(key)
        for node, keys in keys_of.items():
            if node in self.links:
                self.links[node].line.send({"type": "signal", "keys": keys, "number": int(action.number)})

    def _finish(self) -> None:
        self._finishing, self._finish_s = True, self._loop.now()
        self._owing = {number for number, link in self.links.items() if not link.gone}
        for link in self.links.values():
            link.line.send({"type": "finish"})
        self._loop.call_after(FINISH_LIMIT_S, self._give_up)

    def _on_finished(self, link: Link, m: messages.Finished) -> None:
        self._owing.discard(link.node.id)
        if m["left"]:
            text = f"{link.host}: process {', '.join(m['left'])} can't be ended: {WHY_LEFT}"
            self.tell("note", level="error", text=text)
        elif m["killed"]:
            count = "process" if m["killed"] == 1 else "processes"
            self.tell("note", level="info", text=f"{link.host}: {m['killed']} left-over {count} ended")
        self.tell("node", node=link.node.id, state="ended", text="")

    def _give_up(self) -> None:
        now = self._loop.now()
        for number in sorted(self._owing):
            if now < self._answer_due_s(number):
                continue
            link = self.links[number]
            self.note("error", f"{link.host}: no answer while ending; its keeper goes on there")
            link.gone = True
            self._owing.discard(number)
        if self._owing:
            self._loop.call_at(min(map(self._answer_due_s, self._owing)), self._give_up)
        self._maybe_done()

    def _answer_due_s(self, number: int) -> float:
        heard_s = max(self._finish_s, self.links[number].line.silence.heard_s)
        return min(heard_s + FINISH_LIMIT_S, self._finish_s + FINISH_MOST_S)

    def _maybe_done(self) -> None:
        if self.done or self._owing:
            return
        self.done = True
        self.close()
        result = self._supervisor.result
        assert result is not None
        if result.code == codes.OK and self._supervisor.unreached:
            self.note("warning", "no trainer ever connected to the pservers; --server_num 0 starts none")
        self.end = {
            "code": result.code,
            "reason": result.reason,
            "elapsed_s": round(self._loop.now() - self._started_s, 3),
            "failure": result.failure._asdict() if result.failure else None,
        }
        self.tell("end", **self.end)

    # --- telling ---

    def note(self, level: str, text: str) -> None:
        """Tell observers something that is no event of a process."""
        self.tell("note", level=level, text=text)

    def tell(self, event: str, **fields: Any) -> None:
        if event in ("process", "progress"):
            news = {k: v for k, v in fields.items() if k not in ("process", "node") and v is not None}
            if event == "progress" and "state" in news:
                news["said"] = news.pop("state")
            self._states[fields["process"]].update(news)
        self._events.add({"n": self._next_event, "time": round(self._wall(), 3), "event": event, **fields})
        self._next_event += 1

    def _tell_job(self) -> None:
        placed, plan = self.placed, self.placed.plan
        self.tell(
            "job",
            job=plan.job_id,
            name=plan.name,
            epoch=plan.epoch,
            backend=plan.backend,
            server=plan.server,
            why=plan.why,
            workspace=placed.nodes[0].workspace,
            nodes=[{"id": n.id, "name": n.name} for n in placed.nodes],
            processes=[{"process": p.key, "node": p.node, "log": p.log} for p in placed.processes],
        )
