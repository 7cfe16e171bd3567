"""docs/events.md: the events of real jobs have the fields that it names, and no others."""

from __future__ import annotations

from collections import defaultdict

import pytest

from pslaunch.node.link import JobFailure
from pslaunch.run.jobs import NEWS, STOPPED
from pslaunch.runtime.shared.reports import PROGRESS_FIELDS
from support.jobs import LocalPlace, running
from support.pages import rows, words
from support.trainings import REPORTING

PAGE = "events.md"
ALWAYS = {words(row[0])[0] for row in rows(PAGE, "Output with --json")}
SAYS_ALL = f"""{REPORTING}
print("x" * 40_000)
report("pass=1 batch=2 cost=0.5 samples_per_s=3 metric.auc=0.5 state=training")
sys.exit(int(os.environ["CODE"]))
"""
RARE = {
    ("gap", ""),
    ("node", "lost"),
    ("dispatch", "waiting"),
}  # each made by a test of its own elsewhere


def documented() -> dict[tuple[str, str], set[str]]:
    """By event and state the fields of it, those of every event left out."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for event, states, fields in rows(PAGE, "Events"):
        if event.startswith("`") and words(event):
            for state in words(states) or [""]:
                found[words(event)[0], state] |= set(words(fields))
    return found


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    """All events of a successful job and of one that fails, also after a restart, on two nodes each."""
    workspace = tmp_path_factory.mktemp("events") / "ws"
    workspace.mkdir()
    (workspace / "train.py").write_text(SAYS_ALL)
    found: list[dict[str, object]] = []
    for code in (0, 3):
        options = ("--server_num=0", "--worker_num=2", f"--env=CODE={code}", "--max_restarts=1")
        with running(LocalPlace(2), workspace, *options) as job:
            assert job.launcher.wait() == code
            found += job.events()
    return found


def test_every_event_has_exactly_the_documented_keys(told: list[dict[str, object]]) -> None:
    known, seen = documented(), set()
    for event in told:
        kind = str(event["event"]), str(event.get("state", "")) if event["event"] != "progress" else ""
        allowed = ALWAYS | known[kind] | ({"state"} if kind[1] else set())
        allowed |= {*PROGRESS_FIELDS, "metric.auc"} if kind[0] == "progress" else set()
        assert set(event) >= ALWAYS and set(event) <= allowed, event
        seen.add(kind)
    assert set(known) - seen == RARE


def test_failure_has_the_documented_keys(told: list[dict[str, object]]) -> None:
    names = [words(row[0])[0] for row in rows(PAGE, "The failure")]
    assert names == list(JobFailure._fields)
    (failure,) = [e["failure"] for e in told if e["event"] == "end" and e["failure"]]
    assert isinstance(failure, dict) and list(failure) == names


def test_reports_of_later_shells_have_the_documented_keys() -> None:
    for heading, names in (("`pslaunch jobs", NEWS), ("`pslaunch stop", STOPPED)):
        assert [words(row[0])[0] for row in rows(PAGE, heading)] == list(names)
