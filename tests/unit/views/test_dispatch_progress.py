"""Progress of a dispatch in words and in the views."""

from __future__ import annotations

import contextlib
import io
import re

import pytest
from rich.console import Console

from pslaunch.views.dispatch_progress import DispatchProgress
from pslaunch.views.live import LiveView
from pslaunch.views.view import PlainView


def event(node: int | None, received: int, of: int, time: float = 0.0, **more: object) -> dict[str, object]:
    return {"event": "dispatch", "node": node, "state": "sending", "files": 1, "received": received,
            "bytes": of, "time": time, "source": None, **more}  # fmt: skip


def test_progress_sums_all_nodes() -> None:
    sending = DispatchProgress()
    assert sending.over
    sending.note(event(1, 0, 4_000_000, 10.0))
    sending.note(event(2, 500_000, 4_000_000, 11.0))
    sending.note(event(1, 1_500_000, 4_000_000, 12.0))
    assert sending.show() == "25 % of 8.0 MB to 2 hosts, 1.0 MB/s, 6 s left"
    sending.note(event(2, 4_000_000, 4_000_000, 12.0, state="done"))
    assert sending.show() == "68 % of 8.0 MB to 2 hosts (1 has it), 2.8 MB/s, 1 s left"
    sending.note(event(None, 0, 8_000_000))
    assert sending.over


def test_plain_lines_now_and_then_and_at_the_end() -> None:
    out, now = io.StringIO(), [0.0]
    view = PlainView(out, lambda: now[0])
    for s in range(12):
        now[0] = float(s)
        view.show_event(event(1, s * 1_000_000, 20_000_000, s))
    view.show_event(event(None, 0, 20_000_000, 12.0, state="done", nodes=1, elapsed_s=12.0))
    assert out.getvalue().splitlines() == [
        "pslaunch | sending: 50 % of 20.0 MB to 1 host, 1.0 MB/s, 10 s left",
        "pslaunch | sent 1 file, 20.0 MB, to 1 host, in 12.0 s",
    ]


JOB = {
    "event": "job", "job": "w2v-1", "nodes": [{"id": i, "name": f"host[{i}]"} for i in range(20)],
    "processes": [{"process": f"trainer/{i}", "node": i, "log": "train.log"} for i in range(20)],
    "backend": "fabric", "workspace": "/ws", "server": "bundled", "why": "given",
}  # fmt: skip


def draw_bar(columns: int, nodes: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the lines below the output on a terminal of this size after 10 s of a dispatch."""
    for name, value in {"TERM": "xterm", "COLUMNS": str(columns), "LINES": "24"}.items():
        monkeypatch.setenv(name, value)
    now = [0.0]
    with contextlib.closing(LiveView(io.StringIO(), lambda: now[0])) as view:
        view.show_event(JOB)
        for s in range(11):
            now[0] = float(s)
            for node in range(nodes):
                view.show_event(event(node, s * 1_000_000, 20_000_000, s, source=0 if node else None))
        view.show_event(event(0, 20_000_000, 20_000_000, 10, state="done"))
        paper = Console(file=io.StringIO(), width=columns, no_color=True)
        rows = [row.rstrip() for row in _drawn(view, paper).splitlines()]
        view.show_event(event(None, 0, 20_000_000, 12.0, state="done", nodes=1, elapsed_s=12.0))
        assert "trainer/0" in _drawn(view, paper)
        return rows


def _drawn(view: LiveView, paper: Console) -> str:
    with paper.capture() as captured:
        paper.print(view.compose())
    return captured.get()


def test_bar_shows_amount_speed_time_left_and_nodes_that_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    _, title, _, whole = draw_bar(120, 2, monkeypatch)
    assert title == "w2v-1: sending"
    assert whole.startswith("━") and whole.endswith("1 of 2 done")
    assert "30.0/40.0 MB" in whole and re.search(r"\d\.\d MB/s +0:00:\d\d", whole)


@pytest.mark.parametrize("columns", range(40, 120, 5))
def test_bar_fits_narrow_terminals(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = draw_bar(columns, 20, monkeypatch)
    assert len(rows) == 4 and rows[3].startswith("━") and rows[3].endswith("1 of 20 done")
    assert not any("…" in row for row in rows)
