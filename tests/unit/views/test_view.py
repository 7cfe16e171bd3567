"""Three renderings of one stream of events."""

import io
import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslaunch.node.head.events import RecentEvents
from pslaunch.node.logs import clean
from pslaunch.views.live import LiveView
from pslaunch.views.view import (
    DispatchProgress,
    JsonView,
    PlainView,
    Transcript,
    show_ending,
    show_s,
)
from support.hostile import find_obeyed, spoil
from support.view_events import (
    EXITED,
    FAILED,
    FAILURE,
    JOB,
    PROGRESS,
    RESTART_ENDING,
    RESTART_RUNNING,
    RUNNING,
    Clock,
    dispatched,
    line,
)


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
    view = make(out, Clock())
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
    assert lines[0] == "pslaunch  | trainer/0: pass 0, batch 10, cost 5.250, 1,234 samples/s"


@pytest.mark.parametrize(
    ("event", "says"),
    [
        ({"event": "node", "node": 0, "state": "lost", "text": "closed"}, ["node 0", "lost", "closed"]),
        (RUNNING, ["trainer/1", "pid 12"]),
        ({**EXITED, "code": 137, "signal": "SIGKILL"}, ["trainer/1", "signal 9 (SIGKILL)"]),
        ({"event": "gap", "process": "trainer/0", "bytes": 77}, ["trainer/0", "77", "/ws/log/train.log"]),
        ({"event": "note", "level": "warning", "text": "slow"}, ["warning: slow"]),
        ({"event": "ending", "why": "Ctrl+C", "grace_s": 5.0}, ["Ctrl+C"]),
        (RESTART_ENDING, ["restarting all programs: restart 1 of 3"]),
        (RESTART_RUNNING, ["epoch 1 from step 1,240, 3.2 s lost"]),
        ({**RESTART_RUNNING, "step": None}, ["epoch 1, 3.2 s lost"]),
    ],
)
def test_each_event_shows_its_fields(event: dict[str, Any], says: list[str]) -> None:
    text = plain(JOB, event)[-1]
    for word in says:
        assert word in text


def test_unknown_events_are_left_out() -> None:
    assert Transcript().make_lines({"event": "from the future"}) == []


def test_a_job_is_described_once_though_another_head_goes_on_with_it() -> None:
    transcript = Transcript()
    running = {"event": "process", "process": "trainer/0", "node": 0, "state": "running", "pid": 1}
    assert transcript.make_lines(JOB) and transcript.make_lines(running)
    assert transcript.make_lines(JOB) == []


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


# --- a dispatch ---


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
        "pslaunch  | sending: 50 % of 20.0 MB to 1 host, 1.0 MB/s, 10 s left",
        "pslaunch  | sent 1 file, 20.0 MB, to 1 host, in 12.0 s",
    ]
