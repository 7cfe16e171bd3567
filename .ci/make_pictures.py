"""Draw docs/pictures/ anew: `make pictures`.

run.svg is the live view of a recorded job, at the last event of run.jsonl. To record another job:

    pslaunch local --json --nodes 3 --server_num 3 --worker_num 3 train.py >all.jsonl
    python .ci/make_pictures.py all.jsonl [PASS]
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from pslaunch.node.head.events import Event
from pslaunch.views.live import LiveView

PICTURES: Final = Path(__file__).parents[1] / "docs/pictures"
COMMAND: Final = "pslaunch local --nodes 3 --server_num 3 --worker_num 3 train.py"
COLUMNS, LINES, SHOWN_LINES = 98, 30, 8


def read_events(path: Path) -> list[Event]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def shorten(events: Iterable[Event], last_pass: int) -> Iterator[Event]:
    """Yield what the view shows in the middle of a pass: of reports the first and the last ones."""
    first: set[Any] = set()
    last: dict[Any, Event] = {}
    for e in events:
        if e["event"] != "progress":
            yield e
        elif (e["process"], "pass" in e) not in first:
            first.add((e["process"], "pass" in e))
            yield e
        else:
            last[e["process"]] = last.get(e["process"], {}) | e
        if e.get("pass") == last_pass and e["batch"] > e["batches"] // 2:
            yield from sorted(last.values(), key=lambda one: int(one["n"]))
            return


def draw_run() -> str:
    """Return the live view after the recorded events, as an SVG without a font of its own."""
    now_s = 0.0
    os.environ.update(COLUMNS=str(COLUMNS), LINES=str(LINES))
    view = LiveView(io.StringIO(), lambda: now_s)
    for e in read_events(PICTURES / "run.jsonl"):
        now_s = e["time"]
        view.show_event(e)
    paper = Console(file=io.StringIO(), record=True, width=COLUMNS, force_terminal=True, color_system="256")
    paper.print(Text(f"$ {COMMAND}", style="bold"))
    paper.print(Text("\n").join([Text("..."), *view.take_lines().split()[-SHOWN_LINES:]]))
    paper.print(view.compose())
    form = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    svg = paper.export_svg(title="", code_format=form.replace("Fira Code", "monospace"), unique_id="run")
    return re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE)


# --- The parts of a job. ---

WIDTH, HEIGHT = 800, 420
NODE_W, NODE_X = 240, (20, 280, 540)
STYLE: Final = """
text { font: 14px Helvetica, Arial, sans-serif; text-anchor: middle; fill: #1f2937 }
.big { font-size: 16px; font-weight: bold } .small { font-size: 12px; fill: #4b5563 }
.left { text-anchor: start }
rect { stroke-width: 1.5 } .page { fill: #ffffff; stroke: #d1d5db }
.node { fill: #f3f4f6; stroke: #9ca3af } .launcher { fill: #ede9fe; stroke: #7c3aed }
.agent { fill: #ffffff; stroke: #7c3aed } .pserver { fill: #fef3c7; stroke: #b45309 }
.trainer { fill: #d1fae5; stroke: #047857 }
line { stroke-width: 1.5 } .control { stroke: #7c3aed; stroke-dasharray: 5 4 } .data { stroke: #0369a1 }
"""


def _box(kind: str, x: float, y: float, width: float, height: float, *lines: str) -> Iterator[str]:
    yield f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8"/>'
    top = y + height / 2 + 5 - 9 * (len(lines) - 1)
    for i, line in enumerate(lines):
        size = "small" if i else "big"
        yield f'<text class="{size}" x="{x + width / 2:g}" y="{top + 18 * i:g}">{line}</text>'


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"/>'


def _list_parts() -> Iterator[str]:
    middles = [x + NODE_W / 2 for x in NODE_X]
    yield from _box("page", 0.75, 0.75, WIDTH - 1.5, HEIGHT - 1.5)
    for number, x in enumerate(NODE_X):
        yield from _box("node", x, 124, NODE_W, 256)
        yield f'<text class="small" x="{x + NODE_W / 2:g}" y="370">node {number}</text>'
    for middle in middles:
        yield _line("control", WIDTH / 2, 74, middle, 138)
        yield from (_line("data", middle, 302, other, 244) for other in middles)
    yield from _box("launcher", 170, 16, 460, 58, "pslaunch local | fabric | mpi | slurm | k8s",
                    "sends the program, starts it, shows its output, ends it")  # fmt: skip
    for number, x in enumerate(NODE_X):
        yield from _box("agent", x + 20, 138, 200, 44, "agent", "starts, watches, ends")
        yield from _box("pserver", x + 40, 200, 160, 44, f"pserver {number}", "part of the parameters")
        yield from _box("trainer", x + 40, 302, 160, 50, f"trainer {number}", "your train.py, its data")
    yield _line("control", 60, 400, 100, 400)
    yield '<text class="small left" x="108" y="404">orders, output, heartbeats</text>'
    yield _line("data", 440, 400, 480, 400)
    yield '<text class="small left" x="488" y="404">gradients there, parameters back</text>'


def draw_parts() -> str:
    """Return the picture of launcher, nodes, pservers and trainers."""
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    return "\n".join([head, f"<style>{STYLE}</style>", *_list_parts(), "</svg>\n"])


def main(recording: str = "", last_pass: str = "2") -> None:
    """Write both pictures, of a new recording if one is given."""
    if recording:
        lines = [json.dumps(e) for e in shorten(read_events(Path(recording)), int(last_pass))]
        (PICTURES / "run.jsonl").write_text("\n".join([*lines, ""]))
    (PICTURES / "run.svg").write_text(draw_run())
    (PICTURES / "parts.svg").write_text(draw_parts())


if __name__ == "__main__":
    main(*sys.argv[1:])
