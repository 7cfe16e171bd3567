"""The page of `pslaunch report`: numbers become charts, every text is escaped."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

from pslaunch.views.charts import MOST_POINTS, draw_bars, draw_lines, find_ticks, format_number
from pslaunch.views.report_page import Story, make_page

EVIL = "<script>alert('&')</script>"
PROCESSES = [{"process": f"{role}/0", "node": 0, "log": f"/log/{EVIL}"} for role in ("pserver", "trainer")]
JOB: dict[str, Any] = {
    "job": "demo-1", "name": EVIL, "epoch": 0, "backend": "local", "server": "bundled", "why": EVIL,
    "workspace": EVIL, "nodes": [{"id": 0, "name": EVIL}], "processes": PROCESSES, "version": "1",
    "plan": {"flags": {EVIL: EVIL}},
}  # fmt: skip
FAILURE = {"what": "trainer/0", "node": 0, "code": 3, "text": EVIL, "signal": None, "log": EVIL,
           "tail": [EVIL, "last"], "advice": EVIL}  # fmt: skip


def tell(*events: tuple[float, str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"n": n, "time": 100.0 + at, "event": name, **more} for n, (at, name, more) in enumerate(events)]


def tell_failed_job() -> list[dict[str, Any]]:
    trainer = {"process": "trainer/0", "node": 0}
    one = {
        "process": "trainer/0",
        "pass": 0,
        "batch": 1,
        "cost": 4.0,
        "samples_per_s": 10.0,
        "metric.auc": 0.5,
    }
    sent = {"node": 0, "state": "done", "source": None, "files": 3, "bytes": 5000, "received": 5000}
    return tell(
        (0, "job", JOB),
        (0.5, "dispatch", sent),
        (1, "process", {**trainer, "state": "running", "pid": 7}),
        (2, "progress", {"process": "trainer/0", "state": "connected"}),
        (3, "progress", one),
        (4, "progress", {**one, "pass": 1, "batch": 0, "cost": 2.0, "waited_s": 0.5}),
        (5, "note", {"level": "warning", "text": EVIL}),
        (8, "process", {**trainer, "state": "exited", "code": 3, "signal": None}),
        (9, "ending", {"why": EVIL, "grace_s": 5.0}),
        (10, "end", {"code": 3, "reason": EVIL, "elapsed_s": 10.0, "failure": FAILURE}),
    )


def test_ticks_are_few_round_numbers_inside_the_range() -> None:
    assert find_ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert find_ticks(0.13, 0.61) == [0.2, 0.30000000000000004, 0.4, 0.5, 0.6000000000000001]
    assert find_ticks(7, 7) == [7]
    assert find_ticks(0, 1e-323) == [0] and find_ticks(-1.7e308, 1.7e308) == [-1.7e308]
    assert [format_number(x) for x in (0.30000000000000004, 1200, 3_400_000)] == ["0.3", "1,200", "3.4M"]


def test_points_of_a_line_are_in_the_area_of_its_axes() -> None:
    svg = draw_lines({"trainer/0": [(0, 5.0), (10, 0.0)]}, "step", "cost")
    assert 'points="80.0,206.0 836.0,206.0"' not in svg  # the first value is above the second
    assert 'points="80.0,12.0 836.0,206.0"' in svg
    assert ">step</text>" in svg and ">cost</text>" in svg


def test_a_long_line_is_thinned_to_its_last_point() -> None:
    svg = draw_lines({"a": [(x, x) for x in range(10 * MOST_POINTS)]}, "x", "y")
    (points,) = re.findall('points="(.*?)"', svg)
    assert len(points.split()) == MOST_POINTS
    assert points.endswith("836.0,12.0")


def test_bars_show_values_with_their_unit_also_without_any() -> None:
    assert "0 bytes" in draw_bars({"pserver/0": 0}, "bytes")
    widths = re.findall('class="bar".*?width="(.*?)"', draw_bars({"a": 1.0, "b": 2.0}, "s"))
    assert float(widths[1]) == 2 * float(widths[0])


def test_states_of_a_process_follow_each_other() -> None:
    story = Story(tell_failed_job())
    spans = [(s.state, s.begin_s, s.end_s) for s in story.list_spans("trainer/0")]
    assert spans == [("waiting", 0, 1), ("running", 1, 2), ("connected", 2, 8), ("failed", 8, 8)]
    assert story.list_spans("pserver/0") == [(0, 10, "waiting", "")]


def test_cost_and_metrics_are_over_steps_of_all_passes() -> None:
    measures = Story(tell_failed_job()).list_measures()
    assert measures["cost"] == {"trainer/0": [(1, 4.0), (2, 2.0)]}  # a pass has two batches
    assert measures["metric.auc"]["trainer/0"] == [(1, 0.5), (2, 0.5)]
    assert measures["samples_per_s"]["trainer/0"] == [(3, 10.0), (4, 10.0)]
    assert "waited_s" not in measures


def test_page_is_well_formed_and_has_no_text_of_others_as_markup() -> None:
    page = make_page(tell_failed_job())
    assert EVIL not in page and "<script" not in page
    text = page.removeprefix("<!DOCTYPE html>").replace('<meta charset="utf-8">', "").replace("<br>", "")
    tree = ET.fromstring(text)  # raises for what is not closed
    said = "".join(tree.itertext())
    for words in ("FAILED: trainer/0", "ended with exit code 3", "5.0 kB", "auc", "until 0.5 s", "demo-1"):
        assert words in said
    assert "http" not in page  # no network


def test_page_without_an_end_or_any_event_says_so() -> None:
    for events in (tell_failed_job()[:3], []):
        assert "No end is known" in make_page(events)


def test_a_restarted_process_has_a_bar_for_each_epoch_and_restarts_have_a_table() -> None:
    trainer = {"process": "trainer/0", "node": 0}
    runs = {"state": "running", "pid": 7}
    restart = {"epoch": 1, "restart": 1, "of": 3, "why": EVIL, "step": 1240, "lost_s": 3.2}
    events = tell(
        (0, "job", JOB),
        (1, "process", {**trainer, **runs}),
        (4, "process", {**trainer, "state": "exited", "code": 3, "signal": None}),
        (4, "restart", {**restart, "state": "ending", "step": None, "lost_s": None, "failure": FAILURE}),
        (7, "restart", {**restart, "state": "running"}),
        (8, "process", {**trainer, **runs}),
        (9, "process", {**trainer, "state": "exited", "code": 0, "signal": None}),
    )
    spans = Story(events).list_spans("trainer/0")
    assert [(x.begin_s, x.end_s, x.state) for x in spans] == [
        (0, 1, "waiting"), (1, 4, "running"), (4, 4, "failed"), (8, 9, "running"),
    ]  # fmt: skip
    page = make_page(events)
    assert page.count("epoch 1 from step 1,240, 3.2 s lost") == 1 and EVIL not in page
