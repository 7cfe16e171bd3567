"""Figures of a job for TensorBoard, in a folder of event files for each process."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any, Final

from ..node.head.events import Event
from .view import View

MAX_STEP: Final = 2**63 - 1
BY_BATCH: Final = ("cost", "samples_per_s", "dropped", "metric")
BY_TIME: Final = ("cpu_percent", "memory_bytes", "gpu_percent", "gpu_bytes")


class Board(View):
    """View that shows all events in another one, and writes reports; a failed write ends only the writing."""

    def __init__(self, view: View, folder: Path) -> None:
        self._view, self._folder, self._failed = view, folder, False
        self._writers: dict[str, Any] = {}
        self._batches: dict[str, int] = {}  # of a pass so far, by process
        self._began_s = 0.0

    def show_event(self, e: Event) -> None:
        self._view.show_event(e)
        if e.get("event") == "progress" and not self._failed:
            try:
                self._write(e)
            except OSError as error:
                self._failed = True
                text = f"nothing more for TensorBoard: {self._folder} can't be written: {error.strerror}"
                self._view.show_event({**e, "event": "note", "level": "warning", "text": text})

    def tick(self) -> None:
        self._view.tick()

    def close(self) -> None:
        self._view.close()
        for writer in self._writers.values():
            with contextlib.suppress(OSError):
                writer.close()

    def _write(self, e: Event) -> None:
        from tensorboardX.event_file_writer import EventsWriter  # slow to import
        from tensorboardX.proto import event_pb2, summary_pb2

        process, now_s, batch = e["process"], e["time"], e.get("batch", 0)
        if process not in self._writers:
            folder = self._folder / re.sub(r"\W", "-", process)
            folder.mkdir(parents=True, exist_ok=True)
            self._writers[process] = EventsWriter(str(folder / "events"))
        self._began_s = self._began_s or now_s
        seen = self._batches[process] = max(self._batches.get(process, 0), batch + 1)
        step = min(e.get("pass", 0) * e.get("batches", seen) + batch, MAX_STEP)
        for names, at in ((BY_BATCH, step), (BY_TIME, int(now_s - self._began_s))):
            figures = {name: x for name, x in e.items() if name.partition(".")[0] in names}
            values = [summary_pb2.Summary.Value(tag=tag, simple_value=x) for tag, x in figures.items()]
            summary = summary_pb2.Summary(value=values)
            self._writers[process].write_event(event_pb2.Event(wall_time=now_s, step=at, summary=summary))
        self._writers[process].flush()
