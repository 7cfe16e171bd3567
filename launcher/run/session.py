"""One running job on the launcher's side: backend, head, view, and the end."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

from .. import errors
from ..backends.base import Backend
from ..backends.registry import find_face
from ..follow.watch import Watch
from ..follow.way import Scene, SlowWork, Way
from ..node import codes
from ..node.job import Facts, Node, Plan, place, to_data
from ..node.later import record
from ..node.loop import Loop
from ..options.spec import JobSpec
from ..plan import make_dry_run as plan_as_data
from ..plan import make_plan, render_plan
from ..views.outlet import Outlet, make_view
from .ways import choose_way

if TYPE_CHECKING:
    from ..follow.way import AnyHead
    from ..node.line.trace import Trace
    from ..node.messages import JobRecord

# Ends after which the hosts are not inspected: no host is at fault, or its failure is named already.
NO_LOOK = (codes.OK, codes.USAGE, codes.INT, codes.TERM, codes.HUP, codes.NODE_LOST)


def make_job_id(spec: JobSpec) -> str:
    """Return a unique, readable name that sorts by time: `word2vec-20260102-030405-1a2b`."""
    if spec.site.job_id:
        return spec.site.job_id
    safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in spec.draft.name)[:40] or "job"
    of = f"{spec.site.of}-" if spec.site.of else ""
    return f"{safe}-{of}{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"


def render_dry_run(spec: JobSpec, *, as_json: bool, connect: bool = False) -> str:
    """Return the plan as text or JSON without starting anything; with `connect`, ask the hosts for facts.

    Raises PslaunchError if an asked host has a problem, or the package can't be sent.
    """
    plan = make_plan(spec, make_job_id(spec))
    if connect:
        from ..check.check_hosts import find_facts

        placed, facts = find_facts(spec, plan, find_face(spec.draft.backend).make_backend(spec.site.reach))
    else:
        placed = place(plan, plan.nodes or spec.site.expected)
        facts = Facts.make_symbolic(placed)
        if plan.package:
            from ..ship.package import list_sizes

            list_sizes(plan.package)  # raises if it can't be sent
    data = plan_as_data(placed, facts)
    if start := find_face(spec.draft.backend).describe_start(spec.site.reach, plan):
        data["start"] = start
    return json.dumps(data) if as_json else render_plan(data)


def run(spec: JobSpec, *, as_json: bool) -> int:
    """Run the job to its end and return its exit code; with `--detach`, until its programs run.

    Raises PslaunchError if it can't begin.
    """
    trace = None
    if spec.trace:
        from ..check.check_hosts import begin_trace

        trace = begin_trace(spec.trace, "launcher")
    plan = _add_wheels(make_plan(spec, make_job_id(spec)), spec)
    if spec.detach and spec.site.remote:
        _remember(plan, 0, spec.site.reach).unlink()  # only a test of writing: nobody leads the job yet
    try:
        with _report_failed_start() if as_json else contextlib.nullcontext():
            code, began = _run(spec, plan, trace, as_json=as_json)
    except errors.HostsError as e:
        if _inspect_hosts(spec, e.failed):
            raise errors.PreflightError("no program was started", e.exit_code) from e
        raise
    except errors.PreflightError:  # from the node that should lead
        _inspect_hosts(spec, {})
        raise
    if not began and code not in NO_LOOK:
        _inspect_hosts(spec, {})
    return code


@contextlib.contextmanager
def _report_failed_start() -> Iterator[None]:
    """Print the event `end` if a job could not begin: no head has one."""
    began_s = time.monotonic()
    try:
        yield
    except errors.PslaunchError as e:
        end = {
            "time": round(time.time(), 3), "event": "end", "code": int(e.exit_code), "reason": str(e),
            "elapsed_s": round(time.monotonic() - began_s, 3), "failure": None,
        }  # fmt: skip
        print(json.dumps(end), flush=True)
        raise


def _hold_folders(spec: JobSpec, job_id: str, at_end: contextlib.ExitStack) -> None:
    """Make and hold the folders for results, if this launcher fetches any."""
    given = {"fetch_output": spec.fetch_output, "fetch_logs": spec.fetch_logs}
    folders = {f"--{name}={folder}": folder for name, folder in given.items() if folder and not spec.detach}
    if folders:
        from .fetch import hold_folders

        at_end.enter_context(hold_folders(folders, job_id))


def _inspect_hosts(spec: JobSpec, failed: Mapping[int, errors.HostError]) -> bool:
    """Report all problems of the hosts after a failed start; return True if `failed` was included."""
    if not (spec.site.remote and spec.site.nodes):
        return False
    from ..check.check_hosts import check_after_failed_start

    backend = find_face(spec.draft.backend).make_backend(spec.site.reach)
    return check_after_failed_start(spec, backend, failed)


def _add_wheels(plan: Plan, spec: JobSpec) -> Plan:
    """Add the wheels that `--install` needs on the nodes to the package."""
    if not spec.install or plan.package is None:
        return plan
    from ..node.agent.install import OWN_WHEEL, WHEELHOUSE
    from ..ship.wheel import keep_wheel

    try:
        folder = keep_wheel(spec.wheel, os.environ)
    except OSError as e:
        raise errors.FileError.from_os(
            e, "keep the wheel for the nodes (XDG_CACHE_HOME sets the folder)"
        ) from e
    extras = {OWN_WHEEL: str(folder), **({WHEELHOUSE: str(spec.wheelhouse)} if spec.wheelhouse else {})}
    return plan._replace(package=plan.package._replace(extras=extras))


def _run(spec: JobSpec, plan: Plan, trace: Trace | None = None, *, as_json: bool) -> tuple[int, bool]:
    """Return the exit code, and True if any program was started."""
    errors.require_extra(spec.log_to or "")
    with contextlib.ExitStack() as at_end:
        _hold_folders(spec, plan.job_id, at_end)
        way = choose_way(spec, plan)
        loop, outlet = Loop(), Outlet(sys.stdout)
        at_end.callback(outlet.drain)
        if trace:
            at_end.callback(trace.close)
        at_end.callback(loop.close)
        # From here on a signal waits until the loop runs, when what was started can be ended.
        loop.handle_signals({n: lambda: None for n in errors.STOP_SIGNALS})
        starting = SlowWork(loop, way.start)
        at_end.callback(way.backend.close)
        at_end.callback(starting.leave, way.backend.cancel)
        starting.give_time()
        view = make_view(json=as_json, out=cast(TextIO, outlet), clock=time.monotonic)
        if spec.log_to:
            from ..views.board import Board

            logs = spec.fetch_logs or Path(spec.site.nodes[0].log_dir)
            view = Board(view, logs / spec.log_to / plan.job_id)
        at_end.callback(view.close)
        watch = Watch(loop, view, outlet)
        watch.on_ending = way.backend.limit_end
        if plan.limits.max_restarts and not way.starts_again:
            watch.say("a node that is lost ends the job: --max_restarts is for programs here")
        if plan.limits.max_restarts and plan.loses_parts:
            watch.say(
                "snapshots do not survive the loss of a node's disk: --snapshot_copies=2 keeps each part on "
                "two nodes, --snapshot_dir in a folder that nodes share"
            )
        head = way.find_head(Scene(loop, watch, at_end, trace), starting)
        if way.is_found_later and spec.site.remote:
            _keep_way(plan, way.backend, len(way.nodes), detach=spec.detach)
        if head is None:
            return _leave_job(way, watch, "continues by itself"), True
        return _follow_to_end(loop, spec, way, watch, head, quiet=as_json)


def _follow_to_end(
    loop: Loop, spec: JobSpec, way: Way, watch: Watch, head: AnyHead, *, quiet: bool
) -> tuple[int, bool]:
    """Show the job until it ends or is detached, fetch its results and remove the rest; returns as `_run`."""
    watch.begin(head)
    way.confirm(loop, watch)
    if spec.detach:
        watch.run_until(lambda: watch.has_started_all or head.done)
        if not head.done and way.free(loop):
            return _leave_job(way, watch, "continues by itself"), True
    watch.run_until_done()
    code = way.explain_end(loop, watch, head.code)
    if spec.detach and way.keeps_files(watch):
        _leave_job(way, watch, "is over already" if way.has_ended else "may go on")
        return code, True
    for who, text in way.backend.read_output(last=True):
        if not quiet:  # in JSON, `end` is the last line
            watch.say(text, who=who)
    fetched = codes.OK
    if (spec.fetch_output or spec.fetch_logs) and not way.drops_results:
        fetched = _fetch(loop, spec, way, watch, head.placed.nodes, quiet=quiet)
    elif spec.site.remote and head.code == codes.OK and not quiet:
        node_0 = head.placed.nodes[0]
        kept = f"output, if any, is in {node_0.output_dir} on {node_0.name}; --fetch_output brings it"
        watch.say(way.backend.describe_keeping() or kept)
    if way.remove(loop, watch):
        _name_pointer(way.plan).unlink(missing_ok=True)
    if head.code != codes.NODE_LOST:  # the job's end was seen
        record.remove_secret(str(_name_pointer(way.plan)))
    return code or fetched, watch.any_began


def _leave_job(way: Way, watch: Watch, state: str) -> int:
    """Leave a detached job and its files to later shells; return 0."""
    way.backend.release()
    job_id = way.plan.job_id
    watch.say(f"the job {state}; pslaunch status, logs, stop and fetch take its id: {job_id}")
    if kept := way.backend.describe_keeping():
        watch.say(kept)
    return codes.OK


def _fetch(loop: Loop, spec: JobSpec, way: Way, watch: Watch, nodes: Sequence[Node], *, quiet: bool) -> int:
    """Fetch the results and report what failed. Returns an exit code, 0 if all came."""
    from .fetch import describe_log, describe_results, fetch_results

    # Without a process, files there belong to another job.
    output = spec.fetch_output if watch.any_began else None
    logs = spec.fetch_logs if watch.any_ran or spec.trace else None
    if not (output or logs):
        if not quiet:
            watch.say("nothing is fetched because no program of this job has run")
        return codes.OK
    work = functools.partial(fetch_results, way.backend, way.plan.job_id, nodes, output, logs)
    try:
        found = SlowWork(loop, work).finish(way.backend, way.cut_fetch)
    except errors.EndedEarlyError as e:
        watch.say(f"fetching results was interrupted: {e.why}", "error")
        return e.exit_code
    if logs:
        try:
            way.backend.keep_output(logs)
        except OSError as error:
            watch.say(f"not kept: {codes.describe_error(error)}", "warning")
    for left_out in found.left_out:
        watch.say(f"not fetched: {left_out}", "warning")
    for there, failed in found.failed.items():
        place = "" if way.backend.owns_nodes else f"; they are in {there}"  # which stay
        watch.say(f"results were not fetched: {failed}{place}", "error")
    if found.failed:
        return found.code
    if not quiet:
        said = describe_results(found, output, logs)
        if watch.failure and logs:
            said += describe_log(found, watch.failure, way.plan.job_id, nodes, logs)
        watch.say("; ".join(said))
    return codes.OK


def _name_pointer(plan: Plan) -> Path:
    return Path(record.get_folder()) / (plan.job_id + record.POINTER)


def _keep_way(plan: Plan, backend: Backend, nodes: int, *, detach: bool) -> None:
    """Record for later shells the cluster that leads a job; FileError is raised only for one to detach."""
    try:
        way = backend.keep_way(record.name_secret(str(_name_pointer(plan))))
        _remember(plan, nodes or len(plan.nodes), way)
    except (OSError, errors.FileError) as e:
        if detach:
            what = "keep the way to the job for later shells"
            raise errors.FileError.from_os(e, what) if isinstance(e, OSError) else e from None


def _remember(plan: Plan, nodes: int, reach: object) -> Path:
    """Record for later shells the cluster that leads a job. Raises FileError."""
    path = _name_pointer(plan)
    pointer: JobRecord = {
        "job": plan.job_id, "name": plan.name, "backend": plan.backend, "nodes": nodes,
        "started": round(time.time(), 3), "reach": to_data(reach),
        "state": record.LED_ELSEWHERE,
    }  # fmt: skip
    if why := record.write_record(str(path), pointer):
        raise errors.FileError(f"later shells can't find the job: {why}")
    return path
