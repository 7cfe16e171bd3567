"""Search for a job, and lists of jobs."""

from __future__ import annotations

import io
import json
import re
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pslaunch.backends.fabric import FabricFace
from pslaunch.backends.here import NODE, Here
from pslaunch.errors import HostError, SpecError
from pslaunch.node.later import record, relay
from pslaunch.run import jobs, known_jobs
from support.hostile import find_obeyed, spoil

Note = Callable[..., None]


def list_shown(*, as_json: bool = False) -> list[str]:
    """Return the lines of `pslaunch jobs`."""
    out = io.StringIO()
    jobs.show_jobs(out, as_json=as_json)
    return out.getvalue().splitlines()


def test_only_running_job_is_preferred(note: Note) -> None:
    note("train-1", "ended", code=3)
    note("train-2", "running")
    assert known_jobs.find_job("train")["job"] == "train-2"
    assert known_jobs.find_job("train-1")["job"] == "train-1"
    note("train-3", "running")
    with pytest.raises(SpecError) as e:
        known_jobs.find_job("train")
    first, *lines = str(e.value).splitlines()
    assert first == "'train' matches several jobs; give more of the id"
    states = {"train-1": "ended", "train-2": "running", "train-3": "running"}
    assert dict(line.split()[:2] for line in lines) == states


def test_of_several_ended_jobs_it_is_the_newest(note: Note) -> None:
    for job, started in (("train-old", 1.0), ("train-new", 3.0), ("train-lost", 2.0)):
        note(job, "lost" if job == "train-lost" else "ended", started=started)
    assert known_jobs.find_job("train")["job"] == "train-new"


def test_exact_name_of_a_job_wins_over_ids_that_begin_so(note: Note) -> None:
    note("late-1", "ended", name="late", code=0)
    note("later-2", "running", name="later")
    assert known_jobs.find_job("late")["job"] == "late-1"
    assert known_jobs.find_job("lat")["job"] == "later-2"
    note("ws-20261123", "ended", name="ws", code=0)  # jobs of Kubernetes: their ids begin with the name
    note("ws-d19114", "running", name="ws-d19114")
    assert known_jobs.find_job("ws")["job"] == "ws-d19114"


def test_unreachable_job_is_unknown_and_gives_the_reason(note: Note, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreached(*_: object) -> object:
        raise HostError("node1", "connecting", "timed out\nafter 10 s")

    monkeypatch.setattr(Here, "read_records", unreached)
    monkeypatch.setattr(FabricFace, "from_data", lambda _face, _data: None)
    note("train-1", "running")
    note("train-2", record.LED_ELSEWHERE, reach={})
    with pytest.raises(SpecError, match="unknown"):
        known_jobs.find_job("train")
    told = next(line for line in list_shown() if line.startswith("train-2"))
    assert "unknown" in told and told.endswith("node1: connecting failed: timed out after 10 s")


@pytest.mark.parametrize("state", ["ended", "unknown", "lost"])
def test_records_are_shown_without_terminal_controls(note: Note, state: str) -> None:
    process = {"process": "trainer/0", "node": 0, "state": "running", "log": "log", "cost": "1"}
    known = spoil({"state": state, "reason": "so", "code": 0, "nodes": 1, "processes": [process]})
    note("train-1", **known)
    out = io.StringIO()
    jobs.show_jobs(out, as_json=False)
    jobs.show_status("train-1", out, as_json=False)
    assert "train-1" in out.getvalue() and not find_obeyed(out.getvalue())


@pytest.mark.parametrize(
    "wrong",
    [{"started": "now"}, {"code": 256}, {"processes": [{}]}, {"nodes": "1"}, {"reason": [7]}, {"state": 7},
     "[]", "{}", '{"job": "train-2", "state": "running"}', "no JSON"],
)  # fmt: skip
def test_a_bad_record_is_named_and_the_others_are_listed(
    note: Note, wrong: dict[str, Any] | str, capsys: pytest.CaptureFixture[str]
) -> None:
    note("train-1", "ended", code=3)
    if isinstance(wrong, str):
        (Path(record.get_folder()) / "train-2.json").write_text(wrong)
    else:
        note("train-2", **{"state": "ended", **wrong})
    assert [line.split()[0] for line in list_shown()] == ["train-1"]
    assert re.search(r"train-2\.json is not a record of a job, and is left out: ", capsys.readouterr().err)


ANOTHERS = {"hosts": [{"another": "version"}]}
OF_ANOTHER = r"another version of pslaunch .* --conf conf.py"


@pytest.mark.parametrize("reach", [{"reach": ANOTHERS}, {}])
def test_job_elsewhere_recorded_by_another_version_is_unknown(note: Note, reach: dict[str, Any]) -> None:
    note("train-1", "running")
    note("train-2", record.LED_ELSEWHERE, **{"backend": "fabric", **reach})
    states = {"train-1": "running", "train-2": "unknown"}
    assert dict(line.split()[:2] for line in list_shown()) == states
    with pytest.raises(SpecError, match=OF_ANOTHER):
        jobs.stop_job("train-2", io.StringIO(), kill=False)
    with pytest.raises(SpecError, match=OF_ANOTHER):
        jobs.show_logs("train-2", out=io.StringIO(), follow=False, as_json=False, elsewhere=None)


def test_end_recorded_by_another_version_is_kept(note: Note) -> None:
    places = [{"another": "version"}]
    processes = [{"process": "trainer/0", "node": 0, "state": "exited", "log": "train.log"}]
    note("train-1", "running")
    note("train-2", "ended", code=3, reason="it failed", reach=ANOTHERS, processes=processes)
    note("train-3", "ended", code=0, reason="all ended", places=places, processes=processes)
    assert known_jobs.find_job("train")["job"] == "train-1"
    out = io.StringIO()
    jobs.show_status("train-2", out, as_json=False)
    assert jobs.stop_job("train-2", out, kill=False) == 0
    assert out.getvalue().splitlines() == [
        "train-2  ended: it failed (exit code 3)",
        "  trainer/0 on node 0 (localhost)  ended",
        "train-2 is not running: ended",
    ]
    for job in ("train-2", "train-3"):
        with pytest.raises(SpecError, match=OF_ANOTHER):
            jobs.fetch_job(job, Path(), out)


def test_job_led_from_its_start_machine_has_both_records(note: Note) -> None:
    note("train-1", record.LED_ELSEWHERE, end=record.POINTER, reach=ANOTHERS)
    note("train-1", "running", workspace="/here", backend="fabric")
    (job,) = known_jobs.list_jobs()
    assert (job["state"], job["workspace"]) == ("running", "/here")
    note("train-1", "ended", code=3, backend="fabric")
    for _ in "12":
        (job,) = known_jobs.list_jobs()
        assert (job["state"], job["code"]) == ("ended", 3) and isinstance(job["error"], SpecError)
    pointer = Path(record.get_folder()) / f"train-1{record.POINTER}"
    assert json.loads(pointer.read_text())["code"] == 3


def test_node_lists_jobs_that_it_leads(note: Note) -> None:
    note("led", "running")
    note("another", "ended", end=record.POINTER, code=0, reach=ANOTHERS)
    note("started", record.LED_ELSEWHERE, end=record.POINTER, reach=ANOTHERS)
    note("old", record.LED_ELSEWHERE)
    answer = subprocess.run([*NODE, "records"], stdout=subprocess.PIPE, check=True).stdout
    told = b"".join(relay.read_pieces(io.BytesIO(answer).read)).splitlines()
    assert [json.loads(line)["job"] for line in told] == ["led"]


def test_job_led_by_a_machine_with_the_same_folder_is_not_lost(note: Note, tmp_path: Path) -> None:
    note("train-1", "running", host="another", socket=str(tmp_path / "no"))
    note("train-2", "running", host=socket.gethostname(), socket=str(tmp_path / "no"))
    assert [r["state"] for r in known_jobs.list_jobs()] == ["unknown", "lost"]
    with pytest.raises(SpecError, match="job train-1: it is led on another: ask there"):
        jobs.stop_job("train-1", io.StringIO(), kill=False)


def test_only_the_machine_of_the_logs_removes_a_record_for_lost_ones(note: Note) -> None:
    for host in ("another", socket.gethostname()):
        note(f"train-{host}", "ended", code=0, attached=True, host=host)
    assert [r["job"] for r in known_jobs.list_jobs()] == ["train-another"]


def test_end_recorded_during_a_request_is_seen(note: Note, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(_r: object) -> bool:
        note("train-1", "ended", code=0)
        return False

    monkeypatch.setattr(record, "_has_listener", ends)
    note("train-1", "running")
    assert known_jobs.find_job("train-1")["state"] == "ended"


def test_job_unknown_to_its_first_host_is_asked_for_again(
    note: Note, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[dict[str, Any]] = []
    monkeypatch.setattr(Here, "read_records", lambda _: iter(()))
    monkeypatch.setattr(known_jobs, "_parse_records", lambda *_: known)
    monkeypatch.setattr(FabricFace, "from_data", lambda _face, _data: None)
    note("train-1", record.LED_ELSEWHERE, end=record.POINTER, reach={})
    for _ in "12":
        assert known_jobs.find_job("train-1")["state"] == "unknown"
    with pytest.raises(SpecError, match="train-1: its first host does not know it any more"):
        jobs.stop_job("train-1", io.StringIO(), kill=False)
    known.append({"job": "train-1", "state": "ended", "code": 3})
    assert known_jobs.find_job("train-1")["code"] == 3
    known.clear()
    assert known_jobs.find_job("train-1")["code"] == 3  # noted here


@pytest.mark.parametrize(
    "fields",
    [
        {"state": "ended"},
        {"state": "running", "socket": "/no"},
        {"state": "lost", "end": record.POINTER, "reach": ANOTHERS},
        {"state": record.LED_ELSEWHERE, "end": record.POINTER, "reach": ANOTHERS, record.FORGOTTEN: True},
    ],
)
def test_last_ended_jobs_are_kept(note: Note, fields: dict[str, Any]) -> None:
    note("running", "running", started=0.0)
    note("elsewhere", record.LED_ELSEWHERE, end=record.POINTER, reach=ANOTHERS, started=0.0)
    for number in range(record.KEPT_RECORDS + 5):
        note(f"over-{number}", started=1.0 + number, **fields)
    left = [f"over-{number}" for number in range(5, record.KEPT_RECORDS + 5)]
    for _ in "12":
        read = [r["job"] for r in record.read_all(record.get_folder())]
        assert sorted(read[:2]) == ["elsewhere", "running"] and read[2:] == left
    assert len(list(Path(record.get_folder()).iterdir())) == record.KEPT_RECORDS + 2


def test_empty_list_of_jobs_comes_with_advice(note: Note, capsys: pytest.CaptureFixture[str]) -> None:
    for as_json in (False, True):
        assert not list_shown(as_json=as_json)
        assert "; --conf conf.py asks hosts, --namespace=NAME asks a cluster" in capsys.readouterr().err
    with pytest.raises(SpecError, match="no jobs are known here; --conf"):
        known_jobs.find_job("train")
    note("train-1", "ended", code=0)
    (shown,) = list_shown(as_json=True)
    assert json.loads(shown)["job"] == "train-1" and not capsys.readouterr().err


def test_secrets_of_jobs_go_with_their_records(note: Note) -> None:
    folder = Path(record.get_folder())
    for number in range(record.KEPT_RECORDS + 2):
        note(f"over-{number}", "ended", end=record.POINTER, reach={}, started=float(number), code=0)
        record.write_secret(str(folder / f"over-{number}.secret"), "00")
    record.read_all(str(folder))
    left = {path.name for path in folder.glob("*.secret")}
    assert left == {f"over-{number}.secret" for number in range(2, record.KEPT_RECORDS + 2)}
    assert {(folder / name).stat().st_mode & 0o777 for name in left} == {0o600}
