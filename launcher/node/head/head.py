"""The head: makes all decisions of a job, on whatever machine it runs.

Speaks to agents over lines, carries out the decisions of supervisor.py, and reports events. Observers use
only its interface: `events` from a cursor, and requests.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ... import __version__
from .. import codes, job, logs
from ..dispatch.dispatch import Dispatch, Supply
from ..ending import NEVER, Signal
from ..line.wire import Line, Message, MessageLine, Output
from ..link import JobFailure, Link
from ..loop import Loop, Timer
from ..procs import WHY_LEFT
from ..shapes import check_shape, fits, is_code, is_failure_code
from .events import PROGRESS, EventLog
from .output import OutputOfAll
from .restarts import Restarts
from .startup import Startup
from .supervisor import Exit, Member, Supervisor, make_loss, make_lost_advice

if TYPE_CHECKING:
    from .. import messages
    from ..line.trace import Trace

FINISH_LIMIT_S = 5.0  # for a silent node after the order to finish
FINISH_MOST_S = 60.0  # for a node that still sends: its answer follows the output of its programs
LOOK_FOR_ALL_S = 3.0  # after a node was asked to end, until a restart: a cluster that ends the job asks all
REMEMBER_S = 1.0  # between two messages to remember
TOLD_OF_PLAN = "port", "ports_num", "ports_num_for_sparse", "trainer_count", "use_gpu"


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
        launcher: str = "",
    ) -> None:
        """launcher: this process and its host, for messages, if it is one."""
        self._loop, self.placed, self._trace = loop, placed, trace
        plan = placed.plan
        self.links: dict[int, Link] = {}
        self._numbers = {p.key: i for i, p in enumerate(placed.processes)}
        # The node of each process, then of each node's setup.
        self._node_of = {p.key: p.node for p in placed.processes}
        self._node_of |= {n.setup_key: n.id for n in placed.nodes}
        self._output = OutputOfAll(self._node_of, loop.now)
        self._restarts = Restarts(plan.limits.max_restarts, plan.limits.restart_after_s, loop.now())
        self._supervisor = self._make_supervisor()
        self.log = EventLog(wall_clock, self._numbers)
        self.tell, self.list_events = self.log.tell, self.log.list_events
        package = Dispatch(loop, self, supply)
        self._startup = Startup(self, secret, package, launcher)
        self._hearers = self, self._startup, package
        self._timer: Timer | None = None
        self._told_ending = False
        # Starts other agents for lost nodes; returns all nodes that get one.
        self.revive: Callable[[Sequence[job.Node]], Sequence[job.Node]] | None = None
        self.drain: Callable[[], None] = lambda: None  # gives observers the new events
        self.settled: Callable[[], None] = lambda: None  # called once nodes' paths or addresses are known
        self.linger_s = 0.0  # for which nodes stay after the end, where a launcher will fetch their files
        self._finish_s = NEVER  # time of the order to finish
        self.has_left = False  # another head has to come
        self.done = False
        self.end: dict[str, Any] = {}  # the event `end`, once `done`
        self._tell_job()
        self._limit_time()
        if plan.outlives_head:
            loop.call_every(REMEMBER_S, self._remember)

    def _limit_time(self) -> None:
        if (limit_s := self.placed.plan.limits.timeout_s) is not None:
            why = f"the job took longer than --timeout={limit_s:g} s"
            end_s = self._restarts.started_s + limit_s
            self._loop.call_at(end_s, lambda: self.stop(signal.SIGTERM, why, codes.TIMEOUT))

    # --- the interface of observers ---

    def make_status(self) -> messages.JobStatus:
        """Return the state of the job: each process with its state and last report."""
        return {
            "job": self.placed.plan.job_id,
            "elapsed_s": self._get_elapsed_s(),
            "events": self.log.next,
            "begin": self.log.begin,
            # That it has ended is said by the record, which has the code.
            "state": "ending" if self.done or self._told_ending else "running",
            "restarts": self._restarts.told,
            "processes": [
                {"process": p.key, "node": p.node, **self.log.states[p.key]} for p in self.placed.processes
            ],
        }

    def stop(self, number: int, reason: str, code: int = 0) -> None:
        """Request the end: in order the first time, at once the second. Exit code: `code` or 128+`number`."""
        self._supervisor.stop(number, reason, self._loop.now(), code)
        self._decide()

    def lose_carrier(self, name: str, why: str, *, killed: bool) -> None:
        """End the job without the carrier of its agents; a program may explain the end of one not killed."""
        failure, returns = JobFailure(name, 0, codes.NODE_LOST, f"was lost: {why}"), False
        for link in self.links.values():
            link.bereft, returns = True, self._can_revive(link.node.id)
        self._supervisor.note_loss(failure, self._loop.now(), secondary=not killed, returns=returns)
        self._decide()

    @property
    def _finishing(self) -> bool:
        return self._finish_s < NEVER

    @property
    def code(self) -> int:
        """The job's exit code; only once `done`."""
        return int(self.end["code"])

    # --- lines ---

    def find_awaited(self, number: int) -> job.Node | None:
        """Return the node of this number if its agent has not connected yet."""
        nodes = self.placed.nodes
        known = 0 <= number < len(nodes) and number not in self.links and not self._finishing
        return nodes[number] if known else None

    def attach(self, node: job.Node, own: Line) -> None:
        """Take over the line to this node's agent."""
        line: MessageLine[messages.ToAgent] = MessageLine(
            self._loop,
            own,
            lost_after_s=self.placed.plan.limits.lost_after_s,
            on_message=lambda m: self._hear(self.links[node.id], m),
            on_output=lambda piece: self._take_output(node.id, piece),
            on_lost=lambda reason: self._lose(self.links[node.id], reason),
            trace=self._trace and self._trace.make_note(f"node {node.id} ({node.name})"),
        )
        self.links[node.id] = Link(node, line, own.diagnosis, self.placed.plan.epoch)

    def close(self) -> None:
        for link in self.links.values():
            link.line.close()

    def _tell_lost_node(self, node: int, host: str, why: str) -> None:
        plan, pause = self.placed.plan, self._loop.describe_pause(self.placed.plan.limits.lost_after_s)
        failure = make_loss(plan, f"node {node} ({host})", node, why, self._startup.who, pause)
        self.tell("node", node=node, state="ended" if pause else "lost", text=why)
        returns = node in self.links and self._can_revive(node)
        self._supervisor.note_lost_node(failure, self._loop.now(), returns=returns)

    def give_up(self, node: job.Node, why: str) -> None:
        """Note that no agent comes for a node."""
        again = "no other agent can be started there: " if self.placed.plan.epoch else ""
        if not self._finishing:
            self._tell_lost_node(node.id, node.name, again + why)
        self._decide()

    def _can_revive(self, node: int) -> bool:
        own = self._startup.own_node == node  # we end with it
        return self.placed.plan.outlives_head if own else self.revive is not None and self._restarts.most > 0

    def count_on(self, known: messages.Memory, ago_s: float) -> None:
        plan, left_s = self.placed.plan._replace(epoch=known["epoch"]), self._loop.now() - ago_s
        self.placed = self.placed._replace(plan=plan)
        self._restarts.recall(known, left_s)
        self._limit_time()
        if self._restarts.is_due:  # it has left by itself
            self._startup.begin_again(plan.epoch)
            return
        for link in self.links.values():
            link.epoch = plan.epoch
        why, advice = f"was lost: {known['why']}", make_lost_advice(plan)
        failure = self.links[0].make_failure(codes.NODE_LOST, why, advice=advice)
        self._supervisor.note_lost_node(failure, left_s, returns=True)

    def _remember(self) -> None:
        """Let all nodes know what another head needs, where one comes if ours is lost."""
        memory = self._restarts.describe(self._loop.now())
        if self.placed.plan.outlives_head and memory["ran_s"] >= 0.0:
            for link in self.links.values():
                link.line.send({"type": "remember", "memory": memory, "linger_s": self.linger_s})

    def _lose(self, link: Link, reason: str) -> None:
        link.gone = True
        said = link.diagnosis()
        text = f"its agent: {reason}" + (f"; {said}" if said else "")
        if not self._finishing:
            self._tell_lost_node(link.node.id, link.host, text)
        self._decide()

    def _hear(self, link: Link, message: Message) -> None:
        if self._node_of.get(message.get("key", ""), link.node.id) != link.node.id:
            raise ValueError(f"{message['key']} belongs to another node")
        name = f"on_{message['type']}"
        if message.get("key") and link.epoch != self.placed.plan.epoch:
            return  # its program is of an epoch that has ended
        hearer = next((part for part in self._hearers if hasattr(part, name)), None)
        if hearer:
            getattr(hearer, name)(link, message)
        else:
            self.note("warning", f"{link.host}: unknown message {message['type']!r}")
        self._decide()

    # --- starting ---

    def _make_supervisor(self) -> Supervisor:
        members = {p.key: Member(p.role, p.node, p.log) for p in self.placed.processes}
        plan = self.placed.plan
        return Supervisor(members, plan.limits.grace_s, plan.server, self._restarts)

    def start(self, starts: Sequence[messages.StartMsg]) -> None:
        restart = self._restarts.begin(self._loop.now())
        if restart:
            self._output = OutputOfAll(self._node_of, self._loop.now)
            self.tell("restart", state="running", **restart)
        self._remember()
        of_nodes: dict[int, list[messages.StartMsg]] = {node: [] for node in self.links}
        addrs = tuple(node.addr for node in self.placed.nodes)
        for process, start in zip(self.placed.processes, starts):
            of_nodes[process.node].append(start)
            self._supervisor.note_start(process.key)
        for link in self.links.values():
            if not restart:
                self.tell("node", node=link.node.id, state="ready", text=link.host)
            numbers = {s["key"]: self._numbers[s["key"]] for s in of_nodes[link.node.id]}
            link.line.send({"type": "begin", "nodes": addrs, "numbers": numbers})
            for start in of_nodes[link.node.id]:
                link.line.send(start)

    @property
    def has_setup(self) -> bool:
        return self._startup.has_furnished

    def settle(self) -> None:
        """Place the processes again, with the nodes' paths and addresses."""
        self.placed = job.place(self.placed.plan, [self.links[n.id].node for n in self.placed.nodes])
        for p in self.placed.processes:
            self._supervisor.members[p.key] = Member(p.role, p.node, p.log)
        self.settled()

    @property
    def is_ending(self) -> bool:
        return bool(self._supervisor.why or self._supervisor.failure)

    def fail(self, failure: JobFailure) -> None:
        self._supervisor.note_failure(failure, self._loop.now())
        self._loop.call_after(0.0, self._decide)  # perhaps not caused by a message

    # --- running ---

    def on_started(self, link: Link, m: messages.StartedMsg) -> None:
        self.tell("process", process=m["key"], node=link.node.id, state="running", pid=m["pid"])

    def on_not_started(self, _link: Link, m: messages.NotStartedMsg) -> None:
        self._supervisor.remove(str(m["key"]))

    def on_trouble(self, link: Link, m: messages.TroubleMsg) -> None:
        key = str(m["key"])
        member = self._supervisor.members.get(key)
        what = key if member else link.name
        check_shape(m["code"], is_failure_code, "code")
        code, text, advice = int(m["code"]), str(m["text"]), ""
        link.line.send({"type": "noted"})
        if code == codes.TERM and not member:
            self.stop(signal.SIGTERM, text, code)
            return
        if code == codes.NODE_LOST and not member:
            text, advice = f"was lost: {text}", make_lost_advice(self.placed.plan)
        log = member.log if member else ""
        failure = JobFailure(what, link.node.id, code, text, log=log, advice=advice)
        if code != codes.NODE_LOST:
            self._supervisor.note_failure(failure, self._loop.now())
            return
        link.bereft, returns = True, self._can_revive(link.node.id)
        if member:  # the process that had lent it its environment has ended
            self._supervisor.note_loss(failure, self._loop.now(), secondary=True, returns=returns)
            return
        if len(self.placed.nodes) > 1 and self.placed.plan.outlives_head:
            returns = not all(x.bereft or x.gone for x in self.links.values())
            self._restarts.asked_s = self._loop.now()
            self._loop.call_after(LOOK_FOR_ALL_S, self._decide)
        self._supervisor.note_leaving(failure, self._loop.now(), returns=returns)

    def on_progress(self, _link: Link, m: messages.ProgressMsg) -> None:
        shapes = {k: PROGRESS.get("metric" if k.startswith("metric.") else k) for k in m}
        fields = {k: v for k, v in m.items() if shapes[k] and fits(v, shapes[k])}
        if fields.get("state") in ("connected", "finished"):
            self._supervisor.note_progress(str(m["key"]), str(fields["state"]))
        if "why" in fields:
            blames = str(fields.get("blames", ""))
            self._supervisor.note_explanation(str(m["key"]), str(fields["why"]), blames)
        if self._restarts.note_progress(str(m["key"]), fields):
            self._remember()
        self.tell("progress", process=m["key"], **fields)

    def on_exited(self, link: Link, m: messages.ExitedMsg) -> None:
        key, written = str(m["key"]), int(m["written"])
        tail = tuple(str(line)[: logs.MAX_LINE_CHARS] for line in m["tail"][: logs.TAIL_LINES])
        check_shape(m["code"], is_failure_code if m["signal"] else is_code, "code")
        how = Exit(int(m["code"]), str(m["signal"]), bool(m["asked"]), bool(m["oom"]), tail)
        if m["ahead"]:
            if key in self._numbers:
                self._output.show_more(key)
                self._supervisor.note_exit(key, how, self._loop.now())
            return
        self._show(key, self._output.end(key, written))
        if key not in self._numbers:
            self._startup.end_furnishing(link, how)
            return
        ended = {"state": "exited", "code": how.code, "signal": how.signal or None}
        self.tell("process", process=key, node=link.node.id, **ended)
        self._supervisor.note_exit(key, how, self._loop.now())

    def _take_output(self, node: int, piece: Output) -> None:
        key = self._output.find_key(node, piece)
        if not key or (key in self._numbers and self._supervisor.is_retired(key)):
            return  # the latter is reported at its exit, as a gap
        is_limited = self._told_ending or self._finishing
        has_exited = self.log.states.get(key, {}).get("state") == "exited"
        for found in self._output.split(key, piece, is_limited=is_limited, has_exited=has_exited):
            self._show(key, found)
            self.drain()

    def _show(self, key: str, found: Iterable[logs.LogLine | int]) -> None:
        for item in found:
            if isinstance(item, int):
                self.tell("gap", process=key, bytes=item)
            else:
                more = {"more": True} if item.more else {}
                self.tell("line", process=key, text=item.text, **more)

    # --- deciding and ending ---

    def _decide(self) -> None:
        """Carry out due actions, and call again at the next due time."""
        now = self._loop.now()
        if self.has_left:
            return
        for action in self._supervisor.decide(now):
            self._send_signals(action)
        if self._supervisor.restarting and self._restarts.used == self.placed.plan.epoch:
            self._tell_restart()
        if self._supervisor.result and not self._finishing:
            (self._restart if self._supervisor.restarting else self._finish)()
        if self._supervisor.why and not self._told_ending:
            self._told_ending = True
            if self._supervisor.why_final:
                self.note("warning", f"no restart: {self._supervisor.why_final}")
            self.tell("ending", why=self._supervisor.why, grace_s=self.placed.plan.limits.grace_s)
        if self._finishing:
            self._end_if_answered()
            return
        due_s = self._supervisor.find_due_s(now)
        if self._timer:
            self._timer.cancel()
        self._timer = self._loop.call_at(due_s, self._decide) if due_s < NEVER else None

    def _send_signals(self, action: Signal) -> None:
        keys_of: dict[int, list[str]] = {}
        for key in action.keys:
            keys_of.setdefault(self._supervisor.members[key].node, []).append(key)
        for node, keys in keys_of.items():
            if node in self.links:
                self.links[node].line.send({"type": "signal", "keys": keys, "number": int(action.number)})

    def _tell_restart(self) -> None:
        failure = self._supervisor.failure
        assert failure is not None
        told = self._restarts.prepare(self.placed.plan.epoch + 1, failure, self._supervisor.failed_s)
        self.tell("restart", state="ending", failure=failure._asdict(), **told)

    def _restart(self) -> None:
        """Start the next epoch as the job has started, from its ports on; agents end what is left before."""
        if self._loop.now() < self._restarts.asked_s + LOOK_FOR_ALL_S:
            return
        plan = self.placed.plan
        if plan.outlives_head and 0 in self.links and self.links[0].bereft:  # another head goes on
            self.note("warning", "the head leaves with node 0, and another one goes on with the job")
            self._remember()
            self.close()
            self.has_left = True
            return
        self.placed = self.placed._replace(plan=plan._replace(epoch=plan.epoch + 1))
        self._supervisor = self._make_supervisor()
        renewed = self._startup.returning
        links = [link for link in self.links.values() if link.gone or link.bereft or link.node.id in renewed]
        if links and self.revive:
            for node in self.revive([link.node for link in links]):
                self.links.pop(node.id).line.close()
        self._startup.begin_again(self.placed.plan.epoch)

    def _finish(self) -> None:
        self._finish_s = self._loop.now()
        for link in self.links.values():
            link.line.send({"type": "finish", "linger_s": self.linger_s})
        self._loop.call_after(FINISH_LIMIT_S, self._give_up)

    def on_finished(self, link: Link, m: messages.FinishedMsg) -> None:
        link.gone = True
        if m["left"]:
            self.note("error", f"{link.host}: process {', '.join(m['left'])} can't be ended: {WHY_LEFT}")
        elif m["killed"]:
            count = "process" if m["killed"] == 1 else "processes"
            self.note("info", f"{link.host}: {m['killed']} left-over {count} ended")
        self.tell("node", node=link.node.id, state="ended", text="")

    def _give_up(self) -> None:
        now = self._loop.now()
        for link in self._list_owing():
            if now >= self._find_answer_due_s(link):
                why = "no answer while ending; pslaunch on that host ends its programs"
                self.note("error", f"{link.host}: {why}")
                link.gone = True
        if owing := self._list_owing():
            self._loop.call_at(min(map(self._find_answer_due_s, owing)), self._give_up)
        self._end_if_answered()

    def _list_owing(self) -> list[Link]:
        """Return the nodes that have not answered the order to finish."""
        return [self.links[number] for number in sorted(self.links) if not self.links[number].gone]

    def _find_answer_due_s(self, link: Link) -> float:
        heard_s = max(self._finish_s, link.line.silence.heard_s)
        return min(heard_s + FINISH_LIMIT_S, self._finish_s + FINISH_MOST_S)

    def _end_if_answered(self) -> None:
        if self.done or self._list_owing():
            return
        self.done = True
        self.close()
        result = self._supervisor.result
        assert result is not None
        if result.code == codes.OK and self._supervisor.has_unreached_pservers:
            self.note("warning", "no trainer ever connected to the pservers; --server_num 0 starts none")
        failure = result.failure._asdict() if result.failure else None
        self.end = {"code": result.code, "reason": result.reason, "elapsed_s": self._get_elapsed_s(),
                    "failure": failure}  # fmt: skip
        self.tell("end", **self.end)

    def _get_elapsed_s(self) -> float:
        return round(self._loop.now() - self._restarts.started_s, 3)

    # --- telling ---

    def note(self, level: str, text: str) -> None:
        self.tell("note", level=level, text=text)

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
            version=__version__,
            # No arguments and variables of programs: there may be secrets in them.
            plan={name: getattr(plan, name) for name in TOLD_OF_PLAN} | {"flags": dict(plan.flags)},
        )
