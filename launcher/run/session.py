"""The launcher's side of one running job: backend, head, view, and the end."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TextIO, TypeVar, cast

from ..backends.base import CLOSE_EXTRA_S, Backend, Dial, Line, find_backend
from ..errors import (
    STOP_SIGNALS,
    EndedEarlyError,
    FileError,
    HostError,
    HostsError,
    NodeLostError,
    PreflightError,
    PslaunchError,
    SpecError,
)
from ..node import codes
from ..node.job import Facts, Node, Plan, place
from ..node.later import record
from ..node.loop import Loop
from ..options.spec import JobSpec
from ..plan import dry_run as plan_as_data
from ..plan import make_plan, render
from ..views.async_writer import Outlet
from ..views.make_view import make_view

if TYPE_CHECKING:
    from ..backends.base import Ended
    from ..node.dispatch.head_side import Supply
    from ..node.head.events import Event
    from ..node.head.head import Head
    from ..node.line.trace import Trace
    from ..node.messages import JobRecord
    from ..views.view import View
    from .observe import HeadView, RemoteHead

TICK_S = 0.125
# Ends that say nothing of a host, or name it already: what then goes on is to be over soon.
NO_LOOK = (codes.OK, codes.USAGE, codes.INT, codes.TERM, codes.HUP, codes.NODE_LOST)
T = TypeVar("T")
Started = list[tuple[Node, Line]]


def new_job_id(name: str) -> str:
    """Unique, sortable by time, and readable: `word2vec-20260102-030405-1a2b`."""
    safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)[:40] or "job"
    return f"{safe}-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"


def dry_run(spec: JobSpec, *, as_json: bool, connect: bool = False) -> str:
    """What `run` would start, without starting anything; with `connect` the hosts are asked what they know.

    Raises PslaunchError where a host that is asked is not in order, or the package can't be sent.
    """
    plan = make_plan(spec, new_job_id(spec.job_name))
    if connect:
        from ..check.check import find_facts

        placed, facts = find_facts(spec, plan)
    else:
        placed = place(plan, plan.nodes)
        facts = Facts.symbolic(placed)
        if plan.package:
            from ..ship.package import list_sizes

            list_sizes(plan.package)  # raises where it can't be sent
    data = plan_as_data(placed, facts)
    return json.dumps(data) if as_json else render(data)


def run(spec: JobSpec, *, as_json: bool, out: TextIO | None = None) -> int:
    """Run the job to its end and return its exit code; with `--detach`, until its programs run.

    Raises PslaunchError where it can't begin.
    """
    _make_room(spec)
    trace = _begin_trace(spec)
    plan = _with_wheels(make_plan(spec, new_job_id(spec.job_name)), spec)
    if spec.detach and spec.site.reach is not None:
        _remember(plan, spec.site.reach).unlink()  # it is not led yet
    try:
        code, began = _run(spec, plan, trace, as_json=as_json, out=out)
    except HostsError as e:
        if _inspect_hosts(spec, e.failed):
            raise e.told_above() from e
        raise
    except PreflightError:  # of the node that was to lead
        _inspect_hosts(spec, {})
        raise
    if not began and code not in NO_LOOK:
        _inspect_hosts(spec, {})
    return code


def _make_room(spec: JobSpec) -> None:
    """The folders for results, now rather than after the training. Raises SpecError."""
    for name, folder in (("fetch_output", spec.fetch_output), ("fetch_logs", spec.fetch_logs)):
        try:
            if folder:
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise SpecError(f"--{name}={folder}: the folder can't be made: {e.strerror}") from None


def _begin_trace(spec: JobSpec) -> Trace | None:
    if spec.trace is None:
        return None
    from ..check.check import begin_trace

    return begin_trace(spec.trace, "launcher")


def _inspect_hosts(spec: JobSpec, failed: Mapping[int, HostError]) -> bool:
    """Nothing was started: say what is wrong with the hosts, all of it. Whether that includes `failed`."""
    if not (spec.site.remote and spec.site.nodes):
        return False
    from ..check.check import check_after_failed_start

    return check_after_failed_start(spec, failed)


def _with_wheels(plan: Plan, spec: JobSpec) -> Plan:
    """What `--install` wants on the nodes goes along with the package."""
    if not spec.install or plan.package is None:
        return plan
    from ..node.agent.install import OWN_WHEEL, WHEELHOUSE
    from ..ship.wheel import keep_wheel

    try:
        folder = keep_wheel(spec.wheel, os.environ)
    except OSError as e:
        raise FileError.from_os(e, "keep the wheel that goes to the nodes (XDG_CACHE_HOME says where)") from e
    extras = {OWN_WHEEL: str(folder), **({WHEELHOUSE: str(spec.wheelhouse)} if spec.wheelhouse else {})}
    return plan._replace(package=plan.package._replace(extras=extras))


def _run(
    spec: JobSpec, plan: Plan, trace: Trace | None = None, *, as_json: bool, out: TextIO | None
) -> tuple[int, bool]:
    """The exit code, and whether any program was started."""
    site = spec.site
    backend = find_backend(spec.backend).make_backend(site.reach)
    loop, outlet = Loop(), Outlet(out or sys.stdout)
    with contextlib.ExitStack() as at_end:
        at_end.callback(outlet.drain)
        if trace:
            at_end.callback(trace.close)
        at_end.callback(loop.close)
        # From here on a signal waits in the loop, which runs once somebody can end what was started.
        loop.on_signals({n: lambda: None for n in STOP_SIGNALS})
        limits, led = plan.limits, spec.head == "node"
        if led:
            first = plan.nodes[0]
            starting = Begun(loop, lambda: [(first, backend.start_head(first, limits))])
        else:
            starting = Begun(loop, lambda: backend.start(plan.nodes, limits))
        at_end.callback(backend.close)
        at_end.callback(_leave, starting, backend)
        view = make_view(json=as_json, out=cast(TextIO, outlet), clock=time.monotonic)
        at_end.callback(view.close)
        watch = Watch(loop, view, outlet)
        watch.on_ending = backend.ends_within
        remote = None
        if led:
            remote = _head_on_node(loop, backend, plan, watch, starting, at_end, trace, detach=spec.detach)
        if remote and site.reach is not None:
            with contextlib.suppress(FileError):
                _remember(plan, site.reach)
        head = remote or _head_here(loop, backend, plan, watch, starting, at_end, trace)
        watch.begin(head)
        if backend.ended:
            _stop_if_gone(loop, backend.ended, head)
        if remote and spec.detach:
            watch.until(lambda: watch.all_run or head.done)
            if not head.done and remote.free():
                backend.release()
                watch.say(
                    "the job goes on by itself; "
                    f"pslaunch status, logs, stop and fetch take its id: {plan.job_id}"
                )
                return codes.OK, True
        watch.until_done()
        if spec.fetch_output or spec.fetch_logs:
            fetched = _fetch(loop, spec, plan, backend, watch, _settled(plan, head))
            return head.code or fetched, watch.any_began
        if site.remote and head.code == codes.OK and not as_json:  # where `end` is the last line
            node_0 = (plan.nodes or _settled(plan, head))[0]
            watch.say(f"output is in {node_0.output_dir} on {node_0.name}; --fetch_output brings it")
        return head.code, watch.any_began


class Begun(Generic[T]):
    """Slow work with nodes, which a thread does from now on."""

    def __init__(self, loop: Loop, work: Callable[[], T]) -> None:
        self._loop = loop
        self._found: list[T] = []
        self._over: list[Exception | None] = []
        self._done = done = threading.Event()

        def run() -> None:
            try:
                self._found.append(work())
            finally:
                done.set()

        loop.aside(run, self._over.append)

    def leave(self, cut: Callable[[], None]) -> T | None:
        """What it has brought; where it is not over yet, `cut` ends it soon."""
        if not self._done.is_set():
            cut()
            self._done.wait(CLOSE_EXTRA_S)
        return self._found[0] if self._found else None

    def wait(self, asked: Callable[[], bool], cut: Callable[[], None]) -> T | None:
        """What it brings, while the loop runs. Once its end is asked for, `cut` ends it soon.

        None where nothing came of it then; else raises what the work raised.
        """
        self._loop.run(lambda: bool(self._over) or asked())
        while not self._over:
            cut()
            self._loop.run_once(TICK_S)
        if self._over[0] and not asked():
            raise self._over[0]
        return self._found[0] if self._found else None


def _head_here(
    loop: Loop,
    backend: Backend,
    plan: Plan,
    watch: Watch,
    starting: Begun[Started],
    at_end: contextlib.ExitStack,
    trace: Trace | None,
) -> Head:
    from ..node.head.head import Head

    started = [] if plan.nodes else _wait_for_nodes(loop, backend, watch, starting, "the cluster")
    nodes = plan.nodes or [node for node, _ in started]
    try:
        placed = place(plan, nodes)
    except ValueError as e:  # of nodes that their agents reported
        raise PreflightError(f"the nodes of {plan.backend} can't have this job: {e}") from None
    head = Head(loop, placed, os.urandom(32).hex(), time.time, _supply(loop, plan), trace)
    at_end.callback(head.close)
    head.drain = watch.show
    _stop_on_signals(loop, backend, head.stop)
    started = starting.wait(lambda: head.done, functools.partial(_cut, backend, watch, head)) or []
    while started and not head.done:
        node, line = started[0]
        head.attach(node, *line)
        started.pop(0)
    return head


def _wait_for_nodes(
    loop: Loop, backend: Backend, watch: Watch, starting: Begun[Started], shown: str
) -> Started:
    """Return what was started, where there can be no head before. Raises EndedEarlyError."""
    asked: list[tuple[int, str]] = []

    def ask(number: int, why: str) -> None:
        if not asked:
            watch.say(f"ending: {why}; {shown} is not waited for any longer")
        asked.append((number, why))

    _stop_on_signals(loop, backend, ask)
    started = starting.wait(lambda: bool(asked), backend.cancel) or []
    if asked:
        raise EndedEarlyError(*asked[0])
    return started


def _stop_if_gone(loop: Loop, ended: Ended, head: HeadView) -> None:
    """Have the job end once what carries it is gone, unless it ends already."""

    def stop() -> None:
        loop.watch(ended.fd)
        head.stop(signal.SIGTERM, ended.words(), codes.NODE_LOST)

    loop.watch(ended.fd, read=stop)


def _leave(starting: Begun[Started], backend: Backend) -> None:
    """Close the lines that no head has taken."""
    for _, line in starting.leave(backend.cancel) or ():
        line.close()


def _cut(backend: Backend, watch: Watch, head: HeadView) -> None:
    """Reach no more nodes, and show that the job ends; not before: questions may stand on the terminal."""
    backend.cancel()
    watch.begin(head)


def _head_on_node(
    loop: Loop,
    backend: Backend,
    plan: Plan,
    watch: Watch,
    starting: Begun[Started],
    at_end: contextlib.ExitStack,
    trace: Trace | None,
    *,
    detach: bool,
) -> RemoteHead:
    from .observe import RemoteHead

    first, secret = plan.nodes[0], os.urandom(32).hex()
    _, line = _wait_for_nodes(loop, backend, watch, starting, first.name).pop()
    head = RemoteHead(
        loop,
        line,
        name=f"node 0 ({first.name})",
        lost_after_s=plan.limits.lost_after_s,
        supply=_supply(loop, plan),
        trace=trace and trace.of("head"),
    )
    at_end.callback(head.close)
    head.on_slow = lambda text: watch.say(text, "warning")
    _stop_on_signals(loop, backend, head.stop)
    port, addrs = head.lead(place(plan, plan.nodes), secret, detach=detach)
    if port:
        head.follow()
        dial = Dial(addrs, port, secret)
        rest, limits = plan.nodes[1:], plan.limits
        cut = functools.partial(_cut, backend, watch, head)
        Begun(loop, lambda: backend.start_dialing(rest, limits, dial)).wait(lambda: head.done, cut)
        head.expect()
    elif not head.done:
        kinds = {codes.PREFLIGHT: PreflightError, codes.IO: FileError}
        kind = kinds.get(head.answers.get("refused", {}).get("code", codes.NODE_LOST), NodeLostError)
        raise kind(f"node 0 ({first.name}) does not lead the job: {head.refusal or 'no answer'}")
    return head


def _settled(plan: Plan, head: Head | RemoteHead) -> Sequence[Node]:
    """The nodes with the folders that each of them has had: where they share one, not those of the plan."""
    from ..node.line.wire import NONSENSE
    from .observe import RemoteHead

    if not isinstance(head, RemoteHead):
        return head.placed.nodes
    with contextlib.suppress(*NONSENSE):
        told = zip(plan.nodes, head.answers["places"]["places"], strict=True)
        return [node._replace(log_dir=str(logs), state_dir=str(state)) for node, (logs, state) in told]
    return plan.nodes


def _fetch(
    loop: Loop, spec: JobSpec, plan: Plan, backend: Backend, watch: Watch, nodes: Sequence[Node]
) -> int:
    """Bring the results; what can't be brought is told. Returns an exit code, 0 where all came."""
    from .fetch import Fetched, fetch_results

    # What lies there otherwise is of an earlier job, or of one that runs.
    output = spec.fetch_output if watch.any_began else None
    logs = spec.fetch_logs if watch.any_ran or spec.trace else None
    places = [str(place) for place in (output, logs) if place]
    if not places:
        watch.say("nothing is fetched: no program of this job has run")
        return codes.OK
    asked: list[tuple[int, str]] = []
    _stop_on_signals(loop, backend, lambda number, why: asked.append((number, why)))

    def work() -> Fetched:
        return fetch_results(backend, plan.job_id, nodes, output=output, logs=logs)

    try:
        # `release`: the job is over, there is nothing on the nodes to wait for.
        found = Begun(loop, work).wait(lambda: bool(asked), backend.release)
        if found is None:
            number, why = asked[0]
            watch.say(f"results were not fetched to the end: {why}", "error")
            return codes.SIGNAL_BASE + number
    except PslaunchError as e:
        first = plan.nodes[0]
        watch.say(f"results were not fetched: {e}; they are in {first.output_dir} on {first.name}", "error")
        return e.exit_code
    for left_out in found.left_out:
        watch.say(f"not fetched: {left_out}", "warning")
    watch.say(f"results are in {' and '.join(places)}")
    return codes.OK


def _remember(plan: Plan, reach: object) -> Path:
    """Note where a job is led that is not led on this machine, for later shells. Raises FileError."""
    path = Path(record.folder(os.environ)) / (plan.job_id + record.POINTER)
    data = find_backend(plan.backend).to_data(reach)
    fixed: JobRecord = {
        "job": plan.job_id, "name": plan.name, "backend": plan.backend, "nodes": len(plan.nodes),
        "started": round(time.time(), 3), "reach": data,
    }  # fmt: skip
    if why := record.Record(str(path), fixed).write({"state": record.ELSEWHERE}):
        raise FileError(f"later shells could not find the job: {why}")
    return path


def _supply(loop: Loop, plan: Plan) -> Supply | None:
    if plan.package is None:
        return None
    from ..ship.package import Folder  # only where something is sent

    return Folder(loop, plan.package)


def _stop_on_signals(loop: Loop, backend: Backend, stop: Callable[[int, str], None]) -> None:
    came: list[int] = []

    def ask(number: int, why: str) -> None:
        if came:
            backend.ends_within(0.0)
        came.append(number)
        stop(number, why)

    loop.on_signals({n: functools.partial(ask, n, why) for n, why in STOP_SIGNALS.items()})


class Watch:
    """Shows a head's events while its loop runs, from `begin` on; lines of our own also before."""

    def __init__(self, loop: Loop, view: View, outlet: Outlet) -> None:
        self._loop, self._view, self._outlet = loop, view, outlet
        self._head: HeadView | None = None
        self._cursor = 0
        self._gaps: dict[str, Event] = {}  # what was left out for a slow reader, by process
        self._broken: OSError | None = None
        self.on_ending: Callable[[float], None] = lambda _grace_s: None
        self.any_began = False  # whether any process has been started
        self.any_ran = False  # whether anything has, what makes a node ready included
        self._waited_for: set[str] | None = None  # processes that have not run yet, once the job is known
        loop.every(TICK_S, lambda: self.show(tick=True))

    def begin(self, head: HeadView) -> None:
        """Show what this head has told and tells. May be called twice."""
        if self._head is None:
            self._head = head
            self._end_if_broken()
            self.show()

    @property
    def all_run(self) -> bool:
        """Whether every process of the job has been started."""
        return self._waited_for is not None and not self._waited_for

    def until(self, condition: Callable[[], bool]) -> None:
        """Show what happens until the condition holds."""
        self._loop.run(condition, after_each=[self.show])
        self.show()

    def until_done(self) -> None:
        """Show the job to its end. Raises FileError where nobody can read it."""
        head = self._head
        assert head is not None
        self.until(lambda: head.done)
        if self._broken:
            raise FileError(f"the job was ended because its output can't be written: {self._broken.strerror}")

    def say(self, text: str, level: str = "info") -> None:
        """Show a line of our own: without a number, those are the head's."""
        self._view.show_event({"time": time.time(), "event": "note", "level": level, "text": text})

    def show(self, *, tick: bool = False) -> None:
        events: list[Event] = []
        if self._head:
            events, self._cursor = self._head.events(self._cursor)
        for event in events:
            self.any_began |= event["event"] == "process"
            self.any_ran |= event["event"] in ("process", "line")
            if event["event"] == "ending":
                self.on_ending(event["grace_s"])
            elif event["event"] == "job":
                self._waited_for = {p["process"] for p in event["processes"]}
            elif event["event"] == "process" and self._waited_for:
                self._waited_for.discard(event["process"])
        if self._broken:
            return
        try:
            for event in events:
                self._tell(event)
            if tick and not self._outlet.is_full:
                self._view.tick(self._loop.now())
            self._outlet.check()
        except OSError as e:
            self._break(e)

    def _tell(self, event: Event) -> None:
        """Show it, unless it is one of many and the reader does not follow: then it becomes a gap."""
        if self._outlet.is_full and event["event"] in ("line", "gap", "progress"):
            if event["event"] != "progress":
                self._gaps.setdefault(event["process"], _gap_at(event))["bytes"] += (
                    event["bytes"] if event["event"] == "gap" else _line_bytes(event)
                )
            return
        gaps, self._gaps = self._gaps, {}
        for e in (*gaps.values(), event):
            self._view.show_event(e)

    def _break(self, e: OSError) -> None:
        """Nobody can see this job any more: as with a closed terminal, it ends."""
        if self._broken is None:
            self._broken = e
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.close(null)
            self._end_if_broken()

    def _end_if_broken(self) -> None:
        if self._head and self._broken:
            why = f"the output can't be written ({self._broken.strerror})"
            self._head.stop(signal.SIGHUP, why, codes.IO)


def _gap_at(event: Event) -> Event:
    return {**{k: event[k] for k in ("n", "time", "process")}, "event": "gap", "bytes": 0}


def _line_bytes(event: Event) -> int:
    return len(event["text"].encode()) + (not event.get("more", False))
