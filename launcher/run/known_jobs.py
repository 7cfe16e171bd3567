"""Jobs that this machine or another one knows: their records, with the state from where they run."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TextIO, cast

from pslaunch.runtime.shared.env import find_near

from ..backends.base import Backend
from ..backends.registry import OWN, find_face
from ..errors import FileError, PslaunchError, SpecError
from ..node import logs
from ..node.later import record
from ..node.messages import JobRecord as Record
from ..options.spec import Elsewhere
from ..views.view import show_s
from .answers import Question, ask_all

MAX_RECORDS_BYTES = 16 * 1024 * 1024
SHOWN_BYTES = 100  # bytes of an invalid record
ADDED = ("path", "reach", "error", "attached", "events")  # keys that this machine adds to a record
OF_TERMINALS = "a job is listed for as long as its logs are kept, in log/ of its workspace"
NOT_KNOWN = (
    f"its first host does not know it any more: it keeps only the last {record.KEPT_RECORDS} ended jobs"
)


def list_jobs(elsewhere: Elsewhere | None = None) -> list[Record]:
    """Return the user's jobs, oldest first.

    `state` is waiting until a head leads, running, ended, unknown, or lost if no head answers. Lists the jobs
    known to this machine, or those known elsewhere. The state of a job that runs elsewhere is read there.
    """
    if elsewhere is not None:
        name, reach = elsewhere.backend, elsewhere.reach
        with open_backend({"backend": name, "reach": reach}) as there:
            return _parse_records(there.read_records(), name, reach)
    read = record.read_all(record.get_folder(), lambda text: print_error(f"pslaunch: {text}"))
    # Led here, or on a machine that shares the folder.
    led = {r["job"]: r for r in read if not record.is_pointer(r)}
    found: list[Record] = []
    asked: dict[str, list[Record]] = {}
    for r in filter(record.is_pointer, read):
        here = led.pop(r["job"], None)
        if r["state"] != record.LED_ELSEWHERE:
            found.append(_add_reach(r))
        elif here and here["state"] != record.STATE_UNKNOWN:
            found.append(_add_reach({**here, "reach": r.get("reach")}))
            _note_end(r, here)
        else:
            asked.setdefault(json.dumps([r["backend"], r.get("reach")]), []).append(r)
    found += _follow([*asked.values()])
    return sorted([*led.values(), *found], key=lambda r: float(r["started"]))


def _add_reach(r: Record) -> Record:
    """Add the reach to the record of an ended job, or as `error` the reason why it has none."""
    try:
        return {**r, "reach": find_face(r["backend"]).from_data(r["reach"])} if "reach" in r else r
    except SpecError as e:
        return {**r, "reach": None, "error": e}


def _parse_records(pieces: Iterator[bytes], backend: str, reach: object) -> list[Record]:
    text = bytearray()
    for piece in pieces:
        text += piece
        if len(text) > MAX_RECORDS_BYTES:
            raise PslaunchError(f"the first host has more than {MAX_RECORDS_BYTES:,} bytes of records")
    found: list[Record] = []
    for line in text.splitlines():
        try:
            told = {k: v for k, v in record.parse_record(bytes(line)).items() if k not in ADDED}
            found.append(cast("Record", {**told, "backend": backend, "reach": reach}))
        except (ValueError, RecursionError) as e:
            begin = line[:SHOWN_BYTES].decode("utf-8", "replace")
            why = f"is not a valid record of a job, and is left out: {e}"
            print_error(f"pslaunch: {begin!r} on the first host {why}")
    return found


def _follow(asked: Sequence[Sequence[Record]]) -> list[Record]:
    """Return the records of node 0 for jobs started from here; `asked`: those of one place together."""
    found: list[Record] = []
    places: list[tuple[Sequence[Record], object]] = []
    with contextlib.ExitStack() as at_end:
        questions: list[Question] = []
        for pointers in asked:
            name, reach = pointers[0]["backend"], None
            try:
                reach = find_face(name).from_data(pointers[0].get("reach"))
                there = at_end.enter_context(open_backend({"backend": name, "reach": reach}))
            except PslaunchError as e:
                found += [_mark_unknown(r, reach, e) for r in pointers]
                continue
            questions.append(Question(len(questions), there.read_records))
            places.append((pointers, reach))
        answers = at_end.enter_context(ask_all(questions))
        for (pointers, reach), answer in zip(places, answers, strict=True):
            try:
                found += _update(pointers, reach, _parse_records(answer, pointers[0]["backend"], reach))
            except PslaunchError as e:
                found += [_mark_unknown(r, reach, e) for r in pointers]
    return found


def _mark_unknown(r: Record, reach: object, error: PslaunchError | None) -> Record:
    unknown = {"state": record.STATE_UNKNOWN, "reason": str(error or NOT_KNOWN), "processes": []}
    return cast("Record", {**r, **unknown, "reach": reach, "error": error})


def _update(pointers: Sequence[Record], reach: object, there: Sequence[Record]) -> list[Record]:
    """Return the records of jobs, updated from where they run; their ends are recorded here."""
    known = {r["job"]: r for r in there}
    found: list[Record] = []
    for r in pointers:
        if r["job"] in known:
            found.append({**r, **known[r["job"]], "reach": reach})
            _note_end(r, found[-1])
        else:
            error = find_face(r["backend"]).make_backend(reach).explain_forgotten()
            found.append(_mark_unknown(r, reach, error))
            write_news(r, {"forgotten": True})
    return found


def _note_end(pointer: Record, news: Record) -> None:
    if news["state"] in record.OVER:
        record.remove_secret(pointer["path"])
        write_news(pointer, news)


def write_news(pointer: Record, news: Record) -> None:
    known = {k: v for k, v in {**pointer, **news}.items() if k not in ADDED}
    record.write_record(pointer["path"], cast("Record", {**known, "reach": pointer.get("reach")}))


def find_job(word: str, elsewhere: Elsewhere | None = None) -> Record:
    """Return the job with this id, else with this name, else whose id begins so. Raises SpecError.

    Several jobs may match if all but this job have ended; if all have, it is the newest.
    """
    jobs = list_jobs(elsewhere)
    found = (
        [r for r in jobs if r["job"] == word]
        or [r for r in jobs if word in (r.get("name"), r["job"].rpartition("-")[0])]
        or [r for r in jobs if r["job"].startswith(word)]
    )
    if len(found) == 1:
        return found[0]
    if found:
        alive = [r for r in found if r["state"] not in record.OVER]
        if len(alive) == 1 and alive[0]["state"] != record.STATE_UNKNOWN:
            return alive[0]
        if not alive:
            return found[-1]
        text = f"{word!r} matches several jobs; give more of the id"
        raise SpecError("\n  ".join([text, *map(format_line, found)]))
    if not jobs:
        raise SpecError(f"no job {word!r}; {explain_no_jobs(elsewhere)}; {OF_TERMINALS}")
    near = find_near(word, [r["job"] for r in jobs], 0.5)
    there = f" on {elsewhere.shown}" if elsewhere else ""
    hint = f"did you mean {near!r}?" if near else f"pslaunch jobs lists them; {OF_TERMINALS}"
    raise SpecError(f"no job {word!r}{there}; {hint}")


def make_unknown_error(r: Record) -> PslaunchError:
    error: PslaunchError | None = r.get("error")
    if "unreachable" in r:  # files that no longer exist
        error = FileError(r["unreachable"])
    return error or SpecError(f"job {r['job']}: {r['reason']}")


def explain_no_jobs(elsewhere: Elsewhere | None) -> str:
    if elsewhere is not None:
        return f"no jobs are known to {elsewhere.shown}"
    hints = ", ".join(filter(None, (find_face(name).place_hint for name in OWN)))
    return f"no jobs are known here; {hints}"


@contextlib.contextmanager
def open_backend(r: Record) -> Iterator[Backend]:
    """Open the way to the nodes of a job; the job goes on when it is closed."""
    backend = find_face(r["backend"]).make_backend(r.get("reach"))
    try:
        yield backend
    finally:
        backend.cancel()  # questions that nobody waits for any more
        backend.release()


def format_line(r: Record) -> str:
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(r["started"]))
    code = f" {r['code']}" if "code" in r else ""
    nodes = f"{r['nodes']} node{'' if r['nodes'] == 1 else 's'}"
    has_reason = r["state"] not in record.OVER and r.get("reason")
    why = f"  {' '.join(r['reason'].split())}" if has_reason else ""
    took = f", {show_s(r['elapsed_s'])}" if r.get("elapsed_s") is not None else ""
    output = f"  output in {r['output']}" if r.get("output") else ""
    return f"{r['job']}  {r['state']}{code}  {r['backend']}, {nodes}  {started}{took}{output}{why}"


def print_error(text: str) -> None:
    print_line(text, sys.stderr)


def print_line(text: str, out: TextIO) -> None:
    """Print a line that is safe for a terminal: parts of it come from nodes."""
    print(logs.clean(text, out.encoding or "utf-8"), file=out)
