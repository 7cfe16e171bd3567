"""One running job on the launcher's side: backend, head, view, and the end."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TextIO, TypeVar, cast

from ..backends.base import (
    CLOSE_EXTRA_S,
    Backend,
    BeginningBackend,
    Dial,
    LaterBackend,
    LeadingBackend,
    Line,
    find_backend,
    make_leading_backend,
    make_starting_backend,
)
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
from ..plan import make_dry_run as plan_as_data
from ..plan import make_plan, place_found, render
from ..views.async_writer import Outlet
from .watch import TICK_S, Watch

if TYPE_CHECKING:
    from ..backends.base import Ended
    from ..node.dispatch.head_side import Supply
    from ..node.head.head import Head
    from ..node.line.trace import Trace
    from ..node.messages import JobRecord
    from .observe import RemoteHead

AT_ONCE_S = 0.02  # for a start without a network
# Ends after which the hosts are not inspected: no host is at fault, or its failure is named already.
NO_LOOK = (codes.OK, codes.USAGE, codes.INT, codes.TERM, codes.HUP, codes.NODE_LOST)
T = TypeVar("T")
Started = list[tuple[Node, Line]]


def make_job_id(name: str) -> str:
    """Return a unique, readable name that sorts by time: `word2vec-20260102-030405-1a2b`."""
    safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)[:40] or "job"
    return f"{safe}-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"


def render_dry_run(spec: JobSpec, *, as_json: bool, connect: bool = False) -> str:
    """Return the plan as text or JSON without starting anything; with `connect`, ask the hosts for facts.

    Raises PslaunchError if an asked host has a problem, or the package can't be sent.
    """
    plan = make_plan(spec, spec.site.job_id or make_job_id(spec.job_name))
    if connect:
        from ..check.check import find_facts

        placed, facts = find_facts(spec, plan)
    else:
        placed = place(plan, plan.nodes or spec.site.expected)
        facts = Facts.make_symbolic(placed)
        if plan.package:
            from ..ship.package import list_sizes

            list_sizes(plan.package)  # raises if it can't be sent
    data = plan_as_data(placed, facts)
    if start := find_backend(spec.backend).describe_start(spec.site.reach):
        data["start"] = start
    return json.dumps(data) if as_json else render(data)


def run(spec: JobSpec, *, as_json: bool, out: TextIO | None = None) -> int:
    """Run the job to its end and return its exit code; with `--detach`, until its programs run.

    Raises PslaunchError if it can't begin.
    """
    _make_folders(spec)
    trace = _begin_trace(spec)
    plan = _add_wheels(make_plan(spec, spec.site.job_id or make_job_id(spec.job_name)), spec)
    if spec.detach and spec.site.remote:
        _remember(plan, 0, spec.site.reach).unlink()  # only a test of writing: nobody leads the job yet
    try:
        with _report_failed_start(out or sys.stdout) if as_json else contextlib.nullcontext():
            code, began = _run(spec, plan, trace, as_json=as_json, out=out)
    except HostsError as e:
        if _inspect_hosts(spec, e.failed):
            raise e.shorten() from e
        raise
    except PreflightError:  # from the node that should lead
        _inspect_hosts(spec, {})
        raise
    if not began and code not in NO_LOOK:
        _inspect_hosts(spec, {})
    return code


@contextlib.contextmanager
def _report_failed_start(out: TextIO) -> Iterator[None]:
    """Print the event `end` if a job could not begin: no head has one."""
    began_s = time.monotonic()
    try:
        yield
    except PslaunchError as e:
        end = {
            "time": round(time.time(), 3), "event": "end", "code": int(e.exit_code), "reason": str(e),
            "elapsed_s": round(time.monotonic() - began_s, 3), "failure": None,
        }  # fmt: skip
        print(json.dumps(end), file=out, flush=True)
        raise


def _make_folders(spec: JobSpec) -> None:
    """Make the folders for results before the training, not after it. Raises SpecError."""
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
    """Report all problems of the hosts after a failed start; return True if `failed` was included."""
    if not (spec.site.remote and spec.site.nodes):
        return False
    from ..check.check import check_after_failed_start

    return check_after_failed_start(spec, failed)


def _add_wheels(plan: Plan, spec: JobSpec) -> Plan:
    """Add the wheels that `--install` needs on the nodes to the package."""
    if not spec.install or plan.package is None:
        return plan
    from ..node.agent.install import OWN_WHEEL, WHEELHOUSE
    from ..ship.wheel import keep_wheel

    try:
        folder = keep_wheel(spec.wheel, os.environ)
    except OSError as e:
        raise FileError.from_os(e, "keep the wheel for the nodes (XDG_CACHE_HOME sets the folder)") from e
    extras = {OWN_WHEEL: str(folder), **({WHEELHOUSE: str(spec.wheelhouse)} if spec.wheelhouse else {})}
    return plan._replace(package=plan.package._replace(extras=extras))


def _run(
    spec: JobSpec, plan: Plan, trace: Trace | None = None, *, as_json: bool, out: TextIO | None
) -> tuple[int, bool]:
    """Return the exit code, and True if any program was started."""
    site = spec.site
    backend: Backend = find_backend(spec.backend).make_backend(site.reach)
    start: Callable[[], Started]
    leader = beginner = None
    if isinstance(backend, BeginningBackend):
        beginner = _Beginner(backend, plan)
        start = beginner.start
    elif spec.head == "node":
        leader = _Leader(make_leading_backend(spec.backend, site.reach), plan)
        backend, start = leader.backend, leader.start
    else:
        starter = make_starting_backend(spec.backend, site.reach)
        backend, start = starter, functools.partial(starter.start, plan.nodes, plan.limits)
    loop, outlet = Loop(), Outlet(out or sys.stdout)
    with contextlib.ExitStack() as at_end:
        at_end.callback(outlet.drain)
        if trace:
            at_end.callback(trace.close)
        at_end.callback(loop.close)
        # From here on a signal waits until the loop runs, when what was started can be ended.
        loop.handle_signals({n: lambda: None for n in STOP_SIGNALS})
        starting = SlowWork(loop, start)
        at_end.callback(backend.close)
        at_end.callback(_leave, starting, backend)
        starting.give_time()
        # While nodes start: 5 ms, which they would wait.
        from ..views.make_view import make_view

        view = make_view(json=as_json, out=cast(TextIO, outlet), clock=time.monotonic)
        at_end.callback(view.close)
        watch = Watch(loop, view, outlet)
        watch.on_ending = backend.limit_end
        remote = None
        if beginner:
            remote = _follow(loop, beginner, watch, starting, at_end, trace)
            _keep_way(plan, beginner.backend)
            if remote is None:
                return _leave_running(plan, beginner.backend, watch), True
        elif leader:
            remote = _lead_on_node(loop, leader, watch, starting, at_end, trace, detach=spec.detach)
            if site.remote:
                _keep_way(remote.placed.plan, leader.backend, len(remote.placed.nodes))
        head = remote or _lead_here(loop, backend, plan, watch, starting, at_end, trace)
        watch.begin(head)
        if beginner:
            watch.run_until(lambda: watch.has_started_all or head.done)
            SlowWork(loop, beginner.backend.confirm).wait(lambda: head.done, backend.cancel)
        if remote and spec.detach:
            watch.run_until(lambda: watch.has_started_all or head.done)
            if not head.done and remote.free():
                return _leave_running(plan, backend, watch), True
        watch.run_until_done()
        if beginner and head.code == codes.NODE_LOST:
            _tell_loss(loop, beginner.backend, watch)
        fetched = codes.OK
        if (spec.fetch_output or spec.fetch_logs) and not (beginner and remote and remote.hurried):
            fetched = _fetch(loop, spec, plan, backend, watch, head.placed.nodes, quiet=as_json)
        elif site.remote and head.code == codes.OK and not as_json:  # in JSON, `end` is the last line
            node_0 = head.placed.nodes[0]
            watch.say(f"output, if any, is in {node_0.output_dir} on {node_0.name}; --fetch_output brings it")
        if beginner:
            _remove(loop, beginner.backend, watch)
            _name_pointer(plan).unlink(missing_ok=True)
        return head.code or fetched, watch.any_began


class SlowWork(Generic[T]):
    """Slow work with nodes in a thread of its own, started at once."""

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

        loop.do_aside(run, self._over.append, self._over.append)

    def give_time(self) -> None:
        """Let fast work finish: imports here would slow the thread down, by 10 ms and more."""
        self._done.wait(AT_ONCE_S)

    def leave(self, cut: Callable[[], None]) -> T | None:
        """Return the result, or None without one; unfinished work is ended by `cut`."""
        if not self._done.is_set():
            cut()
            self._done.wait(CLOSE_EXTRA_S)
        return self._found[0] if self._found else None

    def wait(self, asked: Callable[[], bool], cut: Callable[[], None]) -> T | None:
        """Run the loop until the work ends and return its result. Once `asked` is true, `cut` ends it soon.

        Then returns None if there is no result; otherwise raises the work's exception.
        """
        self._loop.run(lambda: bool(self._over) or asked())
        while not self._over:
            cut()
            self._loop.run_once(TICK_S)
        if self._over[0] and not asked():
            raise self._over[0]
        return self._found[0] if self._found else None


def _lead_here(
    loop: Loop,
    backend: Backend,
    plan: Plan,
    watch: Watch,
    starting: SlowWork[Started],
    at_end: contextlib.ExitStack,
    trace: Trace | None,
) -> Head:
    from ..node.head.head import Head

    started = [] if plan.nodes else _wait_for_nodes(loop, backend, watch, starting, "the cluster")
    placed = place_found(plan, [node for node, _ in started])
    head = Head(loop, placed, os.urandom(32).hex(), time.time, _make_supply(loop, plan), trace)
    at_end.callback(head.close)
    head.drain = watch.show
    _stop_on_signals(loop, backend, head.stop)
    started = starting.wait(lambda: head.done, functools.partial(_cut, backend, watch, head)) or []
    while started and not head.done:
        node, line = started[0]
        head.attach(node, *line)
        started.pop(0)
    if backend.ended:
        _end_with_carrier(loop, backend.ended, head)
    return head


def _wait_for_nodes(
    loop: Loop, backend: Backend, watch: Watch, starting: SlowWork[Started], shown: str
) -> Started:
    """Return the started nodes, without which no head can exist. Raises EndedEarlyError."""
    asked: list[tuple[int, str]] = []

    def ask(number: int, why: str) -> None:
        if not asked:
            watch.say(f"ending: {why}; no longer waiting for {shown}")
        asked.append((number, why))

    _stop_on_signals(loop, backend, ask)
    started = starting.wait(lambda: bool(asked), backend.cancel) or []
    if asked:
        raise EndedEarlyError(*asked[0])
    return started


def _end_with_carrier(loop: Loop, ended: Ended, head: Head) -> None:
    """End the job once the carrier of all agents is gone."""

    def end() -> None:
        loop.watch(ended.fd)
        how, killed = ended.describe()
        head.lose_carrier(ended.carrier, how, killed=killed)

    loop.watch(ended.fd, read=end)


def _leave(starting: SlowWork[Started], backend: Backend) -> None:
    """Close the lines that no head took."""
    for _, line in starting.leave(backend.cancel) or ():
        line.close()


def _cut(backend: Backend, watch: Watch, head: Head | RemoteHead) -> None:
    """Reach no more nodes and show the end; not earlier: a question may be open on the terminal."""
    backend.cancel()
    watch.begin(head)


class _Leader:
    """Start of a head on node 0; `nodes` are known once it runs."""

    def __init__(self, backend: LeadingBackend, plan: Plan) -> None:
        self.backend, self.plan, self.secret = backend, plan, os.urandom(32).hex()
        self.nodes: Sequence[Node] = plan.nodes

    def start(self) -> Started:
        self.nodes, line = self.backend.start_head(self.plan.nodes, self.plan.limits, self.secret)
        return [(self.nodes[0], line)]


def _lead_on_node(
    loop: Loop,
    leader: _Leader,
    watch: Watch,
    starting: SlowWork[Started],
    at_end: contextlib.ExitStack,
    trace: Trace | None,
    *,
    detach: bool,
) -> RemoteHead:
    from .observe import RemoteHead

    backend, plan = leader.backend, leader.plan
    awaited = plan.nodes[0].name if plan.nodes else "the cluster"
    started = _wait_for_nodes(loop, backend, watch, starting, awaited)
    placed = place_found(plan, leader.nodes)
    first, line = started.pop()
    head = RemoteHead(
        loop,
        line,
        name=f"node 0 ({first.name})",
        lost_after_s=plan.limits.lost_after_s,
        supply=_make_supply(loop, plan),
        trace=trace and trace.make_note("head"),
    )
    at_end.callback(head.close)
    head.on_slow = lambda text: watch.say(text, "warning")
    _stop_on_signals(loop, backend, head.stop)
    port, addrs = head.lead(placed, leader.secret, detach=detach)
    if port:
        head.follow()
        dial = Dial(addrs, port, leader.secret)
        rest, limits = placed.nodes[1:], plan.limits
        cut = functools.partial(_cut, backend, watch, head)
        SlowWork(loop, lambda: backend.start_dialing(rest, limits, dial)).wait(lambda: head.done, cut)
        head.expect()
    elif not head.done:
        kinds = {codes.PREFLIGHT: PreflightError, codes.IO: FileError}
        kind = kinds.get(head.answers.get("refused", {}).get("code", codes.NODE_LOST), NodeLostError)
        raise kind(f"node 0 ({first.name}) does not lead the job: {head.refusal or 'no answer'}")
    return head


class _Beginner:
    """Start of a job that begins by itself; `news`: told meanwhile, each with the code of its failure."""

    def __init__(self, backend: BeginningBackend, plan: Plan) -> None:
        self.backend, self.plan = backend, plan
        self.news: deque[tuple[str, int]] = deque()

    def start(self) -> Started:
        line = self.backend.begin(self.plan, lambda text, code: self.news.append((text, code)))
        return [(self.plan.nodes[0], line)] if line else []


def _follow(
    loop: Loop,
    beginner: _Beginner,
    watch: Watch,
    starting: SlowWork[Started],
    at_end: contextlib.ExitStack,
    trace: Trace | None,
) -> RemoteHead | None:
    """Return the head of a job that begins by itself, None if nobody here may follow it."""
    from .observe import RemoteHead

    backend, plan, news = beginner.backend, beginner.plan, beginner.news
    heads: list[RemoteHead] = []

    def tell() -> None:
        while news:
            text, code = news.popleft()
            if code and heads:
                heads[0].stop(signal.SIGTERM, text, code)
            else:
                watch.say(text, "warning")

    loop.call_every(TICK_S, tell)
    started = _wait_for_nodes(loop, backend, watch, starting, "the cluster")
    if not started:
        return None
    first, line = started.pop()
    head = RemoteHead(
        loop,
        line,
        name=f"node 0 ({first.name})",
        lost_after_s=plan.limits.lost_after_s,
        trace=trace and trace.make_note("head"),
        reopen=backend.reopen,
    )
    heads.append(head)
    at_end.callback(head.close)
    head.on_slow = lambda text: watch.say(text, "warning")
    _stop_on_signals(loop, backend, head.stop)
    head.hold(place(plan, plan.nodes))
    return head


def _leave_running(plan: Plan, backend: Backend, watch: Watch) -> int:
    """Let a detached job go on without this launcher; return 0."""
    backend.release()
    watch.say(f"the job goes on by itself; pslaunch status, logs, stop and fetch take its id: {plan.job_id}")
    if isinstance(backend, BeginningBackend):
        watch.say(backend.describe_keeping())
    return codes.OK


def _tell_loss(loop: Loop, backend: BeginningBackend, watch: Watch) -> None:
    """Tell the cluster's reason for the loss of a node, which it forgets soon."""
    if reason := SlowWork(loop, backend.explain_loss).wait(lambda: False, backend.cancel):
        watch.say(reason, "warning")


def _remove(loop: Loop, backend: BeginningBackend, watch: Watch) -> None:
    """Remove what the job has left in the cluster, at once after a signal."""
    _stop_on_signals(loop, backend, lambda _number, _why: backend.limit_end(0.0))
    for left in SlowWork(loop, backend.remove).wait(lambda: False, backend.cancel) or ():
        watch.say(left, "warning")


def _fetch(
    loop: Loop,
    spec: JobSpec,
    plan: Plan,
    backend: Backend,
    watch: Watch,
    nodes: Sequence[Node],
    *,
    quiet: bool,
) -> int:
    """Fetch the results and report what failed. Returns an exit code, 0 if all came."""
    from .fetch import fetch_results

    # Without a process, files there belong to another job.
    output = spec.fetch_output if watch.any_began else None
    logs = spec.fetch_logs if watch.any_ran or spec.trace else None
    places = [str(place) for place in (output, logs) if place]
    if not places:
        if not quiet:
            watch.say("nothing is fetched because no program of this job has run")
        return codes.OK
    asked: list[tuple[int, str]] = []
    _stop_on_signals(loop, backend, lambda number, why: asked.append((number, why)))
    # `release`: the job has ended, nothing on the nodes needs a wait.
    cut = backend.cancel if isinstance(backend, BeginningBackend) else backend.release
    work = functools.partial(fetch_results, backend, plan.job_id, nodes, output=output, logs=logs)
    found = SlowWork(loop, work).wait(lambda: bool(asked), cut)
    if asked or found is None:
        number, why = asked[0]
        watch.say(f"fetching results was interrupted: {why}", "error")
        return codes.SIGNAL_BASE + number
    for left_out in found.left_out:
        watch.say(f"not fetched: {left_out}", "warning")
    for e in found.failed:
        first = nodes[0]
        watch.say(f"results were not fetched: {e}; they are in {first.output_dir} on {first.name}", "error")
    if found.failed:
        return found.failed[0].exit_code
    if not quiet:
        watch.say(f"results are in {' and '.join(places)}")
    return codes.OK


def _name_pointer(plan: Plan) -> Path:
    return Path(record.get_folder(os.environ)) / (plan.job_id + record.POINTER)


def _keep_way(plan: Plan, backend: LaterBackend, nodes: int = 0) -> None:
    """Record for later shells the cluster that leads a job, if that is possible."""
    with contextlib.suppress(FileError, OSError):
        way = backend.keep_way(record.name_secret(str(_name_pointer(plan))))
        _remember(plan, nodes or len(plan.nodes), way)


def _remember(plan: Plan, nodes: int, reach: object) -> Path:
    """Record for later shells the cluster that leads a job. Raises FileError."""
    path = _name_pointer(plan)
    data = find_backend(plan.backend).to_data(reach)
    fixed: JobRecord = {
        "job": plan.job_id, "name": plan.name, "backend": plan.backend, "nodes": nodes,
        "started": round(time.time(), 3), "reach": data,
    }  # fmt: skip
    if why := record.Record(str(path), fixed).write({"state": record.ELSEWHERE}):
        raise FileError(f"later shells can't find the job: {why}")
    return path


def _make_supply(loop: Loop, plan: Plan) -> Supply | None:
    if plan.package is None:
        return None
    from ..ship.package import Folder

    return Folder(loop, plan.package)


def _stop_on_signals(loop: Loop, backend: Backend, stop: Callable[[int, str], None]) -> None:
    came: list[int] = []

    def ask(number: int, why: str) -> None:
        if came:
            backend.limit_end(0.0)
        came.append(number)
        stop(number, why)

    loop.handle_signals({n: functools.partial(ask, n, why) for n, why in STOP_SIGNALS.items()})
