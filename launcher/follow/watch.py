"""The view of a running job: shows a head's events, and ends the job if nobody can read them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import FileError
from ..node import codes
from ..node.line.wire import SILENCE
from ..node.loop import Loop
from ..views.outlet import Outlet

if TYPE_CHECKING:
    from ..node.head.events import Event
    from ..node.head.head import Head
    from ..views.view import View
    from .remote_head import RemoteHead

TICK_S = 0.125


class Watch:
    """View of a head's events while its loop runs, from `begin` on; `say` works also before."""

    def __init__(self, loop: Loop, view: View, outlet: Outlet) -> None:
        self._loop, self._view, self._outlet = loop, view, outlet
        self._head: Head | RemoteHead | None = None
        self._cursor = 0
        self._gaps: dict[str, Event] = {}  # omitted for a slow reader, by process
        self._broken: OSError | None = None
        self.on_ending: Callable[[float], None] = lambda _grace_s: None
        self.any_began = False  # a process was started
        self.any_ran = False  # a process or a step that prepares a node
        self.silent: set[int] = set()  # nodes lost by their silence
        self.failure: Mapping[str, Any] | None = None  # of the event `end`
        self._waited_for: set[str] | None = None  # processes not yet started, once the job is known
        loop.call_every(TICK_S, lambda: self.show(tick=True))

    def begin(self, head: Head | RemoteHead) -> None:
        """Show this head's events, past ones included. May be called twice."""
        if self._head is None:
            self._head = head
            self._end_if_broken()
            self.show()

    @property
    def has_started_all(self) -> bool:
        """True once every process of the job was started."""
        return self._waited_for is not None and not self._waited_for

    def run_until(self, condition: Callable[[], bool]) -> None:
        self._loop.run(condition, after_each=[self.show])
        self.show()

    def run_until_done(self) -> None:
        """Show events until the job ends. Raises FileError if the output broke."""
        head = self._head
        assert head is not None
        self.run_until(lambda: head.done)
        if self._broken:
            raise FileError(f"the job was ended because its output can't be written: {self._broken.strerror}")

    def say(self, text: str, level: str = "info", **more: str) -> None:
        """Show a note of the launcher itself, or of `who`; it has no number, unlike the head's events."""
        self._view.show_event({"time": time.time(), "event": "note", "level": level, "text": text, **more})
        self._outlet.flush()

    def show(self, *, tick: bool = False) -> None:
        events: list[Event] = []
        if self._head:
            events, self._cursor = self._head.list_events(self._cursor)
        for event in events:
            self.any_began |= event["event"] == "process"
            self.any_ran |= event["event"] in ("process", "line")
            if event["event"] == "ending":
                self.on_ending(event["grace_s"])
            elif event["event"] == "end":
                self.failure = event["failure"]
            elif event["event"] == "node" and event["state"] == "lost" and SILENCE in event["text"]:
                self.silent.add(event["node"])
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
                self._view.tick()
            self._outlet.flush()
        except OSError as e:
            self._break(e)

    def _tell(self, event: Event) -> None:
        """Show an event; if the reader is too slow, count output as a gap and drop progress."""
        if self._outlet.is_full and event["event"] in ("line", "gap", "progress"):
            if event["event"] != "progress":
                gap = {**{k: event[k] for k in ("n", "time", "process")}, "event": "gap", "bytes": 0}
                whole = len(event.get("text", "").encode()) + (not event.get("more", False))
                self._gaps.setdefault(event["process"], gap)["bytes"] += event.get("bytes", whole)
            return
        gaps, self._gaps = self._gaps, {}
        for e in (*gaps.values(), event):
            self._view.show_event(e)

    def _break(self, e: OSError) -> None:
        """End the job, as with a closed terminal: nobody can see it any more."""
        self._broken = e
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        self._end_if_broken()

    def _end_if_broken(self) -> None:
        if self._head and self._broken:
            why = f"the output can't be written ({self._broken.strerror})"
            self._head.stop(signal.SIGHUP, why, codes.IO)
