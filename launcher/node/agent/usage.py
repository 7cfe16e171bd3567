"""Processors and memory that the programs of a node use, measured about once a second."""

from __future__ import annotations

from collections.abc import Mapping

from .. import procs
from ..loop import Loop
from .program import Program

USAGE_EVERY_S = 1.0
REST = 100  # times as long as a measurement, which reads all of /proc: at most 1 % of a processor


class Usage:
    """Measures programs that run, as long as the loop does; their processes are those of their sessions."""

    def __init__(self, loop: Loop, programs: Mapping[str, Program]) -> None:
        self._loop, self._programs = loop, programs
        self._before: dict[int, tuple[float, float]] = {}  # time, and time on processors, by process
        loop.call_after(USAGE_EVERY_S, self._look)

    def _look(self) -> None:
        now_s, before = self._loop.now(), self._before
        running = {p.process.pid: p for p in self._programs.values() if not p.ended}
        found = procs.measure_sessions(running) if running else {}
        for pid in found.keys() & before.keys():
            (then_s, then_cpu_s), (cpu_s, size) = before[pid], found[pid]
            if size:  # else it has just ended
                running[pid].note_usage(max(0.0, 100 * (cpu_s - then_cpu_s) / (now_s - then_s)), size)
        self._before = {pid: (now_s, cpu_s) for pid, (cpu_s, _) in found.items()}
        self._loop.call_after(max(USAGE_EVERY_S, REST * (self._loop.now() - now_s)), self._look)
