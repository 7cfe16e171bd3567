"""The launcher's side of one running job: backend, head, view, and the end."""

from __future__ import annotations

import functools
import json
import os
import secrets
import sys
import time
from typing import TextIO

from pslaunch.backends.base import load_backend
from pslaunch.errors import FileError
from pslaunch.node.head import STOP_SIGNALS, Head
from pslaunch.node.job import place
from pslaunch.node.loop import Loop
from pslaunch.plan import dry_run as plan_as_data
from pslaunch.plan import make_plan, render
from pslaunch.spec import JobSpec
from pslaunch.view import View, make_view

TICK_S = 0.125


def new_job_id(name: str) -> str:
    """Unique, sortable by time, and readable: `word2vec-20260102-030405-1a2b`."""
    safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)[:40] or "job"
    return f"{safe}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def dry_run(spec: JobSpec, *, as_json: bool) -> str:
    """What `run` would start, without starting anything."""
    data = plan_as_data(make_plan(spec, new_job_id(spec.job_name)))
    return json.dumps(data, indent=2) if as_json else render(data)


def run(spec: JobSpec, *, as_json: bool, out: TextIO | None = None) -> int:
    """Run the job to its end and return its exit code. Raises PslaunchError where it can't begin."""
    plan = make_plan(spec, new_job_id(spec.job_name))
    loop = Loop()
    backend = load_backend(spec.backend)
    view = make_view(json=as_json, out=out or sys.stdout, clock=time.monotonic)
    try:
        head = Head(loop, place(plan, plan.nodes), secrets.token_hex(32), time.time)
        loop.on_signals({n: functools.partial(head.stop, n, why) for n, why in STOP_SIGNALS.items()})
        for line in backend.start(plan.nodes, plan.limits):
            head.attach(line.node, line.read_fd, line.write_fd, line.diagnosis)
        _Watch(loop, head, view).until_done()
        backend.close()
        return head.code
    finally:
        backend.close()
        view.close()
        loop.close()


class _Watch:
    """Shows a head's events while its loop runs."""

    def __init__(self, loop: Loop, head: Head, view: View) -> None:
        self._loop, self._head, self._view = loop, head, view
        self._cursor = 0
        self._broken: OSError | None = None

    def until_done(self) -> None:
        self._loop.every(TICK_S, lambda: self._show(tick=True))
        self._loop.run(lambda: self._head.done, after_each=[self._show])
        self._show()
        if self._broken:
            raise FileError(f"the job was ended because its output can't be written: {self._broken.strerror}")

    def _show(self, *, tick: bool = False) -> None:
        events, self._cursor = self._head.events(self._cursor)
        if self._broken:
            return
        try:
            for event in events:
                self._view.event(event)
            if tick:
                self._view.tick(self._loop.now())
        except OSError as e:
            # Nobody can see this job any more: as with a closed terminal, it ends.
            self._broken = e
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.close(null)
            self._head.stop(1, f"the output can't be written ({e.strerror})")
