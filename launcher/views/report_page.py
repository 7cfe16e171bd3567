"""A job's events as one HTML page that needs no network: charts, processes over time, what failed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final

from ..node.head.events import Event
from .charts import COLOURS, Span, draw_bars, draw_lines, draw_spans
from .view import Transcript, show_bytes, show_ending, show_epoch, show_s

SECONDS: Final = "seconds since the start of the job"
# Numbers of progress by their places in the page, with heading and unit; any others come after these.
UNITS: Final = {
    "cost": ("Cost", "cost of the batch"),
    "samples_per_s": ("Samples a second", "samples/s of the trainer"),
    "cpu_percent": ("Processor", "% of one processor"),
    "memory_bytes": ("Memory", "bytes"),
    "gpu_percent": ("GPU", "% of one GPU"),
    "gpu_bytes": ("Memory of GPUs", "bytes"),
}
TOTALS: Final = {  # their last values are drawn as bars
    "waited_s": ("Time in calls to pservers, with waits for other trainers", "s"),
    "in_bytes": ("Received by pservers", "bytes"),
    "out_bytes": ("Sent by pservers", "bytes"),
}
NOT_DRAWN: Final = ("n", "time", "pass", "passes", "batch", "batches", "dropped", "cut", *TOTALS)
OVER_STEPS: Final = ("cost", "metric")  # others are drawn over time
OF_PLAN: Final = {"name": "name", "backend": "backend", "server": "pservers", "why": "pservers, why",
                  "epoch": "epoch", "workspace": "workspace", "version": "pslaunch"}  # fmt: skip
STATES: Final = ("waiting", "running", "connected", "finished", "failed")
STYLE: Final = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1a1a1a;--dim:#595959;--grid:#dcdcdc;--box:#f4f4f4;
--c0:#0072b2;--c1:#d55e00;--c2:#008060;--c3:#b0528e;--c4:#a06a00;--c5:#3b8fc4;
--waiting:#c8c8c8;--running:#9bcbea;--connected:#4796cf;--finished:#e8b93c;--failed:#d9480f}
@media(prefers-color-scheme:dark){
:root{--bg:#16181b;--fg:#e6e6e6;--dim:#a8a8a8;--grid:#3a3d42;--box:#22252a;
--c0:#56b4e9;--c1:#ff9a4d;--c2:#3fd0a4;--c3:#e79ac6;--c4:#f0c24b;--c5:#a6d8f5;--waiting:#7a7e84}}
body{background:var(--bg);color:var(--fg);font:15px/1.45 system-ui,sans-serif}
body{max-width:900px;margin:1.5em auto;padding:0 1em}h1{font-size:1.4em;margin-bottom:.2em}
h2{font-size:1.1em;margin:1.6em 0 .3em}svg{width:100%;display:block}
svg text{fill:var(--fg);stroke:none;font:12px system-ui,sans-serif}svg .in{fill:#111}
svg polyline{fill:none;stroke-width:1.6}svg .dashed polyline{stroke-dasharray:6 4}
.grid{stroke:var(--grid)}.axis{stroke:var(--dim);fill:none}.bar{fill:var(--c0)}
.legend{margin:.2em 0;color:var(--dim)}.legend span{margin-right:1.2em;white-space:nowrap}
.legend i{display:inline-block;width:1.1em;height:.7em;margin-right:.4em;background:var(--now)}
table{border-collapse:collapse;margin-bottom:1em}th{font-weight:600}
td,th{text-align:left;padding:.15em 1.2em .15em 0;vertical-align:top;overflow-wrap:anywhere}
pre{background:var(--box);padding:.6em;overflow-x:auto}
.fail{border-left:4px solid var(--failed);padding-left:.8em;white-space:pre-wrap}
""" + "".join(
    f".{name}{{--now:var(--{colour});fill:var(--now);stroke:var(--now)}}"
    for name, colour in [*((f"c{i}", f"c{i}") for i in range(COLOURS)), *((f"s-{x}", x) for x in STATES)]
)


class Story:
    """What the events of one job tell, sorted for a page."""

    def __init__(self, events: Iterable[Event]) -> None:
        ordered = sorted(events, key=lambda e: e["n"])
        self.job: Event = next((e for e in ordered if e["event"] == "job"), {})
        self.end: Event = next((e for e in ordered if e["event"] == "end"), {})
        self.begin_s: float = ordered[0]["time"] if ordered else 0.0
        self.end_s: float = max([1e-3, *(e["time"] - self.begin_s for e in ordered)])
        self.notes = [e for e in ordered if e["event"] in ("note", "ending")]
        self.dispatched = {e["node"]: e for e in ordered if e["event"] == "dispatch"}
        self.progress = [e for e in ordered if e["event"] == "progress"]
        self.restarts = [e for e in ordered if e["event"] == "restart" and e["state"] == "running"]
        self._changes = [e for e in ordered if e["event"] in ("process", "progress") and "state" in e]

    def list_spans(self, process: str) -> list[Span]:
        """Return the states of a process, one after the other."""
        spans, state, since_s = list[Span](), "waiting", 0.0
        for e in [e for e in self._changes if e["process"] == process]:
            now_s = e["time"] - self.begin_s
            if e["state"] == "exited":
                spans.append(Span(since_s, now_s, state))
                if e.get("code") or e.get("signal"):
                    text = f"ended {show_ending(e.get('code'), e.get('signal'))}"
                    spans.append(Span(now_s, now_s, "failed", text))
                state = ""
            elif e["state"] in STATES:
                spans += [Span(since_s, now_s, state)] if state else []
                state, since_s = e["state"], now_s
        return [*spans, Span(since_s, self.end_s, state)] if state else spans

    def list_measures(self) -> dict[str, dict[str, list[tuple[float, float]]]]:
        """Return the numbers that processes have reported: by name, by process, points over steps or time."""
        batches = 1 + max((e.get("batch", 0) for e in self.progress), default=0)  # of a pass
        found: dict[str, dict[str, list[tuple[float, float]]]] = {}
        for e in self.progress:
            numbers = {k: v for k, v in e.items() if k not in NOT_DRAWN and type(v) in (int, float)}
            for name, value in numbers.items():
                x = e["time"] - self.begin_s
                if name.startswith(OVER_STEPS) and "batch" in e:
                    x = e.get("pass", 0) * e.get("batches", batches) + e["batch"]
                found.setdefault(name, {}).setdefault(e["process"], []).append((x, value))
        return found


def make_page(events: Iterable[Event]) -> str:
    """Return the page. Every text in it is escaped."""
    story = Story(events)
    words, title = Transcript(), escape(str(story.job.get("job", "a job")))
    if story.job:
        words.make_lines(story.job)  # it learns the names of nodes
    parts = [f"<h1>{title}</h1>{tell_end(story.end, words)}", *draw_measures(story)]
    processes = [process["process"] for process in story.job.get("processes", ())]
    if processes:
        spans = {process: story.list_spans(process) for process in processes}
        parts.append(f"<h2>Processes</h2>{draw_spans(spans, story.end_s, SECONDS)}")
    for field, (heading, unit) in TOTALS.items():
        if values := dict(sorted((e["process"], e[field]) for e in story.progress if field in e)):  # the last
            parts.append(f"<h2>{heading}</h2>{draw_bars(values, unit)}")
    parts += [tabulate_restarts(story), tabulate_dispatch(story, words)]
    parts += [tabulate_plan(story.job), tabulate_notes(story)]
    head = f'<meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
    body = "\n".join(parts)
    return f'<!DOCTYPE html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def tell_end(end: Event, words: Transcript) -> str:
    """Return how the job has ended, and what failed."""
    if not end:
        return "<p>No end is known: the job runs, or what led it was killed.</p>"
    lines = words.make_lines({**end, "failure": end["failure"] and {**end["failure"], "tail": []}})
    text = escape("\n".join(said.text for said in lines))
    if not end["failure"]:
        return f"<p>{text}</p>"
    tail = escape("\n".join(end["failure"]["tail"]))
    return f'<div class="fail">{text}{f"<pre>{tail}</pre>" if tail else ""}</div>'


def draw_measures(story: Story) -> list[str]:
    """Return a chart for each number that processes have reported, cost and metrics first."""
    parts, measures = [], story.list_measures()
    for name in sorted(measures, key=lambda x: (not x.startswith(OVER_STEPS), [*UNITS, x].index(x), x)):
        plain = name.removeprefix("metric.")
        heading, unit = UNITS.get(name, (plain, plain))
        label = "step: batches of all passes" if name.startswith(OVER_STEPS) else SECONDS
        chart = draw_lines(dict(sorted(measures[name].items())), label, unit)
        parts.append(f"<h2>{escape(heading)}</h2>{chart}")
    return parts


def tabulate(heading: str, rows: Sequence[Sequence[Any]], head: Sequence[str] = ()) -> str:
    """Return a table of texts under its heading, nothing without rows."""
    lines = ["".join(f"<th>{escape(name)}</th>" for name in head)]
    lines += ["".join(f"<td>{escape(str(cell))}</td>" for cell in row) for row in rows]
    table = f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
    return (heading and f"<h2>{heading}</h2>") + table if rows else ""


def tabulate_restarts(story: Story) -> str:
    rows = [(f"{e['time'] - story.begin_s:.1f} s", e["why"], show_epoch(e)) for e in story.restarts]
    return tabulate("Restarts", rows)


def tabulate_dispatch(story: Story, words: Transcript) -> str:
    rows = []
    for node, e in story.dispatched.items():
        whose, source, took = "all nodes", "", f"in {show_s(e.get('elapsed_s', 0))}"
        if node is not None:
            whose = words.show_node(node)
            took = f"until {show_s(e['time'] - story.begin_s)}"
            source = "the head" if e["source"] is None else words.show_node(e["source"])
        rows.append((whose, source, f"{e['files']:,}", show_bytes(e["bytes"]), took))
    return tabulate("Dispatch", rows, ("to", "from", "files", "size", "time"))


def tabulate_plan(job: Event) -> str:
    rows: list[Sequence[Any]] = [(label, job[name]) for name, label in OF_PLAN.items() if name in job]
    for name, value in job.get("plan", {}).items():
        shown = " ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else value
        rows += [(name, shown)] if shown not in (None, "") else []
    names = {node["id"]: node["name"] for node in job.get("nodes", ())}
    logs = [(p["process"], names.get(p["node"], p["node"]), p["log"]) for p in job.get("processes", ())]
    return tabulate("Plan and versions", rows) + tabulate("", logs, ("process", "node", "log"))


def tabulate_notes(story: Story) -> str:
    rows = []
    for e in story.notes:
        text = e["text"] if e["event"] == "note" else f"ending the job: {e['why']}"
        rows.append((f"{e['time'] - story.begin_s:.1f} s", text))
    return tabulate("Notes", rows)
