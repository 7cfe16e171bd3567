"""Events of a job kept by its head."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslaunch.node.head import events
from pslaunch.node.head.events import (
    MAX_EVENT_BYTES,
    EventLog,
    RecentEvents,
    check_event,
    clean_event,
    make_end,
)
from pslaunch.node.logs import clean_all

ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -1, 2**70, 1.5, float("nan"), "", "x" * 300, "\x1b[31m\n", "ä" * 9000, ["x"], {}]
)


def line(number: int, text: str) -> dict[str, Any]:
    return {"n": number, "time": 1.0 + number, "event": "line", "process": "trainer/0", "text": text}


def numbers(recent: RecentEvents, cursor: int, limit: int | None = None) -> list[int]:
    return [event["n"] for event in recent.list_since(cursor, limit)]


@given(st.sets(st.integers(0, 40)), st.integers(0, 45), st.none() | st.integers(0, 9))
def test_any_gaps_leave_all_events_from_the_cursor_on(kept: set[int], cursor: int, limit: int | None) -> None:
    recent = RecentEvents()
    for n in sorted(kept):
        recent.add(line(n, "x"))
    assert numbers(recent, cursor, limit) == [n for n in sorted(kept) if n >= cursor][:limit]


@given(
    st.dictionaries(
        st.sampled_from(["n", "time", "process", "text", "more", "new"]), ODD | st.text(), max_size=3
    )
)
def test_lines_are_checked_and_cleaned_like_all_events(changed: dict[str, Any]) -> None:
    event = {**line(1, "said"), **changed}
    try:
        check_event(event)
    except ValueError as e:
        with pytest.raises(ValueError) as refused:
            clean_event(event)
        assert str(refused.value) == str(e)
    else:
        assert clean_event(event) == clean_all(event)


def test_event_over_the_limit_is_kept_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_EVENT_BYTES", 5_000)
    recent = RecentEvents()
    for n, length in enumerate((10, 10, 8_000)):
        recent.add(line(n, "x" * length))
    assert numbers(recent, 0) == [2]
    recent.add(line(3, "x"))
    assert numbers(recent, 0) == [3]


def test_memory_is_bounded_for_any_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_EVENTS", 100_000)
    for text in ("", "x" * 8192, "\N{GRINNING FACE}" * 8192):
        tracemalloc.start()
        recent = RecentEvents()
        for n in range(60_000 if not text else 5000):
            recent.add(line(n, f"{n}{text}"))
        taken = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert MAX_EVENT_BYTES / 2 < taken < MAX_EVENT_BYTES * 1.1, text[:1]
        assert numbers(recent, 0)


def test_only_an_ended_record_gives_the_end() -> None:
    record: Any = {"job": "j", "started": 100.0, "state": "running"}
    assert make_end(record) is None
    failure = {"what": "trainer/0", "node": 0, "code": 5, "text": "ended with 5", "signal": "", "log": "",
               "tail": [], "advice": ""}  # fmt: skip
    over: Any = {**record, "code": 5, "reason": "it ended with 5", "elapsed_s": 2.5, "failure": failure}
    end = make_end(over)
    assert end is not None and (end["event"], end["time"], end["failure"]) == ("end", 102.5, failure)
    wrongs: list[Any] = [{"failure": {"what": 7}}, {"started": 2**50}, {"elapsed_s": 2**50}]
    for wrong in wrongs:
        spoilt: Any = {**over, **wrong}
        assert make_end(spoilt) is None


def test_who_comes_late_gets_the_description_of_the_job_and_the_newest_events() -> None:
    recent = RecentEvents()
    recent.keep({"n": 0, "time": 0.0, "event": "job"})
    for n in range(1, events.MAX_EVENTS + 10):
        recent.keep(line(n, "x"))
    assert numbers(recent, 0, 3) == [0, 10, 11] and numbers(recent, 1, 2) == [10, 11]


def read_kept(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text().splitlines()]


def test_file_has_all_events_but_output_and_reports_that_come_too_soon(tmp_path: Path) -> None:
    clock = iter([*range(3), 3.0, 3.2, 3.4, 4.5, 5, 6, 7])
    log = EventLog(lambda: float(next(clock)), ["trainer/0"])
    log.tell("note", text="before")
    log.keep_in(str(tmp_path / "events.jsonl"))
    log.tell("line", process="trainer/0", text="secret")
    log.tell("gap", process="trainer/0", bytes=1)
    for batch in range(4):  # the third comes too soon: the next one has what it alone has
        reports: dict[int, dict[str, Any]] = {1: {"state": "connected"}, 2: {"cpu_percent": 7}}
        log.tell("progress", process="trainer/0", batch=batch, **reports.get(batch, {}))
    log.tell("end", code=0, reason="", elapsed_s=1.0, failure=None)
    kept = read_kept(tmp_path / "events.jsonl")
    assert [e["event"] for e in kept] == ["note", *["progress"] * 3, "end"]
    assert [(e["batch"], e.get("cpu_percent")) for e in kept if "batch" in e] == [
        (0, None),
        (1, None),
        (3, 7),
    ]


def test_file_has_the_last_report_of_each_process_before_its_end(tmp_path: Path) -> None:
    log = EventLog(lambda: 0.0, ["trainer/0", "trainer/1"])
    log.keep_in(str(tmp_path / "events.jsonl"))
    for batch in range(4):
        for process in ("trainer/0", "trainer/1"):
            log.tell("progress", process=process, batch=batch)
    log.tell("process", process="trainer/0", node=0, state="exited", code=0, signal=None)
    log.tell("note", text="later")
    log.tell("end", code=0, reason="", elapsed_s=1.0, failure=None)
    kept = [(e["event"], e.get("process"), e.get("batch")) for e in read_kept(tmp_path / "events.jsonl")]
    assert kept[2:] == [
        ("progress", "trainer/0", 3), ("process", "trainer/0", None), ("note", None, None),
        ("progress", "trainer/1", 3), ("end", None, None),
    ]  # fmt: skip


def test_file_of_a_job_of_days_grows_ever_slower(tmp_path: Path) -> None:
    clock = iter(range(1_000_000))
    log = EventLog(lambda: float(next(clock)), ["trainer/0"])
    log.keep_in(str(tmp_path / "events.jsonl"))
    log.tell("note", text="begins")
    counts = []
    for batch in range(30_000):  # one a second, for a third of a day
        log.tell("progress", process="trainer/0", batch=batch)
        if batch in (999, 9_999, 29_999):
            counts.append(len(read_kept(tmp_path / "events.jsonl")))
    log.tell("end", code=0, reason="", elapsed_s=1.0, failure=None)
    assert counts[0] > 490 and counts[1] < 4_000 and counts[2] < 7_000, counts


def test_full_disk_is_told_once_and_the_job_goes_on() -> None:
    log = EventLog(lambda: 1.0, [])
    log.keep_in("/dev/full")
    for _ in range(3):
        log.tell("note", level="info", text="x")
    texts = [e["text"] for e in log.list_events(0)[0]]
    assert texts[0] == "x" and texts[2:] == ["x", "x"]
    assert texts[1].startswith("/dev/full can't be written, and is left out: No space left")
