"""Three renderings of one stream of events."""

import contextlib
import io
import json
import os
import pty
import re
import termios
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pslaunch.node.head.events import RecentEvents
from pslaunch.node.logs import clean
from pslaunch.views.live import LiveView
from pslaunch.views.outlet import make_view
from pslaunch.views.view import (
    DispatchProgress,
    JsonView,
    PlainView,
    Transcript,
    show_ending,
    show_s,
)
from support.hostile import find_obeyed, spoil

JOB = {
    "event": "job", "job": "w2v-1a2b", "name": "w2v", "epoch": 0, "workspace": "/ws", "backend": "local",
    "server": "bundled", "why": "train.py asks for no role",
    "nodes": [{"id": 0, "name": "localhost"}],
    "processes": [
        {"process": "pserver/0", "node": 0, "log": "/ws/log/server.log"},
        {"process": "trainer/0", "node": 0, "log": "/ws/log/train.log"},
        {"process": "trainer/1", "node": 0, "log": "/ws/log/train.1.log"},
    ],
}  # fmt: skip
FAILURE = {
    "what": "trainer/1", "node": 0, "code": 3, "signal": None, "text": "", "log": "/ws/log/train.1.log",
    "tail": ["Traceback:", "ValueError: x"], "advice": "look at the log",
}  # fmt: skip
RUNNING = {"event": "process", "process": "trainer/1", "node": 0, "state": "running", "pid": 12}
EXITED = {**RUNNING, "state": "exited", "code": 3, "signal": None, "text": ""}
PROGRESS = {"event": "progress", "process": "trainer/1"}
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
FAILED = {"event": "end", "code": 3, "reason": "trainer/1 failed", "elapsed_s": 65.0, "failure": FAILURE}


def line(process: str, text: str, *, more: bool = False) -> dict[str, Any]:
    return {"event": "line", "process": process, "text": text, "more": more}


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def plain(*events: dict[str, Any], clock: Callable[[], float] = time.monotonic) -> list[str]:
    out = io.StringIO()
    view = PlainView(out, clock)
    for e in events:
        view.show_event(e)
    view.close()
    return out.getvalue().splitlines()


@pytest.mark.parametrize("make", [PlainView, LiveView])
def test_lines_before_the_job_is_known_are_as_wide_as_later_ones(make: Callable[..., Any]) -> None:
    out = io.StringIO()
    view = make(out, Clock(), processes=["pserver/0", "trainer/0", "trainer/1"])
    for e in ({"event": "note", "text": "early"}, JOB, line("trainer/0", "x")):
        view.show_event(e)
    view.close()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    bars = [text.index("|") for text in shown.splitlines() if " | " in text]
    assert len(bars) == 5 and set(bars) == {len("trainer/0 ")}


def test_a_long_line_goes_on_under_its_mark_and_is_never_mixed() -> None:
    said = line("trainer/0", "aaa", more=True), line("trainer/1", "x"), line("trainer/0", "bbb")
    lines = plain(JOB, *said, line("trainer/0", "c"))
    assert lines[-4:] == ["trainer/0 | aaa", "trainer/1 | x", "trainer/0 + bbb", "trainer/0 | c"]


def test_the_first_lines_show_roles_and_nodes() -> None:
    text = "\n".join(plain(JOB)[:3])
    words = ("w2v-1a2b", "localhost", "/ws", "bundled", "asks for no role", "2 trainers", "1 pserver")
    assert not [word for word in words if word not in text]


@given(st.text(st.characters()))
def test_control_sequences_are_removed(text: str) -> None:
    shown = clean(text, "ascii")
    assert all(c == "\t" or " " <= c <= "~" for c in shown)
    assert not any((ord(c) < 32 and c != "\t") or 127 <= ord(c) < 160 for c in clean(text))


SPOILT: tuple[dict[str, Any], ...] = (
    JOB,
    {"event": "node", "node": 0, "state": "lost", "text": "its agent"},
    {"event": "dispatch", "node": 0, "state": "stored", "source": 1, "bytes": 99, "received": 9, "files": 2},
    {"event": "note", "level": "warning", "text": "look"},
    {**RUNNING, "text": "again"},
    {**PROGRESS, "state": "connected", "pass": 0, "why": "so"},
    line("trainer/1", "said"),
    {"event": "gap", "process": "trainer/1", "bytes": 7},
    {**EXITED, "text": "so", "signal": "SIGTERM"},
    {"event": "ending", "why": "it ends", "grace_s": 5.0},
    FAILED,
    {**FAILED, "code": 0, "failure": None},
)


@pytest.mark.parametrize("kind", [PlainView, JsonView, LiveView])
def test_control_sequences_of_hosts_are_removed_from_every_field(kind: type, screen: io.StringIO) -> None:
    recent = RecentEvents()  # what every head and every observer remember, and views are shown
    for n, e in enumerate(SPOILT):
        recent.add(spoil({**e, "n": n, "time": 0.0}))
    clock = Clock()
    view = JsonView(screen) if kind is JsonView else kind(screen, clock)
    for e in recent.list_since(0):
        view.show_event(e)
        clock.now_s += 20.0
        view.tick()
    view.close()
    assert "trainer/1" in screen.getvalue() and not find_obeyed(screen.getvalue())


@given(st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"])))
def test_other_text_is_shown_as_it_is(text: str) -> None:
    assert clean(text) == text


LOST = {"what": "node 1", "node": None, "code": None, "signal": None, "text": "silent for 30 s"}


BUSY = "can't listen on 127.0.0.1:7164: Address already in use, held by pid 12"
KILLED = {**FAILURE, "text": "was killed by SIGSEGV", "code": 139, "signal": "SIGSEGV", "log": "", "tail": []}
ON_NODE = {**FAILURE, "what": "node 0 (localhost)", "text": BUSY, "log": "", "tail": [], "advice": ""}


@pytest.mark.parametrize(
    ("code", "reason", "failure", "lines"),
    [
        (0, "all trainers ended with 0", None, ["done after 1 min 05 s: all trainers ended with 0"]),
        (130, "interrupted", None, ["ended after 1 min 05 s, exit code 130: interrupted"]),
        (76, "", LOST, ["FAILED: node 1: silent for 30 s", "failed after 1 min 05 s, exit code 76"]),
        (3, "trainer/1 failed", FAILURE, [
            "FAILED: trainer/1 on node 0 (localhost) ended with exit code 3",
            "  log: /ws/log/train.1.log, which ends with:",
            "    Traceback:",
            "    ValueError: x",
            "  what to do: look at the log",
            "failed after 1 min 05 s, exit code 3",
        ]),
        (139, "so", KILLED, [
            "FAILED: trainer/1 on node 0 (localhost): was killed by SIGSEGV",
            "  what to do: look at the log",
            "failed after 1 min 05 s, exit code 139",
        ]),
        (69, BUSY, ON_NODE, [f"FAILED: node 0 (localhost): {BUSY}", "failed after 1 min 05 s, exit code 69"]),
    ],
)  # fmt: skip
def test_the_end_is_one_line_after_what_failed_and_what_to_do(
    code: int, reason: str, failure: dict[str, Any] | None, lines: list[str]
) -> None:
    end = {"event": "end", "code": code, "reason": reason, "elapsed_s": 65.0, "failure": failure}
    assert plain(JOB, end)[3:] == [f"pslaunch  | {text}" for text in lines]


def test_plain_progress_comes_every_ten_seconds_for_each_process() -> None:
    clock = Clock()
    out = io.StringIO()
    view = PlainView(out, clock)
    report = {"event": "progress", "pass": 0, "batch": 7, "cost": 5.25, "samples_per_s": 1234.5}
    for second in range(31):
        clock.now_s = 100.0 + second
        for process in ("trainer/0", "trainer/1"):
            view.show_event({**report, "process": process, "batch": second})
    lines = out.getvalue().splitlines()
    assert len(lines) == 6
    assert lines[0] == "pslaunch | trainer/0: pass 0, batch 10, cost 5.250, 1,234 samples/s"


@pytest.mark.parametrize(
    ("event", "says"),
    [
        ({"event": "node", "node": 0, "state": "lost", "text": "closed"}, ["node 0", "lost", "closed"]),
        (RUNNING, ["trainer/1", "pid 12"]),
        ({**EXITED, "code": 137, "signal": "SIGKILL"}, ["trainer/1", "signal 9 (SIGKILL)"]),
        ({"event": "gap", "process": "trainer/0", "bytes": 77}, ["trainer/0", "77", "/ws/log/train.log"]),
        ({"event": "note", "level": "warning", "text": "slow"}, ["warning: slow"]),
        ({"event": "ending", "why": "Ctrl+C", "grace_s": 5.0}, ["Ctrl+C"]),
    ],
)
def test_each_event_shows_its_fields(event: dict[str, Any], says: list[str]) -> None:
    text = plain(JOB, event)[-1]
    for word in says:
        assert word in text


def test_unknown_events_are_left_out() -> None:
    assert Transcript().make_lines({"event": "from the future"}) == []


def test_json_is_one_object_a_line() -> None:
    out = io.StringIO()
    view = JsonView(out)
    events = [{"n": 1, **JOB}, {"n": 2, **line("trainer/0", "a\nb\u2028")}]
    for e in events:
        view.show_event(e)
    view.tick()
    view.close()
    assert [json.loads(text) for text in out.getvalue().split("\n")[:-1]] == events


def test_endings_are_described_in_words() -> None:
    assert show_ending(0, None) == "with exit code 0"
    assert show_ending(139, "SIGSEGV") == "by signal 11 (SIGSEGV)"
    assert [show_s(s) for s in (0.04, 59.94, 61, 7500)] == ["0.0 s", "59.9 s", "1 min 01 s", "2 h 05 min"]


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Return the output on a terminal of 100 columns."""
    set_size(100, 30, monkeypatch)
    return io.StringIO()


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


def set_size(columns: int, lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TERM": "xterm", "COLUMNS": str(columns), "LINES": str(lines)}.items():
        monkeypatch.setenv(name, value)


def draw(view: LiveView, columns: int) -> list[str]:
    """Return the part below the output."""
    paper = Console(file=io.StringIO(), width=columns, no_color=True)
    with paper.capture() as captured:
        paper.print(view.compose())
    return [row.rstrip() for row in captured.get().splitlines()]


def shown(columns: int, lines: int, monkeypatch: pytest.MonkeyPatch, *events: dict[str, Any]) -> list[str]:
    """Return the table on a terminal of this size."""
    set_size(columns, lines, monkeypatch)
    with contextlib.closing(LiveView(io.StringIO(), Clock())) as view:
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


def test_a_view_that_leaves_the_job_alone_announces_no_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    set_size(110, 40, monkeypatch)
    with contextlib.closing(LiveView(io.StringIO(), Clock(), is_own=False)) as view:
        for e in (JOB, RUNNING, {"event": "ending", "why": "interrupted (Ctrl+C)", "grace_s": 5.0}):
            view.show_event(e)
        assert draw(view, 110)[0] == "w2v-1a2b: ending"


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


@pytest.mark.parametrize(
    ("why", "told"),
    [
        ("the package: it changes while it is sent: x", "the package: it changes while it is sent"),
        ("node 1 (root@h:22) was lost: its agent: the line closed", "node 1 (root@h:22) was lost"),
        ("trainer/1 ended with 3: ValueError: no", "trainer/1 ended with 3"),
        ("interrupted (Ctrl+C)", "interrupted (Ctrl+C)"),
        (f"node 0 (localhost): {BUSY}", "node 0 (localhost): can't listen on 127.0.0.1:7164"),
    ],
)
def test_the_end_is_announced_with_its_reason(why: str, told: str) -> None:
    ending = {"event": "ending", "why": why, "grace_s": 5.0}
    assert plain(JOB, RUNNING, ending)[-1].endswith(f"ending the job: {told}; KILL after 5 s")
    (said,) = plain(JOB, ending)[3:]  # nothing runs yet
    assert said.endswith(f"ending the job: {told}")


def test_a_node_that_is_named_as_its_host_is_not_named_twice() -> None:
    ready = {"event": "node", "node": 0, "state": "ready", "text": "localhost"}
    assert len(plain(JOB, ready)) == 3
    assert plain(JOB, {**ready, "text": "box"})[-1].endswith("node 0 (localhost) ready: box")


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
def test_live_is_for_terminals_that_can(columns: int, term: str, kind: type) -> None:
    main, side = pty.openpty()
    try:
        termios.tcsetwinsize(side, (30, columns))
        with os.fdopen(side, "w") as terminal:
            out = terminal if columns else io.StringIO()
            view = make_view(json=False, out=out, clock=time.monotonic, environ={"TERM": term})
            assert isinstance(view, kind)
            view.close()
            assert isinstance(make_view(json=True, out=out, clock=time.monotonic), JsonView)
    finally:
        os.close(main)


# --- a dispatch ---


def dispatched(
    node: int | None, received: int, of: int, time: float = 0.0, **more: object
) -> dict[str, object]:
    return {"event": "dispatch", "node": node, "state": "sending", "files": 1, "received": received,
            "bytes": of, "time": time, "source": None, **more}  # fmt: skip


def test_progress_sums_all_nodes() -> None:
    sending = DispatchProgress()
    assert sending.over
    sending.note(dispatched(1, 0, 4_000_000, 10.0))
    sending.note(dispatched(2, 500_000, 4_000_000, 11.0))
    sending.note(dispatched(1, 1_500_000, 4_000_000, 12.0))
    assert sending.show() == "25 % of 8.0 MB to 2 hosts, 1.0 MB/s, 6 s left"
    sending.note(dispatched(2, 4_000_000, 4_000_000, 12.0, state="done"))
    assert sending.show() == "68 % of 8.0 MB to 2 hosts (1 has it), 2.8 MB/s, 1 s left"
    sending.note(dispatched(None, 0, 8_000_000))
    assert sending.over


def test_plain_lines_now_and_then_and_at_the_end() -> None:
    out, clock = io.StringIO(), Clock()
    view = PlainView(out, clock)
    for s in range(12):
        clock.now_s = 100.0 + s
        view.show_event(dispatched(1, s * 1_000_000, 20_000_000, s))
    view.show_event(dispatched(None, 0, 20_000_000, 12.0, state="done", nodes=1, elapsed_s=12.0))
    assert out.getvalue().splitlines() == [
        "pslaunch | sending: 50 % of 20.0 MB to 1 host, 1.0 MB/s, 10 s left",
        "pslaunch | sent 1 file, 20.0 MB, to 1 host, in 12.0 s",
    ]


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
