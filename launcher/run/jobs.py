"""Jobs from any later shell: list, status, logs, live view, results, end."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO, cast

from ..backends.base import Backend
from ..backends.lines import OF_ANOTHER
from ..errors import NodeLostError, PslaunchError, RightsError, SpecError
from ..follow.remote_head import RemoteHead
from ..follow.watch import TICK_S
from ..node import codes, job, logs
from ..node.head.events import OF_END, PROGRESS, Event, clean_event, make_end
from ..node.later import record
from ..node.loop import Loop
from ..node.messages import JobRecord as Record
from ..node.shapes import check_shape, fits, is_code, is_name
from ..options.spec import Elsewhere
from ..views.outlet import make_view
from ..views.view import LogView, Said, Transcript, show_epoch, show_process
from . import known_jobs
from .answers import Question, ask_all

HEAD_LOST_AFTER_S = 10.0  # a head silent for longer is reported as lost
PLACE = {"name": str, "workspace": str, "log_dir": str, "output_dir": str, "state_dir": str}
NEWS = (
    "job", "name", "backend", "workspace", "nodes", "host", "started", "state", "code", "reason", "elapsed_s",
    "failure", "output", "processes", "restarts",
)  # fmt: skip
# Fields of a process in `status`; any others of a record that comes from elsewhere are left out.
SHOWN_FIELDS: Mapping[str, Any] = {
    **PROGRESS, "state": is_name, "said": is_name, "pid": int, "code": is_code, "signal": is_name,
}  # fmt: skip
STOPPED = ("job", "state", "code", "reason")  # JSON of `stop`


class _NoAnswerError(NodeLostError):
    """Head lost before its first message: the job may have ended since it was found."""


def _find_ended(r: Record, elsewhere: Elsewhere | None, why: NodeLostError) -> Record:
    """Return the current record of a job whose head was lost; raises `why` unless it has ended."""
    again = known_jobs.find_job(r["job"], elsewhere)
    if again["state"] in ("running", record.STATE_UNKNOWN):
        raise why
    return again


@contextlib.contextmanager
def connect_to_head(r: Record, out: TextIO | None = None) -> Iterator[tuple[RemoteHead, Loop]]:
    """Open a line to the head of a running job. Raises NodeLostError if the line is lost.

    The loop raises BrokenPipeError once nobody reads the pipe `out`, also while nothing is written.
    """
    led: Record = {**r, "backend": "local", "reach": None} if r.get("attached") else r
    with contextlib.closing(Loop()) as loop, known_jobs.open_backend(led) as backend:
        try:
            line = backend.open_head_line(r)
        except OSError as e:
            raise _NoAnswerError(f"job {r['job']}: its head does not answer: {e.strerror}") from e
        head = RemoteHead(loop, line, name=f"the head of job {r['job']}", lost_after_s=HEAD_LOST_AFTER_S)
        with contextlib.suppress(OSError, ValueError):  # it has no descriptor
            if out and stat.S_ISFIFO(os.fstat(fd := out.fileno()).st_mode):
                loop.watch(fd, read=functools.partial(os.write, fd, b"\n"))  # ready once it breaks: it raises
        with contextlib.closing(head):
            yield head, loop
        if head.lost:
            raise (NodeLostError if head.told else _NoAnswerError)(head.lost)


def show_jobs(out: TextIO, *, as_json: bool, elsewhere: Elsewhere | None = None) -> None:
    found = known_jobs.list_jobs(elsewhere)
    for r in found:
        known_jobs.print_line(json.dumps(_select_news(r)) if as_json else known_jobs.format_line(r), out)
    if not found:
        known_jobs.print_error(f"pslaunch jobs: {known_jobs.explain_no_jobs(elsewhere)}")


def _select_news(r: Record) -> dict[str, Any]:
    return {key: r.get(key) for key in NEWS}


def _add_status(r: Record, elsewhere: Elsewhere | None) -> Record:
    if r["state"] != "running":
        return r
    try:
        with connect_to_head(r) as (head, _):
            told: Mapping[str, Any] = head.get_status() or {}
    except NodeLostError as e:
        return _find_ended(r, elsewhere, e)
    logs_of = {p["process"]: p["log"] for p in r["processes"]}
    processes = [{**p, "log": logs_of.get(p["process"])} for p in told.get("processes") or r["processes"]]
    # No others: paths, for example.
    news = {key: told[key] for key in ("state", "restarts", *OF_END) if key in told}
    return cast("Record", {**r, **news, "processes": processes})


def show_status(word: str, out: TextIO, *, as_json: bool, elsewhere: Elsewhere | None = None) -> None:
    r = _add_status(known_jobs.find_job(word, elsewhere), elsewhere)
    if as_json:
        print(json.dumps(_select_news(r)), file=out)
        return
    code = f" (exit code {r['code']})" if r.get("code") is not None else ""
    ended = "" if r.get("reason") is None else f": {r['reason']}{code}"
    known_jobs.print_line(f"{r['job']}  {r['state']}{ended}", out)
    for one in r.get("restarts", ()):
        known_jobs.print_line(f"  restart {one['restart']}: {one['why']}; {show_epoch(one)}", out)
    transcript = _make_transcript(r, out)
    end = make_end(r)
    for said in transcript.show_failure(end["failure"]) if end and end["failure"] else ():
        known_jobs.print_line(f"  {said.text}", out)
    for process in r.get("processes", ()):
        known = {k: v for k, v in process.items() if k in SHOWN_FIELDS and fits(v, SHOWN_FIELDS[k])}
        state = known.get("state", "")
        known["state"] = "not started" if r["state"] == "ended" and state == record.WAITING else state
        shown = f"{process['process']} on {transcript.show_node(process['node'])}"
        known_jobs.print_line(f"  {shown}  {show_process(known)}".rstrip(), out)


def find_begun(word: str, elsewhere: Elsewhere | None) -> Record:
    """Find a job; raises the reason if its nodes can't be asked, or no head leads it yet."""
    r = known_jobs.find_job(word, elsewhere)
    if "error" in r or "unreachable" in r or r["state"] == record.STATE_UNKNOWN:
        raise known_jobs.make_unknown_error(r)
    if r["state"] == record.WAITING:
        raise PslaunchError(_explain_nothing_ran(r))
    return r


def show_logs(
    word: str,
    process: str | None = None,
    *,
    out: TextIO,
    follow: bool,
    as_json: bool,
    elsewhere: Elsewhere | None,
) -> int:
    """Print the lines of a job's processes from its head; if it has dropped some, or the job has ended,
    from the log files.

    Returns the exit code for the shell: with `follow` the job's own.
    """
    r = find_begun(word, elsewhere)
    prepared = list_nodes(r) if r.get("has_setup") else ()  # which is shown like a process
    setups = [dict[str, Any](process=n.setup_key, node=n.id, log=n.setup_log) for n in prepared]
    known = [p["process"] for p in (*setups, *r["processes"])]
    if process and process not in known:
        raise SpecError(f"no process {process!r} in job {r['job']}; there are {', '.join(known)}")
    view = LogView(out, _make_transcript(r, out), process, json=as_json, follow=follow)
    if r["state"] == "running":
        try:
            if follow:
                return _follow_told(r, view, out)
            if _print_told(r, process, view):
                return codes.OK
        except _NoAnswerError as e:
            r = _find_ended(r, elsewhere, e)
    if not (r["processes"] and r.get("places")):
        raise _make_lost_error(r)
    ended = int(r.get("code", codes.NODE_LOST)) if follow else codes.OK
    has_begun = _has_begun(r)
    outputs = [*setups, *(r["processes"] if has_begun else ())]
    unread = _print_files(r, [p for p in outputs if process in (None, p["process"])], view)
    if end := make_end(r):
        view.show_event(end)
    if not has_begun and process not in [p["process"] for p in setups]:
        error = PslaunchError(_explain_nothing_ran(r))
        error.exit_code = ended or error.exit_code
        raise error
    return ended or unread


def show_top(word: str, out: TextIO, *, as_json: bool = False, elsewhere: Elsewhere | None = None) -> int:
    """Show a job until it ends, or until Ctrl+C, which leaves it alone; return the code for the shell."""
    r = find_begun(word, elsewhere)
    if r["state"] != "running":
        raise PslaunchError(f"{r['job']} is not running; pslaunch report {r['job']} shows how it was")
    with connect_to_head(r, out) as (head, loop):
        left: list[int] = []
        loop.handle_signals({signal.SIGINT: lambda: left.append(signal.SIGINT)})
        status = head.get_status()
        if status is None:
            raise NodeLostError(head.lost)
        earlier_s = float(status["elapsed_s"])  # what runs is shown as if it had begun with the job
        view = make_view(json=as_json, out=out, clock=lambda: time.monotonic() - earlier_s, is_own=False)
        loop.call_every(TICK_S, view.tick)
        try:
            for event in _list_present(status):
                view.show_event(clean_event(event))
            earlier_s = 0.0
            for events in _follow(head, loop, status["events"]):
                for event in events:
                    if event["event"] not in ("line", "gap"):
                        view.show_event(event)
                out.flush()
                if left:
                    return codes.OK
            return head.code
        except (KeyError, ValueError) as e:
            raise NodeLostError(f"job {r['job']}: its head tells nothing that can be shown: {e}") from None
        finally:
            view.close()


def _follow(head: RemoteHead, loop: Loop, cursor: int = 0) -> Iterator[list[Event]]:
    """Yield the events of a head, those that are new after each round of the loop, until the job ends."""
    head.follow(cursor)
    while True:
        events, cursor = head.list_events(cursor)
        yield events
        if head.done:
            return
        loop.run_once()


def _list_present(status: Mapping[str, Any]) -> list[Event]:
    """Return events that tell the present state of a job."""
    n_and_time = {"n": status["begin"]["n"], "time": status["begin"]["time"] + status["elapsed_s"]}
    told = [
        {"event": "restart", "state": "running", **r} for r in status["restarts"] if r["lost_s"] is not None
    ]
    events = [status["begin"], *({**n_and_time, **e} for e in told)]
    for p in status["processes"]:
        if "pid" in p:
            fields = {"state": "running", **{key: p[key] for key in ("process", "node", "pid")}}
            events.append({**n_and_time, "event": "process", **fields})
        fields = {key: p[key] for key in p if key.partition(".")[0] in PROGRESS} | {"state": p.get("said")}
        fields = {key: value for key, value in fields.items() if value is not None}
        events += [{**n_and_time, "event": "progress", "process": p["process"], **fields}] if fields else []
        if p["state"] == "exited":
            ended = {key: p.get(key) for key in ("process", "node", "state", "code", "signal")}
            events.append({**n_and_time, "event": "process", **ended})
    return events


def _make_transcript(r: Record, out: TextIO) -> Transcript:
    """Return the converter of a job's events into lines, which knows its nodes and processes."""
    transcript = Transcript(out.encoding)
    nodes = {i: str(place.get("name", "")) for i, place in enumerate(r.get("places", ()))}
    transcript.learn(nodes, {p["process"]: p["log"] for p in r.get("processes", ())})
    return transcript


def _follow_told(r: Record, view: LogView, out: TextIO) -> int:
    """Show the events from a head until the job ends; returns the job's exit code."""
    with connect_to_head(r, out) as (head, loop):
        for events in _follow(head, loop):
            for event in events:
                if event["event"] != "end" or not head.lost:  # a loss is raised as an error
                    view.show_event(event)
            view.flush()
        return head.code


def _print_told(r: Record, process: str | None, view: LogView) -> bool:
    """Print all lines from a head; if some are missing there, print nothing and return False."""
    with connect_to_head(r) as (head, loop):
        head.follow()
        status = head.get_status()
        upto = status["events"] if status else 0
        loop.run(lambda: head.done or head.list_events(0)[1] >= upto)
        told, _ = head.list_events(0)  # the head drops the oldest, which are then missing
    if any("missing" in e or (e["event"] == "gap" and process in (None, e["process"])) for e in told):
        return False
    for event in told:
        view.show_event(event)
    return True


def _print_files(r: Record, outputs: Sequence[Mapping[str, Any]], view: LogView) -> int:
    """Print the log files of these processes; returns 0, or the code of the first unreadable one."""
    code, nodes = codes.OK, list_nodes(r)
    with known_jobs.open_backend(r) as there:

        def ask(p: Mapping[str, Any]) -> Iterator[bytes]:
            if not _has_started(p):
                raise PslaunchError("it was not started")
            node = nodes[p["node"]]
            return there.ask(node, ["read", p["log"], node.state_dir, r["job"]])

        asked = [p["node"] if _has_started(p) else p["process"] for p in outputs]
        questions = [Question(at, functools.partial(ask, p)) for at, p in zip(asked, outputs, strict=True)]
        with ask_all(questions) as answers:
            for p, answer in zip(outputs, answers, strict=True):
                try:
                    for text in _split_lines(answer):
                        more = {"more": True} if text.more else {}
                        view.show_event({"event": "line", "process": p["process"], "text": text.text, **more})
                except PslaunchError as e:
                    view.report(Said(p["process"], str(e), "error"))
                    code = code or e.exit_code
    return code


def _has_started(p: Mapping[str, Any]) -> bool:
    return p.get("state") != record.WAITING


def _has_begun(r: Record) -> bool:
    """Return True if any program of the job was started, as far as is known."""
    return any(map(_has_started, r["processes"]))


def _explain_nothing_ran(r: Record) -> str:
    if r["state"] not in record.OVER:
        why = f": {r['reason']}" if r.get("reason") else ""
        return f"no program of {r['job']} has been started yet{why}"
    return f"{r['job']} ended before its programs ran: {r.get('reason', r['state'])}"


def _make_lost_error(r: Record) -> NodeLostError:
    return NodeLostError(f"job {r['job']}: the record has no nodes to ask ({r.get('reason', r['state'])})")


def _split_lines(pieces: Iterable[bytes]) -> Iterator[logs.LogLine]:
    """Split log bytes as during the job: cleaned, and an endless line in pieces."""
    splitter = logs.LineSplitter(time.monotonic)
    for data in pieces:
        yield from splitter.feed(data)
    yield from splitter.feed(b"", final=True)


def list_nodes(r: Record) -> list[job.Node]:
    """Return the nodes of a job, numbered anew: a record of another machine must not choose paths here."""
    try:
        check_shape(r.get("places", []), [PLACE])
        return [job.parse(job.Node, {**n, "id": i}) for i, n in enumerate(r.get("places", ()))]
    except (TypeError, ValueError):
        raise SpecError(OF_ANOTHER) from None


def fetch_job(
    word: str, folder: str | Path, out: TextIO, *, as_json: bool = False, elsewhere: Elsewhere | None = None
) -> int:
    """Fetch a job's results into `output/` and `log/` of a folder; returns the code of the first failure."""
    from .fetch import fetch_results, hold_folders

    r = find_begun(word, elsewhere)
    nodes = list_nodes(r)
    if not nodes:
        raise _make_lost_error(r)
    r = _add_status(r, elsewhere)
    # Without a process, files there belong to earlier jobs.
    output = Path(folder, "output") if _has_begun(r) else None
    logs = Path(folder, "log")
    folders = {str(place): place for place in (output, logs) if place}
    with hold_folders(folders, r["job"]), known_jobs.open_backend(r) as there:
        found = fetch_results(there, r["job"], nodes, output, logs)
    brought = sorted(found.brought)
    if as_json:
        print(json.dumps({"job": r["job"], "brought": brought, "left_out": found.left_out}), file=out)
    for path in () if as_json else brought:
        known_jobs.print_line(path, out)
    for left_out in found.left_out:
        known_jobs.print_error(f"pslaunch fetch: not fetched: {left_out}")
    for told in dict.fromkeys(map(str, found.failed.values())):
        known_jobs.print_error(f"pslaunch: {told}")
    if output is None:
        known_jobs.print_error(f"pslaunch: {_explain_nothing_ran(r)}; there is no output")
    return found.code or (codes.FAILED if output is None else codes.OK)


def stop_job(
    word: str, out: TextIO, *, kill: bool, as_json: bool = False, elsewhere: Elsewhere | None = None
) -> int:
    """End a job, with `kill` at once, and wait for its end. Returns 0."""
    r = known_jobs.find_job(word, elsewhere)
    if r["state"] == record.STATE_UNKNOWN:
        raise known_jobs.make_unknown_error(r)
    told = f"{r['job']} " + (f"is not running: {r['state']}" if r["state"] in record.OVER else "has ended")
    with known_jobs.open_backend(r) as backend:
        if backend.owns_nodes:
            r = _stop_and_remove(r, elsewhere, backend, kill=kill)
        elif r["state"] == "running":
            r = _stop_running(r, elsewhere, kill=kill)
    known_jobs.print_line(json.dumps({key: r.get(key) for key in STOPPED}) if as_json else told, out)
    return codes.OK


def _stop_and_remove(r: Record, elsewhere: Elsewhere | None, backend: Backend, *, kill: bool) -> Record:
    """End a job, without a line to its head by removal, in order too; remove all that no launcher holds."""
    stopped = cast("Record", {**r, "state": "ended", "code": codes.TERM, "reason": "pslaunch stop"})
    if r["state"] == record.WAITING:
        r = stopped
    elif r["state"] == "running":
        try:
            r = _stop_running(r, elsewhere, kill=kill)
            if r.get("held"):  # its launcher fetches its files first
                return r
        except (RightsError, NodeLostError):
            r = stopped
    if kill:
        backend.limit_end(0.0)
    if left := backend.remove_job(r["job"]):
        raise NodeLostError("; ".join(left))
    if "path" in r:
        known_jobs.write_news(cast("Record", {**r, "reach": job.to_data(r["reach"])}), r)
    return r


def _stop_running(r: Record, elsewhere: Elsewhere | None, *, kill: bool) -> Record:
    """End a running job. Raises NodeLostError if its end is not known."""
    try:
        with connect_to_head(r) as (head, loop):
            head.follow()
            for _ in range(2 if kill else 1):
                head.stop(signal.SIGTERM, "pslaunch stop")
            loop.run(lambda: head.done)
            events, _ = head.list_events(0)
    except NodeLostError as e:
        over = _find_ended(r, elsewhere, NodeLostError(f"{e}; it is not known if the job ends"))
        if over["state"] != "ended":
            raise
        return over
    end = {key: e[key] for e in events[-1:] if e["event"] == "end" for key in OF_END}
    return cast("Record", {**r, "code": head.code, **end, "state": "ended"})
