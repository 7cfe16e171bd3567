"""Questions to all nodes before programs start, each asked after all have answered the one before.

hello, prepare, addresses, ports: from the declared plan to the literal values of every process. A failure
here ends the job before any program of the user ran.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pslaunch.runtime.shared.env import PSERVER

from .. import binding, codes, dealing, job
from ..later import record
from ..line import reach
from ..link import JobFailure
from ..logs import ADVICE_MARK
from ..procs import WHY_LEFT
from ..shapes import check_shape, is_count, is_name, is_port, is_time
from .restarts import Restarts

if TYPE_CHECKING:
    from .. import messages
    from ..dispatch.dispatch import Dispatch
    from ..link import Desk, Link
    from .supervisor import Exit

PORT_TRIES = 200
_KNOWN = {"ago_s": is_time, "memory": {
    "epoch": is_count, "told": [record.RESTART], "same": [[(is_name, int, [int])]], "at": dict,
    "cut": (is_count, None), "sealed": (is_count, None), "ran_s": is_time, "job_s": is_time, "why": str,
}}  # fmt: skip


class Startup:
    """Questioner of all nodes, stage after stage; `on_…` take the answers."""

    def __init__(self, desk: Desk, secret: str, package: Dispatch, launcher: str) -> None:
        self._desk, self._secret, self._package, self._launcher = desk, secret, package, launcher
        plan = desk.placed.plan
        self._missing = {n.id for n in desk.placed.nodes}  # that have not answered the last question,
        self._answers: tuple[str, ...] = ("hello",)  # by a message of such a type;
        self._then = self._recall  # this follows
        self._known: dict[int, tuple[messages.Memory, float]] = {}  # by node, of a head lost so long ago
        self._port, self._other_port, self._port_tries = plan.port or job.FIRST_PORT, job.FIRST_PORT, 0
        self._bound_ports: dict[str, tuple[int, ...]] = {}
        self._refused_ports = False
        self._resources: dict[int, messages.Resources] = {}  # of each node
        self._shares: Mapping[str, job.Share] = {}
        self.who = "the launcher" if launcher else "the head of the job"
        self.own_node = None if launcher else 0  # on which this process is
        self.returning: set[int] = set()  # nodes whose agents are new, until programs start
        self.has_furnished = False  # --install or --setup has begun on a node

    def _ask_all(
        self,
        question: Callable[[Link], messages.ToAgent | None],
        then: Callable[[], None],
        *answers: str,
        awaited: Iterable[int] = (),
    ) -> None:
        """Ask every node for which `question` returns a message; call `then` once all have answered.

        `answers`: types of messages that are an answer; `awaited`: nodes that give one without a question.
        """
        asked = [(link, message) for link in self._desk.links.values() if (message := question(link))]
        self._missing, self._answers, self._then = {link.node.id for link, _ in asked}, answers, then
        self._missing.update(awaited)
        for link, message in asked:
            link.line.send(message)
        self._go_on()

    def _take_answer(self, link: Link, m: messages.HelloMsg | messages.OfAgent) -> None:
        if link.epoch != self._desk.placed.plan.epoch:
            return  # to a question before the last `clear`
        if m["type"] not in self._answers:
            raise ValueError(f"{m['type']!r} was not asked for")
        self._missing.discard(link.node.id)
        self._go_on()

    def _go_on(self) -> None:
        if not self._missing and not self._desk.is_ending:
            then, self._then = self._then, lambda: None  # only once, even after late answers
            then()

    on_bound = on_shut = _take_answer

    # --- the stages ---

    def on_hello(self, link: Link, m: messages.HelloMsg) -> None:
        self._desk.tell("node", node=link.node.id, state="connected", text="")
        self._take_answer(link, m)

    def _recall(self) -> None:
        """Ask whether another head has led this job before, if one may have."""
        plan = self._desk.placed.plan

        def make_order(link: Link) -> messages.RecallMsg | None:
            snapshots = binding.find_snapshots(plan, link.node)
            recall: messages.RecallMsg = {"type": "recall", "job_id": plan.job_id, "snapshots": snapshots}
            return recall if plan.outlives_head else None

        self._ask_all(make_order, self._count_on, "known")

    def on_known(self, link: Link, m: messages.KnownMsg) -> None:
        if m["memory"]:
            check_shape(m, _KNOWN)
            Restarts(0, 0.0).recall(m["memory"], 0.0)  # with all values
            self._known[link.node.id] = m["memory"], m["ago_s"]
        self._take_answer(link, m)

    def _count_on(self) -> None:
        if self._known:
            newest = max(self._known.values(), key=lambda one: (one[0]["epoch"], one[0]["job_s"]))
            self._desk.count_on(*newest)
        else:
            self._prepare()

    def _prepare(self) -> None:
        plan = self._desk.placed.plan

        def make_order(link: Link) -> messages.PrepareMsg | None:
            n = link.node
            if link.run_dir:
                return None  # it was, in an epoch before
            return {
                "type": "prepare",
                "job_id": plan.job_id,
                "node": n.id,
                "workspace": n.workspace,
                "dispatched": n.dispatched,
                "filled": self._package.has_to_fill(n),
                "log_dir": n.log_dir,
                "output_dir": n.output_dir,
                "state_dir": n.state_dir,
                "secret": None if link.line.is_sealed else self._secret,
                "addr": plan.nodes[n.id].addr if plan.nodes else n.addr,  # as declared
                "nic": plan.nic,
                "nodes": len(self._desk.placed.nodes),
                "lost_after_s": plan.limits.lost_after_s,
                "grace_s": plan.limits.grace_s,
                "launcher": self._launcher,
                "keep_logs": plan.keep_logs,
                "trace": plan.trace,
                "bind_cores": plan.wants.bind_cores,
            }

        self._ask_all(make_order, self._settle_paths, "prepared")

    def on_prepared(self, link: Link, m: messages.PreparedMsg) -> None:
        link.host, link.run_dir = link.node.name or str(m["host"]), str(m["run_dir"])
        link.addrs = reach.check_addrs(m["addrs"])
        if link.node.addr and link.node.addr not in link.addrs:  # it has come back elsewhere
            link.node = link.node._replace(addr=link.addrs[0])
        link.shared = None if m["shared"] is None else self._desk.placed.nodes[int(m["shared"])].id
        link.node = link.node._replace(
            workspace=str(m["workspace"]),
            log_dir=str(m["log_dir"]),
            output_dir=str(m["output_dir"]),
            state_dir=str(m["state_dir"]),
            python=link.node.python or str(m["python"]),
        )
        self._resources[link.node.id] = dealing.check_resources(m["resources"])
        if m["left"]:
            self._desk.tell("note", level="warning", text=f"{link.host}: {m['left']}")
        self._take_answer(link, m)

    def _settle_paths(self) -> None:
        self._desk.settle()
        if self.returning and self._bound_ports:  # the others have all
            self._package.begin(self._propose_ports, self.returning)
            return
        self._shares, lacks = dealing.deal_resources(self._desk.placed, self._resources)
        for node, text in lacks.items():
            link = self._desk.links[node]
            self._desk.fail(link.make_failure(codes.PREFLIGHT, text, advice=dealing.LACK_ADVICE))
            return
        wants = self._desk.placed.plan.wants
        if wants.gpus_per_trainer is None and dealing.has_own_gpus(self._desk.placed, self._shares):
            text = "each trainer sees an even share of its node's GPUs (--gpus_per_trainer=0: all of them)"
            self._desk.tell("note", level="info", text=text)
        self._package.begin(self._furnish)

    def _furnish(self) -> None:
        plan = self._desk.placed.plan
        if not plan.has_setup:
            self._find_addrs()
            return
        self.has_furnished = True

        def make_order(link: Link) -> messages.FurnishMsg:
            return {
                "type": "furnish",
                "key": link.node.setup_key,
                "number": len(self._desk.placed.processes) + link.node.id,
                "log": link.node.setup_log,
                "workspace": link.node.workspace,
                "state_dir": link.node.state_dir,
                "install": plan.install._asdict() if plan.install else None,
                "setup": plan.setup,
                "added_env": dict(plan.added_env),
            }

        self._ask_all(make_order, self._find_addrs, "furnished")

    def begin_again(self, epoch: int) -> None:
        """Start the programs of the next epoch, once the agents have ended what is left of the last one.

        Other agents are on their way to nodes without a link.
        """
        lost = self.returning = {node.id for node in self._desk.placed.nodes} - {*self._desk.links}
        is_ready = not lost and all(link.run_dir for link in self._desk.links.values())
        then = self._propose_ports if is_ready else self._prepare
        self._ask_all(lambda _link: {"type": "clear", "epoch": epoch}, then, "cleared", "hello", awaited=lost)

    def on_cleared(self, link: Link, m: messages.ClearedMsg) -> None:
        link.epoch = int(m["epoch"])
        if m["left"]:
            text = f"process {', '.join(map(str, m['left']))} can't be ended: {WHY_LEFT}"
            self._desk.fail(link.make_failure(codes.NODE_LOST, text))
        self._take_answer(link, m)

    def end_furnishing(self, link: Link, how: Exit) -> None:
        if how.code == codes.OK:
            return
        *tail, said = how.tail or ("it wrote nothing",)
        advice = said.removeprefix(ADVICE_MARK) if said.startswith(ADVICE_MARK) else ""
        if advice and tail:
            said = tail.pop()
        log, text = link.node.setup_log, f"can't be made ready: {said}"
        self._desk.fail(link.make_failure(how.code, text, log=log, tail=tuple(tail), advice=advice))

    def on_furnished(self, link: Link, m: messages.FurnishedMsg) -> None:
        link.node = link.node._replace(python=str(m["python"]) or link.node.python)
        self._take_answer(link, m)

    def _find_addrs(self) -> None:
        self._desk.settle()
        nodes = self._desk.placed.nodes
        if all(node.addr for node in nodes):
            self._propose_ports()
        elif len(nodes) == 1:
            self._settle_addrs([self._desk.links[nodes[0].id].addrs[0]])
        else:
            port = self._desk.placed.plan.port or 0
            try_likeliest = functools.partial(self._try_doors, 1, reach.FIRST_REACH_S)
            self._ask_all(lambda _link: {"type": "door", "port": port}, try_likeliest, "opened")

    # Addresses: every node opens a door; the others try its likeliest address and, unless all reach all by
    # these, every address. Doors at a port given by the user are shut before ports are bound: a door occupies
    # all addresses of a machine, which may be several nodes.

    def on_opened(self, link: Link, m: messages.OpenedMsg) -> None:
        check_shape(m["port"], is_port, "port")
        link.door = m["port"]
        self._take_answer(link, m)

    def _try_doors(self, addrs: int | None, limit_s: float) -> None:
        links = [self._desk.links[n.id] for n in self._desk.placed.nodes]
        tries = reach.plan_tries(len(links))

        def make_order(link: Link) -> messages.ReachMsg:
            others = [links[k] for k in tries[link.node.id]]
            doors = [(x.node.id, addr, x.door) for x in others for addr in x.addrs[:addrs]]
            return {"type": "reach", "doors": doors, "limit_s": limit_s}

        self._ask_all(make_order, lambda: self._choose_addrs(addrs), "reached")

    def on_reached(self, link: Link, m: messages.ReachedMsg) -> None:
        link.reached = [(int(node), str(addr)) for node, addr in m["reached"]]
        self._take_answer(link, m)

    def _choose_addrs(self, tried: int | None) -> None:
        links = [self._desk.links[n.id] for n in self._desk.placed.nodes]
        known = [x.addrs[:tried] for x in links]
        chosen, wrong = reach.sort_out([x.host for x in links], known, {x.node.id: x.reached for x in links})
        addrs = [*chosen.values()]
        if wrong and tried is not None:
            self._try_doors(None, reach.REACH_S)
        elif wrong:
            text = "; ".join(f"{links[k].host} {why}" for k, why in wrong.items())
            advice = (
                "open the nodes' network to each other, or name the interface that they share: PADDLE_NIC"
            )
            self._desk.fail(JobFailure("the nodes", 0, codes.PREFLIGHT, text, advice=advice))
        elif self._desk.placed.plan.port:
            self._ask_all(lambda _link: {"type": "shut"}, lambda: self._settle_addrs(addrs), "shut")
        else:
            self._settle_addrs(addrs)

    def _settle_addrs(self, addrs: Sequence[str]) -> None:
        for node, addr in zip(self._desk.placed.nodes, addrs):
            link = self._desk.links[node.id]
            link.node = link.node._replace(addr=addr)
        self._desk.settle()
        self._propose_ports()

    def _propose_ports(self) -> None:
        """Propose ports to all nodes; any refusal leads to the next proposal."""
        placed = self._desk.placed
        self._bound_ports = job.propose_ports(placed, self._port, self._other_port)
        if max((p for ports in self._bound_ports.values() for p in ports), default=0) > 65535:
            text = f"needs ports beyond 65535 from {self._port} on"
            self._desk.fail(JobFailure("the job", 0, codes.SERVICE, text))
            return
        self._refused_ports = False
        # The holder of a port is slow to find, and matters only in a last proposal.
        last = placed.plan.port is not None or self._port_tries >= PORT_TRIES
        node_of = {p.key: p.node for p in placed.processes}
        wanted: dict[int, dict[str, list[int]]] = {}
        for key, ports in self._bound_ports.items():
            wanted.setdefault(node_of.get(key, 0), {})[key] = list(ports)

        def make_order(link: Link) -> messages.PortsMsg | None:
            own = wanted.get(link.node.id)
            return {"type": "ports", "addr": link.node.addr, "ports": own, "last": last} if own else None

        self._ask_all(make_order, self._start_or_propose, "bound", "busy")

    def on_busy(self, link: Link, m: messages.BusyMsg) -> None:
        check_shape(m["port"], is_port, "port")
        given = self._desk.placed.plan.port is not None and str(m["key"]).startswith(PSERVER)
        by = f", held by {m['holder']}" if m["holder"] else ""
        if given or not m["busy"] or self._port_tries >= PORT_TRIES:
            advice = "give another --port" if given else "give a --port"
            if given and m["busy"]:
                advice = f"end the program that holds it, or {advice}"
            text = f"can't listen on {m['text']}{by}"
            self._desk.fail(link.make_failure(codes.SERVICE, text, advice=advice))
            return
        self._port_tries += 1
        if str(m["key"]).startswith(PSERVER):
            self._port = max(self._port, int(m["port"]) + 1)
        else:
            self._other_port = max(self._other_port, int(m["port"]) + 1)
        self._refused_ports = True
        self._take_answer(link, m)

    def _start_or_propose(self) -> None:
        if self._refused_ports:
            self._propose_ports()
            return
        placed, links = self._desk.placed, self._desk.links
        run_dirs = tuple(links[n.id].run_dir for n in placed.nodes)
        facts = job.Facts(run_dirs, self._bound_ports, self._shares)
        self.returning = set()
        self._desk.start(binding.bind(placed, facts))
