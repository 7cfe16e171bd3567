"""The live view of a job on a terminal."""

import contextlib
import io
import os
import pty
import re
import termios
import time
from typing import Any

import pytest
from rich.console import Console

from pslaunch.views.live import LiveView
from pslaunch.views.outlet import make_view
from pslaunch.views.view import JsonView, PlainView
from support.view_events import (
    EXITED,
    FAILED,
    JOB,
    PROGRESS,
    RESTART_ENDING,
    RESTART_RUNNING,
    RUNNING,
    Clock,
    dispatched,
    line,
    set_size,
)

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


def new(screen: io.StringIO) -> str:
    """Return the output since the last call."""
    text = screen.getvalue()
    screen.seek(0)
    screen.truncate()
    return text


def test_live_view_shows_table_and_lines(screen: io.StringIO) -> None:
    clock = Clock()
    view = LiveView(screen, clock)
    for e in (JOB, RUNNING, line("trainer/1", "hello \x1b[2J"), {**PROGRESS, "cost": 5.5}):
        view.show_event(e)
    clock.now_s += 2.0
    view.tick()
    text = new(screen)
    for word in ("hello ", "process", "trainer/1", "running", "5.500", "2.0 s", HIDE_CURSOR):
        assert word in text
    view.show_event(line("trainer/1", "waits"))
    assert new(screen) == ""
    view.show_event(EXITED)
    view.show_event(FAILED)
    text = new(screen)
    assert text.index("waits") < text.index(SHOW_CURSOR) < text.index("FAILED: trainer/1")
    assert "exit 3" in text
    view.close()
    view.close()


def test_a_restarted_process_runs_anew_and_the_title_counts(screen: io.StringIO) -> None:
    view = LiveView(screen, Clock())
    for e in (JOB, RUNNING, {**PROGRESS, "cost": 5.5}, EXITED, RESTART_ENDING, RESTART_RUNNING, RUNNING):
        view.show_event(e)
    text = "\n".join(draw(view, 100))
    assert "restart 1 of 3" in text and "running" in text and "exit 3" not in text
    view.close()
    assert "epoch 1 from step 1,240, 3.2 s lost" in new(screen)


def draw(view: LiveView, columns: int) -> list[str]:
    """Return the part below the output."""
    paper = Console(file=io.StringIO(), width=columns, no_color=True)
    with paper.capture() as captured:
        paper.print(view.compose())
    return [row.rstrip() for row in captured.get().splitlines()]


def shown(
    columns: int, lines: int, monkeypatch: pytest.MonkeyPatch, *events: dict[str, Any], is_own: bool = True
) -> list[str]:
    """Return the table on a terminal of this size."""
    set_size(columns, lines, monkeypatch)
    with contextlib.closing(LiveView(io.StringIO(), Clock(), is_own=is_own)) as view:
        for e in events:
            view.show_event(e)
        return draw(view, columns)


@pytest.mark.parametrize("columns", range(40, 100, 4))
def test_a_narrow_table_has_fewer_columns_and_whole_names(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = {**PROGRESS, "pass": 12, "batch": 123456, "cost": 5.25, "samples_per_s": 1234567.0}
    events = ({**JOB, "job": "w2v"}, RUNNING, report, {**PROGRESS, "state": "connected"})
    lines = shown(columns, 30, monkeypatch, *events)
    cells = [re.split(r"\s{2,}", text.strip()) for text in lines]
    row = next(found for found in cells if "trainer/1" in found)
    assert row[0] == "trainer/1" and "running" in row and "5.250" in row
    assert not any("…" in text for text in lines)
    assert len(row) == len(next(found for found in cells if "process" in found))
    assert ("1,234,567" in row) or columns < 76


@pytest.mark.parametrize("height", [10, 24, 50])
def test_table_of_many_has_half_of_the_screen_failed_and_slow_ones_first(
    height: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{role}/{rank}" for role in ("pserver", "trainer") for rank in range(20)]
    job = {**JOB, "processes": [{"process": name, "node": 0, "log": "/l"} for name in names]}
    speeds = {f"trainer/{i}": 10.0**-i for i in range(19)}
    reports = [{**PROGRESS, "process": name, "pass": 1, "samples_per_s": x} for name, x in speeds.items()]
    ends = [{**EXITED, "process": f"trainer/{i}", "code": code} for i, code in ((19, 0), (0, 1))]
    lines = shown(100, height, monkeypatch, job, *reports, *ends)
    count = max(1, height // 2 - 6)
    assert len(lines) <= max(7, height // 2)
    listed = ["trainer/0", *(f"trainer/{i}" for i in range(18, 0, -1)), "pserver/0"][:count]
    assert [text.split()[0] for text in lines if "er/" in text] == listed
    assert any(f"and {40 - count} more" in text for text in lines)


REPORT = {**PROGRESS, "pass": 2, "passes": 8, "batch": 99, "batches": 200, "samples_per_s": 1500.0}
USAGE = {"cpu_percent": 197.6, "memory_bytes": 1_234_000_000}


@pytest.mark.parametrize(
    ("last", "title"),
    [
        ({}, ": pass 3 of 8, 1,500 samples/s, 5 min 30 s left"),  # of 1600 batches 200 in 60 s
        ({"state": "finished"}, ""),
        (
            {"event": "ending", "why": "interrupted (Ctrl+C)", "grace_s": 5.0},
            ": ending, Ctrl+C again kills at once",
        ),
        ({"event": "ending", "why": "trainer/0 failed", "grace_s": 5.0}, ": ending"),
        ({**EXITED}, ""),
    ],
    ids=["trains", "finished", "interrupted", "fails", "ended"],
)
def test_title_says_where_the_job_is(
    last: dict[str, Any], title: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = {**PROGRESS, "pass": 1, "passes": 8, "batch": 99, "time": 40.0}
    last_report = {**REPORT, **USAGE, "pass": 2, "time": 100.0}
    lines = shown(110, 40, monkeypatch, JOB, RUNNING, first, last_report, {**PROGRESS, "time": 100.0, **last})
    assert lines[0].rstrip() == f"w2v-1a2b{title}"
    assert "3 of 8" in "".join(lines) and "198 %" in "".join(lines) and "1.2 GB" in "".join(lines)


@pytest.mark.parametrize(
    ("used", "text"),
    [
        ({}, ""),
        ({"gpu_percent": 93.0, "gpu_bytes": 11_200_000_000}, "93 % 11.2 GB"),
        ({"gpu_bytes": 11_200_000_000}, "11.2 GB"),
        ({"gpu_percent": 0.0, "gpu_bytes": 0}, "0 %"),
    ],
)
def test_gpus_have_a_column_where_a_process_uses_one(
    used: dict[str, float], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = shown(110, 40, monkeypatch, JOB, RUNNING, {**PROGRESS, **USAGE, **used})
    cells = [re.split(r"\s{2,}", line.strip()) for line in lines]
    (header,) = (found for found in cells if "process" in found)
    (row,) = (found for found in cells if "trainer/1" in found)
    assert ("gpu" in header) == bool(used)
    assert not used or row[header.index("gpu")] == text


def test_a_view_that_leaves_the_job_alone_announces_no_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    ending = {"event": "ending", "why": "interrupted (Ctrl+C)", "grace_s": 5.0}
    assert shown(110, 40, monkeypatch, JOB, RUNNING, ending, is_own=False)[0] == "w2v-1a2b: ending"


def test_time_left_is_unknown_in_the_first_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    reports = [{**PROGRESS, "pass": 0, "passes": 2, "batch": i, "time": 10.0 * i} for i in range(2)]
    assert shown(110, 40, monkeypatch, JOB, RUNNING, *reports)[0] == "w2v-1a2b: pass 1 of 2"


@pytest.mark.parametrize(
    ("event", "state"),
    [({"code": 0, "signal": None}, "exit 0"), ({"code": 143, "signal": "SIGTERM"}, "SIGTERM")],
)
def test_the_state_of_a_process_that_ended(
    event: dict[str, Any], state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = shown(100, 30, monkeypatch, JOB, RUNNING, {**EXITED, **event}, {**PROGRESS, "state": "finished"})
    assert state in next(text for text in lines if "trainer/1" in text)


def test_live_view_does_not_keep_many_lines(screen: io.StringIO) -> None:
    view = LiveView(screen, Clock())
    view.show_event(JOB)
    for n in range(1200):
        view.show_event(line("trainer/0", f"line {n}"))
    assert "line 900" in screen.getvalue()
    view.close()
    assert "line 1199" in screen.getvalue()


@pytest.mark.parametrize("broken", [False, True])
def test_live_view_closes_without_an_end_and_leaves_long_lines_to_the_terminal(
    screen: io.StringIO, broken: bool
) -> None:
    view = LiveView(screen, time.monotonic)
    view.show_event(JOB)
    view.show_event(line("trainer/0", "last words " * 100))
    if broken:
        screen.close()
    view.close()
    if not broken:
        text = new(screen)
        assert "last words " * 100 in text and SHOW_CURSOR in text


@pytest.mark.parametrize(
    ("columns", "term", "kind"),
    [(100, "xterm", LiveView), (30, "xterm", LiveView), (100, "dumb", PlainView), (0, "xterm", PlainView)],
)
def test_live_is_for_terminals_that_can(
    monkeypatch: pytest.MonkeyPatch, columns: int, term: str, kind: type
) -> None:
    monkeypatch.setenv("TERM", term)
    main, side = pty.openpty()
    try:
        termios.tcsetwinsize(side, (30, columns))
        with os.fdopen(side, "w") as terminal:
            out = terminal if columns else io.StringIO()
            view = make_view(json=False, out=out, clock=time.monotonic)
            assert isinstance(view, kind)
            view.close()
            assert isinstance(make_view(json=True, out=out, clock=time.monotonic), JsonView)
    finally:
        os.close(main)


def draw_bar(columns: int, nodes: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the lines below the output on a terminal of this size after 10 s of a dispatch."""
    set_size(columns, 24, monkeypatch)
    clock = Clock()
    with contextlib.closing(LiveView(io.StringIO(), clock)) as view:
        view.show_event(JOB)
        for s in range(11):
            clock.now_s = 100.0 + s
            for node in range(nodes):
                view.show_event(dispatched(node, s * 1_000_000, 20_000_000, s))
        view.show_event(dispatched(0, 20_000_000, 20_000_000, 10, state="done"))
        rows = draw(view, columns)
        view.show_event(dispatched(None, 0, 20_000_000, 12.0, state="done", nodes=1, elapsed_s=12.0))
        assert "trainer/0" in "".join(draw(view, columns))
        return rows


@pytest.mark.parametrize("columns", range(40, 120, 20))
def test_bar_shows_amount_speed_time_left_and_nodes_that_are_done(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    *title, _, bar = draw_bar(columns, 2, monkeypatch)
    words = "w2v-1a2b: sending 75 % of 40.0 MB to 2 hosts (1 has it), 3.0 MB/s, 3 s left"
    assert " ".join(map(str.strip, title)).strip() == words
    assert bar.rstrip("╸ ") == "━" * (columns * 3 // 4)
