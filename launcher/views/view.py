"""Views of a job: plain lines, JSON and logs for a later shell; live.py has the terminal's view.

All render the event stream of the head to one output, normally stdout. Transcript chooses the words without
I/O; the views write.
"""

from __future__ import annotations

import json as jsonlib
import re
import signal as signals
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TextIO

from ..node.head.events import Event  # see docs/events.md
from ..node.logs import clean

PROGRESS_LINE_EVERY_S: Final = 10.0  # between two progress lines of one process in a plain view
SELF: Final = "pslaunch"  # as the source of a line
RATE: Final = "samples/s"
# Figures of progress reports: their names in tables, and forms, such as `5.500` and `0.0001234` of costs.
_FIGURES: Final = {"pass": ("pass", "{}"), "batch": ("batch", "{}"), "cost": ("cost", "{:#.4g}"),
                   "samples_per_s": (RATE, "{:,.0f}"), "cpu_percent": ("cpu", "{:.0f} %"),
                   "gpu_percent": ("gpu", "{:.0f} %")}  # fmt: skip
# A reason and its details; a leading node or part of the job belongs to the reason.
_DETAILED: Final = re.compile(r"((?:(?:node \d+ \(\S*\)|the \w+): )?.*?)[:;] .*", re.DOTALL)


class View:
    """View of a job, for one thread. Raises OSError if it can't write, except in `close`."""

    def show_event(self, e: Event) -> None:
        """Show one event; events arrive in order of their numbers."""

    def tick(self) -> None:
        """Redraw; called a few times a second."""

    def close(self) -> None:
        """Restore the terminal. May be called twice, never raises."""


# --- Words: pure. ---


class Said(NamedTuple):
    """One line of text and its source, a process or pslaunch."""

    who: str
    text: str
    level: str = "info"  # info, warning, error, or "output" of a program
    mark: str = "|"  # "+": continuation of a long line


class Transcript:
    """Converter of events into lines; remembers names and logs, does no I/O."""

    def __init__(self, encoding: str | None = None) -> None:
        self._encoding = encoding or "utf-8"
        self._nodes: dict[Any, str] = {}
        self._logs: dict[str, str] = {}
        self._open: set[str] = set()  # processes in the middle of a long line
        self._begun = False  # some process runs, or has run
        self.width = len("trainer/0")  # or more, once the processes are known

    def make_lines(self, e: Event) -> list[Said]:
        """Return the lines for an event, often none; none for an unknown event."""
        tell = getattr(self, f"_on_{e.get('event')}", None)
        return [] if tell is None else list(tell(e))

    def make_columns(self, said: Said) -> tuple[str, str]:
        """Return the prefix `trainer/0 | ` and the text, both safe for a terminal of this encoding."""
        prefix = f"{clean(said.who, self._encoding):<{self.width}} {said.mark} "
        return prefix, clean(said.text, self._encoding)

    def learn(self, nodes: Mapping[Any, str], logs: Mapping[str, str]) -> None:
        self._nodes, self._logs = dict(nodes), dict(logs)
        self.width = max(self.width, *map(len, logs), 0)

    def _on_job(self, e: Event) -> Iterator[Said]:
        nodes = {node["id"]: node["name"] for node in e["nodes"]}
        self.learn(nodes, {p["process"]: p["log"] for p in e["processes"]})
        if self._begun:
            return  # another head goes on with it
        epoch = f", epoch {e['epoch']}" if e.get("epoch") else ""
        counts = Counter(process.partition("/")[0] for process in self._logs)
        roles = ", ".join(f"{n} {role}{'' if n == 1 else 's'}" for role, n in counts.items())
        yield Said(SELF, f"job {e['job']}{epoch} on {e['backend']}: {roles}")
        yield Said(SELF, f"nodes: {', '.join(map(str, self._nodes.values()))}; workspace: {e['workspace']}")
        yield Said(SELF, f"pservers: {e['server']}, {e['why']}")

    def _on_node(self, e: Event) -> Iterator[Said]:
        known = e.get("text") == self._nodes.get(e["node"])  # the host is named like its node
        if e["state"] == "lost" or (e.get("text") and not known):
            level = "error" if e["state"] == "lost" else "info"
            yield Said(SELF, _join(f"{self.show_node(e['node'])} {e['state']}", e.get("text")), level)

    def _on_dispatch(self, e: Event) -> Iterator[Said]:
        if e["node"] is not None or not e["files"]:
            return
        count = f"{e['files']:,} file{'s' if e['files'] != 1 else ''}, {show_bytes(e['bytes'])}"
        hosts = "1 host" if e["nodes"] == 1 else f"{e['nodes']} hosts in all"
        yield Said(SELF, f"sent {count}, to {hosts}, in {show_s(e['elapsed_s'])}")

    def _on_process(self, e: Event) -> Iterator[Said]:
        process = e["process"]
        if e["state"] == "running":
            self._begun = True
            words = f"{process} runs on {self.show_node(e['node'])}, pid {e['pid']}"
            yield Said(SELF, _join(words, e.get("text")))
        elif e["state"] == "exited":
            words = show_ending(e.get("code"), e.get("signal"))
            level = "info" if e.get("code") == 0 else "warning"
            yield Said(SELF, _join(f"{process} ended {words}", e.get("text")), level)

    def _on_line(self, e: Event) -> Iterator[Said]:
        process = e["process"]
        yield Said(process, e["text"], "output", "+" if process in self._open else "|")
        (self._open.add if e.get("more") else self._open.discard)(process)

    def _on_gap(self, e: Event) -> Iterator[Said]:
        log = self._logs.get(e["process"], "its log")
        yield Said(SELF, f"{e['process']}: {e['bytes']} bytes are left out here; see {log}", "warning")

    def _on_note(self, e: Event) -> Iterator[Said]:
        level = e.get("level", "info")
        yield Said(e.get("who", SELF), e["text"] if level == "info" else f"{level}: {e['text']}", level)

    def _on_restart(self, e: Event) -> Iterator[Said]:
        if e["state"] == "ending":
            yield from self.show_failure({**e["failure"], "advice": ""})  # the restart is the remedy
            yield Said(SELF, f"restarting all programs: restart {e['restart']} of {e['of']}", "warning")
        else:
            yield Said(SELF, show_epoch(e))

    def _on_ending(self, e: Event) -> Iterator[Said]:
        why = _DETAILED.sub(r"\1", e["why"])  # the end event shows the details
        kill = f"; KILL after {e['grace_s']:g} s" if self._begun else ""
        yield Said(SELF, f"ending the job: {why}{kill}", "warning")

    def _on_end(self, e: Event) -> Iterator[Said]:
        failure, elapsed = e.get("failure"), show_s(e["elapsed_s"])
        if failure:
            yield from self.show_failure(failure)
        if e["code"] == 0:
            yield Said(SELF, _join(f"done after {elapsed}", e.get("reason")))
        else:
            word, level = ("failed", "error") if failure else ("ended", "warning")
            reason = None if failure else e.get("reason")  # the failure has the reason
            yield Said(SELF, _join(f"{word} after {elapsed}, exit code {e['code']}", reason), level)

    def show_failure(self, f: Event) -> Iterator[Said]:
        of_node = f.get("node") is None or f["what"].startswith(("node ", "the "))
        what = f["what"] if of_node else f"{f['what']} on {self.show_node(f['node'])}"
        if f.get("text"):  # it says how, in words
            what = f"{what}: {f['text']}"
        elif f.get("code") is not None:
            what = f"{what} ended {show_ending(f['code'], f.get('signal'))}"
        yield Said(SELF, f"FAILED: {what}", "error")
        tail = f.get("tail") or ()
        if f.get("log"):
            yield Said(SELF, f"  log: {f['log']}" + (", which ends with:" if tail else ""))
        for line in tail:
            yield Said(SELF, f"    {line}")
        if f.get("advice"):
            yield Said(SELF, f"  what to do: {f['advice']}")

    def show_node(self, node: Any) -> str:
        """Show a node with the name of its host, if that is known: `node 2 (node3)`."""
        name = self._nodes.get(node)
        return f"node {node} ({name})" if name else f"node {node}"


def show_ending(code: int | None, signal: str | None) -> str:
    """Show an ending in words: `with exit code 3`, `by signal 9 (SIGKILL)`."""
    if signal:
        number = signals.Signals.__members__.get(signal)
        return f"by signal {int(number)} ({signal})" if number else f"by signal {signal}"
    return "with an unknown code" if code is None else f"with exit code {code}"


def show_epoch(restart: Mapping[str, Any]) -> str:
    """Show the epoch that a restart has begun: `epoch 2 from step 1,240, 3.2 s lost`."""
    if restart["lost_s"] is None:
        return f"epoch {restart['epoch']} has not begun"
    step = "" if restart["step"] is None else f" from step {restart['step']:,}"
    return f"epoch {restart['epoch']}{step}, {show_s(restart['lost_s'])} lost"


def show_s(seconds: float) -> str:
    """Show a duration: `4.2 s`, `3 min 05 s`, `2 h 05 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def show_figures(report: Event) -> dict[str, str]:
    """Show the figures of a progress report, by their names in tables."""
    shown = {column: form.format(report[name]) for name, (column, form) in _FIGURES.items() if name in report}
    if "pass" in report and "passes" in report:
        shown["pass"] = f"{report['pass'] + 1} of {report['passes']}"
    if "memory_bytes" in report:
        shown["memory"] = show_bytes(report["memory_bytes"])
    if report.get("gpu_bytes"):
        shown["gpu"] = f"{shown.get('gpu', '')} {show_bytes(report['gpu_bytes'])}".lstrip()
    return shown


def show_progress(report: Event) -> str:
    """Show a progress report: `pass 0, batch 100, cost 5.310, 5,320 samples/s, auc 0.71`."""
    shown = show_figures(report)
    words = [f"{name} {shown[name]}" for name in ("pass", "batch", "cost") if name in shown]
    if RATE in shown:
        words.append(f"{shown[RATE]} {RATE}")
    if "dropped" in report:
        words.append(f"{report['dropped']} gradients dropped as late")
    words += [f"{name[7:]} {value:.4g}" for name, value in report.items() if name.startswith("metric.")]
    return ", ".join(words)


def show_state(status: Event) -> str:
    """Show the state of a process in a column: `running`, `exit 3`, `SIGTERM`."""
    if status["state"] == "exited":
        ended = "ended" if status.get("code") is None else f"exit {status['code']}"
        return status.get("signal") or ended
    said = str(status.get("said") or status["state"])
    return "running" if said == "connected" else said


def show_process(status: Event) -> str:
    """Show the status of a process: `running, pid 12, pass 0, cost 5.310`, `exit 3: a cause`."""
    words = [show_state(status)]
    if status["state"] != "exited" and "pid" in status:
        words.append(f"pid {status['pid']}")
    return _join(", ".join(filter(None, [*words, show_progress(status)])), status.get("why"))


def _join(text: str, detail: str | None) -> str:
    return f"{text}: {detail}" if detail else text


class DispatchProgress:
    """Progress of a dispatch to all nodes, from its events; `over` when all are done or nothing is sent."""

    def __init__(self) -> None:
        self.nodes: dict[int, Event] = {}  # the last event of each
        self._began_s = self._now_s = 0.0
        self.over = True

    def note(self, e: Event) -> None:
        if e["node"] is None:
            self.over = True
            return
        if not self.nodes:
            self._began_s = e["time"]
        self.nodes[e["node"]] = e
        self._now_s = e["time"]
        self.over = False

    @property
    def come_bytes(self) -> int:
        return sum(int(e["received"]) for e in self.nodes.values())

    @property
    def total_bytes(self) -> int:
        return sum(int(e["bytes"]) for e in self.nodes.values())

    def show(self) -> str:
        """Show the total: `45 % of 3.4 GB to 3 hosts (1 has it), 110.0 MB/s, 17 s left`."""
        come, total = self.come_bytes, self.total_bytes
        hosts = f"{len(self.nodes)} host{'s' if len(self.nodes) != 1 else ''}"
        done = sum(e["state"] == "done" for e in self.nodes.values())
        have = f" ({done} {'has' if done == 1 else 'have'} it)" if done else ""
        took_s = self._now_s - self._began_s
        rate = ""
        if took_s > 0.001 and come:
            rate = f", {show_bytes(int(come / took_s))}/s, {took_s * (total - come) / come:.0f} s left"
        percent = 100 * come // total if total else 100  # 100 only at the end
        return f"{percent} % of {show_bytes(total)} to {hosts}{have}{rate}"


# --- Views that need no terminal. ---


_ENCODER: Final = jsonlib.JSONEncoder(separators=(",", ":"))


class JsonView(View):
    """View with one line of JSON per event."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def show_event(self, e: Event) -> None:
        self._out.write(f"{_ENCODER.encode(e)}\n")


class PlainView(View):
    """View with prefixed lines, for files, pipes and simple terminals."""

    def __init__(self, out: TextIO, clock: Callable[[], float]) -> None:
        self._out, self._clock = out, clock
        self._transcript = Transcript(out.encoding)
        self._told_s: dict[str, float] = {}  # time of the last progress line of each process
        self._start_s = clock()
        self._sending = DispatchProgress()

    def show_event(self, e: Event) -> None:
        said = self._transcript.make_lines(e)
        if e.get("event") == "progress":
            if (words := show_progress(e)) and self._is_due(e["process"]):
                said.append(Said(SELF, f"{e['process']}: {words}"))
        elif e.get("event") == "dispatch":
            self._sending.note(e)
            if not self._sending.over and self._is_due("dispatch"):
                said.append(Said(SELF, f"sending: {self._sending.show()}"))
        for one in said:
            self._out.write("".join((*self._transcript.make_columns(one), "\n")))

    def _is_due(self, what: str) -> bool:
        """Check for the time of the next progress line, and record it."""
        now_s = self._clock()
        if now_s - self._told_s.get(what, self._start_s) < PROGRESS_LINE_EVERY_S:
            return False
        self._told_s[what] = now_s
        return True


class LogView(View):
    """View of one process's lines, or of all with their names; reports go to stderr, or are JSON too."""

    def __init__(
        self, out: TextIO, transcript: Transcript, process: str | None, *, json: bool, follow: bool
    ) -> None:
        """follow: show restarts and the end too."""
        self._out, self._transcript, self._process = out, transcript, process
        self._json, self._follow = json, follow

    def show_event(self, e: Event) -> None:
        if not self._is_shown(e):
            return
        if self._json:
            print(jsonlib.dumps(e), file=self._out)
            return
        for said in self._transcript.make_lines(e):
            if said.level == "output":
                prefix, text = self._transcript.make_columns(said)
                print(text if self._process else f"{prefix}{text}", file=self._out)
            else:
                self.report(said)

    def _is_shown(self, e: Event) -> bool:
        if e["event"] in ("line", "gap"):
            return self._process in (None, e["process"])
        return "missing" in e or (e["event"] in ("restart", "end") and self._follow)

    def flush(self) -> None:
        self._out.flush()

    def report(self, said: Said) -> None:
        """Show a line beside the output."""
        self.flush()
        print(*self._transcript.make_columns(said), sep="", file=sys.stderr)


def show_bytes(n: int) -> str:
    """Show a size: `512 bytes`, `3.4 MB`."""
    size, units = float(n), ["kB", "MB", "GB", "TB"]
    if n < 1000:
        return f"{n} bytes"
    while size >= 999_950 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size / 1000:.1f} {units[0]}"
