"""Jobs whose head is on a node, from any later shell: which there are, how they stand, their end."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from pslaunch.args import nearest
from pslaunch.backends.base import load_backend
from pslaunch.errors import NodeLostError, SpecError
from pslaunch.node import codes, record
from pslaunch.node.loop import Loop
from pslaunch.node.wire import Message
from pslaunch.observe import RemoteHead

LOST_AFTER_S = 10.0  # a head that does not answer a later shell for so long is called lost
Record = Mapping[str, Any]


def all_jobs() -> list[Record]:
    """The user's jobs, oldest first; `state` is running, ended, or lost where no head answers any more."""
    found = record.read_all(record.folder(os.environ))
    return [{**r, "state": "lost"} if r["state"] == "running" and not _answers(r) else r for r in found]


def _answers(r: Record) -> bool:
    try:
        for fd in set(load_backend(r["backend"]).head_line(r)):
            os.close(fd)
    except OSError:
        return False
    return True


def find(word: str) -> Record:
    """The job of this id, or of an unmistakable beginning of one. Raises SpecError."""
    jobs = all_jobs()
    found = [r for r in jobs if r["job"] == word] or [r for r in jobs if r["job"].startswith(word)]
    if len(found) == 1:
        return found[0]
    if found:
        raise SpecError(f"{word!r} may be {', '.join(r['job'] for r in found)}")
    near = nearest(word, [r["job"] for r in jobs], cutoff=0.5)
    raise SpecError(f"no job {word!r}" + (f"; is {near!r} meant?" if near else "; pslaunch jobs lists them"))


class _Head:
    """A line to the head of a running job, closed at the end."""

    def __init__(self, r: Record) -> None:
        self._loop = Loop()
        try:
            fds = load_backend(r["backend"]).head_line(r)
        except OSError as e:
            self._loop.close()
            raise NodeLostError(f"job {r['job']}: its head does not answer: {e.strerror}") from e
        self.head = RemoteHead(self._loop, *fds, name=f"job {r['job']}", lost_after_s=LOST_AFTER_S)

    def __enter__(self) -> RemoteHead:
        return self.head

    def __exit__(self, *_: object) -> None:
        self.head.close()
        self._loop.close()

    @property
    def loop(self) -> Loop:
        return self._loop


def show_jobs(out: TextIO, *, as_json: bool) -> None:
    """One line a job."""
    for r in all_jobs():
        if as_json:
            print(json.dumps({k: v for k, v in r.items() if k != "path"}), file=out)
            continue
        started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(r["started"]))
        code = f" {r['code']}" if "code" in r else ""
        print(f"{r['job']}  {r['state']}{code}  {r['backend']}, {r['nodes']} node(s)  {started}", file=out)


def show_status(word: str, out: TextIO, *, as_json: bool) -> None:
    """How a job and each of its processes stand."""
    r = find(word)
    status: Message = {k: v for k, v in r.items() if k != "path"}
    if r["state"] == "running":
        with _Head(r) as head:
            status |= {k: v for k, v in head.status().items() if k != "type"}
    if as_json:
        print(json.dumps(status), file=out)
        return
    ended = f": {status['reason']} (exit code {status['code']})" if "reason" in status else ""
    print(f"{status['job']}  {status['state']}{ended}", file=out)
    for process in status["processes"]:
        known = {k: v for k, v in process.items() if k not in ("process", "state", "log", "node")}
        line = f"  {process['process']} on node {process['node']}  {process.get('state', '')}"
        print(" ".join([line, *(f"{k}={v}" for k, v in known.items())]), file=out)


def show_logs(word: str, process: str | None, out: TextIO, *, follow: bool, as_json: bool) -> int:
    """The lines of a job's processes, as its head remembers them; of an ended job, its files.

    Returns the exit code for the shell: the job's own where it was followed to its end.
    """
    r = find(word)
    known = [p["process"] for p in r["processes"]]
    if process and process not in known:
        raise SpecError(f"no process {process!r} in job {r['job']}; there are {', '.join(known)}")
    if r["state"] != "running":
        _print_files(r, process, out)
        return codes.OK
    session = _Head(r)
    with session as head:
        head.follow()
        cursor, upto = 0, None if follow else int(head.status().get("events", 0))
        while True:
            events, cursor = head.events(cursor)
            for event in events:
                _print_line(event, process, out, as_json=as_json)
            out.flush()
            if head.done or (upto is not None and cursor >= upto):
                return head.code if follow else codes.OK
            session.loop.run_once()


def _print_line(event: Mapping[str, Any], process: str | None, out: TextIO, *, as_json: bool) -> None:
    if event["event"] != "line" or process not in (None, event["process"]):
        return
    text = (
        json.dumps(event)
        if as_json
        else event["text"]
        if process
        else f"{event['process']} | {event['text']}"
    )
    print(text, file=out)


def _print_files(r: Record, process: str | None, out: TextIO) -> None:
    for p in r["processes"]:
        if process in (None, p["process"]):
            prefix = "" if process else f"{p['process']} | "
            try:
                with Path(p["log"]).open(encoding="utf-8", errors="replace") as f:
                    for line in f:
                        print(f"{prefix}{line.rstrip()}", file=out)
            except OSError as e:
                if e.filename is None:  # it was `out`
                    raise
                print(f"{prefix}{p['log']}: {e.strerror}", file=sys.stderr)


def stop(word: str, out: TextIO, *, kill: bool) -> int:
    """End a job and wait for its end; with `kill` at once. Returns 0 once it has ended."""
    r = find(word)
    if r["state"] != "running":
        print(f"{r['job']} is not running: {r['state']}", file=out)
        return codes.OK
    session = _Head(r)
    with session as head:
        head.follow()
        for _ in range(2 if kill else 1):
            head.stop(signal.SIGTERM, "pslaunch stop")
        session.loop.run(lambda: head.done)
    print(f"{r['job']} has ended", file=out)
    return codes.OK
