"""Search for a job, and lists of jobs."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from pslaunch.backends import fabric
from pslaunch.backends.local import NODE
from pslaunch.errors import HostError, NodeLostError, PslaunchError, SpecError
from pslaunch.node import codes
from pslaunch.node.job import Node
from pslaunch.node.later import record, relay
from pslaunch.node.logs import MAX_LINE_CHARS
from pslaunch.node.messages import JobRecord
from pslaunch.run import jobs, known_jobs
from support.spoilt import find_obeyed, spoil

Note = Callable[..., None]


@pytest.fixture
def note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Note]:
    """Return a function that writes a record; heads of running jobs answer."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    head = socket.socket(socket.AF_UNIX)
    head.bind(str(tmp_path / "head"))
    head.listen()
    node = Node(0, "localhost", "127.0.0.1").place_in(str(tmp_path))._asdict()

    def write(job: str, state: str, *, end: str = ".json", **fields: Any) -> None:
        path = Path(record.get_folder(os.environ)) / (job + end)
        backend = "fabric" if "reach" in fields else "local"
        fixed: JobRecord = {
            "job": job,
            "backend": backend,
            "nodes": 1,
            "started": 0.0,
            "processes": [],
            "places": [node],
        }
        record.Record(str(path), fixed).write(
            cast(JobRecord, {"state": state, "socket": str(tmp_path / "head"), **fields})
        )

    with head:
        yield write


def test_only_running_job_is_preferred(note: Note) -> None:
    note("train-1", "ended", code=3)
    note("train-2", "running")
    assert known_jobs.find("train")["job"] == "train-2"
    assert known_jobs.find("train-1")["job"] == "train-1"
    note("train-3", "running")
    with pytest.raises(SpecError) as e:
        known_jobs.find("train")
    first, *lines = str(e.value).splitlines()
    assert first == "'train' matches several jobs; give more of the id"
    assert [line.split()[:2] for line in lines] == [
        ["train-1", "ended"],
        ["train-2", "running"],
        ["train-3", "running"],
    ]


def test_newest_of_several_ended_jobs_is_named(note: Note) -> None:
    for job, started in (("train-old", 1.0), ("train-new", 3.0), ("train-lost", 2.0)):
        note(job, "lost" if job == "train-lost" else "ended", started=started)
    with pytest.raises(SpecError, match="several jobs; all have ended, train-new is the newest"):
        known_jobs.find("train")


def test_exact_name_of_a_job_wins_over_ids_that_begin_so(note: Note) -> None:
    note("late-1", "ended", name="late", code=0)
    note("later-2", "running", name="later")
    assert known_jobs.find("late")["job"] == "late-1"
    assert known_jobs.find("lat")["job"] == "later-2"


def test_job_that_no_head_leads_yet_shows_its_obstacle(note: Note) -> None:
    note("train-1", "waiting", reason="pod train-1-0: no machine suits it")
    note("train-2", "ended", code=0)
    out = io.StringIO()
    jobs.show_jobs(out, as_json=False)
    jobs.show_status("train", out, as_json=False)  # it alone is not over
    listed, _, shown = out.getvalue().splitlines()
    assert listed.startswith("train-1  waiting  local") and listed.endswith("no machine suits it")
    assert shown == "train-1  waiting: pod train-1-0: no machine suits it"
    for command in ("logs", "logs -f"):
        with pytest.raises(
            PslaunchError, match="train-1 has been started yet: pod train-1-0: no machine"
        ) as e:
            show(command, out)
        assert e.value.exit_code == codes.FAILED


def test_unreachable_job_is_unknown_and_gives_the_reason(note: Note, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreached(*_: object) -> object:
        raise HostError("node1", "connecting", "timed out\nafter 10 s")

    monkeypatch.setattr(known_jobs, "_read_jobs_there", unreached)
    monkeypatch.setattr(fabric, "from_data", lambda data: data)
    note("train-1", "running")
    note("train-2", record.ELSEWHERE, reach={})
    with pytest.raises(SpecError, match="unknown"):
        known_jobs.find("train")
    out = io.StringIO()
    jobs.show_jobs(out, as_json=False)
    told = next(line for line in out.getvalue().splitlines() if line.startswith("train-2"))
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
    [
        {"started": "now"},
        {"code": 256},
        {"processes": [{}]},
        {"nodes": "1"},
        {"reason": ["so"]},
        {"state": 7},
    ],
)
def test_a_bad_record_is_named_and_the_others_are_listed(
    note: Note, wrong: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    note("train-1", "ended", code=3)
    note("train-2", **{"state": "ended", **wrong})
    out = io.StringIO()
    jobs.show_jobs(out, as_json=False)
    assert [line.split()[0] for line in out.getvalue().splitlines()] == ["train-1"]
    assert re.search(r"train-2\.json is no record of a job, and is left out: ", capsys.readouterr().err)


ANOTHERS = {"hosts": [{"another": "version"}]}
OF_ANOTHER = r"another version of pslaunch .* --conf conf.py"


@pytest.mark.parametrize("reach", [{"reach": ANOTHERS}, {}])
def test_job_elsewhere_recorded_by_another_version_is_unknown(note: Note, reach: dict[str, Any]) -> None:
    note("train-1", "running")
    note("train-2", record.ELSEWHERE, **{"backend": "fabric", **reach})
    out = io.StringIO()
    jobs.show_jobs(out, as_json=False)
    assert [line.split()[:2] for line in out.getvalue().splitlines()] == [
        ["train-1", "running"],
        ["train-2", "unknown"],
    ]
    with pytest.raises(SpecError, match=OF_ANOTHER):
        jobs.stop("train-2", out, kill=False)
    with pytest.raises(SpecError, match=OF_ANOTHER):
        jobs.show_logs("train-2", None, out, follow=False, as_json=False)


def test_end_recorded_by_another_version_is_kept(note: Note) -> None:
    places = [{"another": "version"}]
    processes = [{"process": "trainer/0", "node": 0, "state": "exited", "log": "train.log"}]
    note("train-1", "running")
    note("train-2", "ended", code=3, reason="it failed", reach=ANOTHERS, processes=processes)
    note("train-3", "ended", code=0, reason="all ended", places=places, processes=processes)
    assert known_jobs.find("train")["job"] == "train-1"
    out = io.StringIO()
    jobs.show_status("train-2", out, as_json=False)
    assert jobs.stop("train-2", out, kill=False) == 0
    assert out.getvalue().splitlines() == [
        "train-2  ended: it failed (exit code 3)",
        "  trainer/0 on node 0 (localhost)  ended",
        "train-2 is not running: ended",
    ]
    for job in ("train-2", "train-3"):
        with pytest.raises(SpecError, match=OF_ANOTHER):
            jobs.fetch(job, Path(), out)


def test_job_led_from_its_start_machine_has_both_records(note: Note) -> None:
    note("train-1", record.ELSEWHERE, end=record.POINTER, reach=ANOTHERS)
    note("train-1", "running", workspace="/here", backend="fabric")
    (job,) = known_jobs.list_jobs()
    assert (job["state"], job["workspace"]) == ("running", "/here")
    note("train-1", "ended", code=3, backend="fabric")
    for _ in "12":
        (job,) = known_jobs.list_jobs()
        assert (job["state"], job["code"]) == ("ended", 3) and isinstance(job["error"], SpecError)
    pointer = Path(record.get_folder(os.environ)) / f"train-1{record.POINTER}"
    assert json.loads(pointer.read_text())["code"] == 3


def test_node_lists_jobs_that_it_leads(note: Note) -> None:
    note("led", "running")
    note("another", "ended", end=record.POINTER, code=0, reach=ANOTHERS)
    note("started", record.ELSEWHERE, end=record.POINTER, reach=ANOTHERS)
    note("old", record.ELSEWHERE)
    answer = subprocess.run([*NODE, "records"], stdout=subprocess.PIPE, check=True).stdout
    told = b"".join(relay.read_pieces(io.BytesIO(answer))).splitlines()
    assert [json.loads(line)["job"] for line in told] == ["led"]


def test_job_led_by_a_machine_with_the_same_folder_is_not_lost(note: Note, tmp_path: Path) -> None:
    note("train-1", "running", host="another", socket=str(tmp_path / "no"))
    note("train-2", "running", host=socket.gethostname(), socket=str(tmp_path / "no"))
    assert [r["state"] for r in known_jobs.list_jobs()] == ["unknown", "lost"]
    with pytest.raises(SpecError, match="job train-1: it is led on another: ask there"):
        jobs.stop("train-1", io.StringIO(), kill=False)


def show(command: str, out: io.StringIO) -> int:
    """Run `pslaunch COMMAND train-1`."""
    if command == "stop":
        return jobs.stop("train-1", out, kill=False)
    if command == "status":
        jobs.show_status("train-1", out, as_json=False)
        return 0
    return jobs.show_logs("train-1", None, out, follow=command == "logs -f", as_json=False)


COMMANDS = ("stop", "status", "logs", "logs -f")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("command", COMMANDS)
def test_silent_head_is_neither_an_end_nor_an_answer(
    note: Note, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(jobs, "LOST_AFTER_S", 0.2)
    note("train-1", "running")  # its head takes connections and no more
    out = io.StringIO()
    with pytest.raises(NodeLostError, match="the head of job train-1 was lost: ") as e:
        show(command, out)
    assert str(e.value).endswith("; it is not known if the job ends") == (command == "stop")
    assert not out.getvalue()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("command", COMMANDS)
def test_job_that_ends_before_a_request_has_ended(note: Note, tmp_path: Path, command: str) -> None:
    (tmp_path / "train.log").write_text("a line\n")
    process = {"process": "trainer/0", "node": 0, "state": "exited", "log": str(tmp_path / "train.log")}
    ending = {"socket": str(tmp_path / "ending"), "processes": [process]}

    def end() -> None:
        head.accept()[0].close()  # who looks whether it runs
        asking = head.accept()[0]
        note("train-1", "ended", code=0, reason="all ended", **ending)
        asking.close()

    with socket.socket(socket.AF_UNIX) as head, ThreadPoolExecutor() as aside:
        head.bind(str(tmp_path / "ending"))
        head.listen()
        note("train-1", "running", **ending)
        ended, out = aside.submit(end), io.StringIO()
        assert show(command, out) == 0
        ended.result()
    assert out.getvalue() == {
        "stop": "train-1 has ended\n",
        "status": "train-1  ended: all ended (exit code 0)\n  trainer/0 on node 0 (localhost)  ended\n",
    }.get(command, "trainer/0 | a line\n")


def test_logs_of_a_job_that_has_ended_as_json(note: Note, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("one\n" + "x" * MAX_LINE_CHARS + "yz\n")
    process = {"process": "trainer/0", "node": 0, "state": "exited", "log": str(log)}
    note("train-1", "ended", code=0, processes=[process])
    for follow in (False, True):
        out = io.StringIO()
        assert jobs.show_logs("train-1", None, out, follow=follow, as_json=True) == 0
        of_it = {"event": "line", "process": "trainer/0"}
        assert [json.loads(line) for line in out.getvalue().splitlines()] == [
            {**of_it, "text": "one"},
            {**of_it, "text": "x" * MAX_LINE_CHARS, "more": True},
            {**of_it, "text": "yz"},
        ]


@pytest.mark.parametrize(
    ("state", "fields", "code"),
    [("ended", {"code": 0}, 0), ("ended", {"code": 7}, 7), ("lost", {}, codes.NODE_LOST)],
)
def test_following_an_ended_job_returns_its_code(
    note: Note, tmp_path: Path, state: str, fields: dict[str, int], code: int
) -> None:
    (tmp_path / "train.log").write_text("a line\n")
    process = {"process": "trainer/0", "node": 0, "log": str(tmp_path / "train.log")}
    note("train-1", state, processes=[process], **fields)
    for command, given in (("logs", 0), ("logs -f", code)):
        out = io.StringIO()
        assert (show(command, out), out.getvalue()) == (given, "trainer/0 | a line\n")
    note("train-1", state, processes=[{**process, "state": record.WAITING}], **fields)
    for command, given in (("logs", codes.FAILED), ("logs -f", code or codes.FAILED)):
        with pytest.raises(PslaunchError, match="ended before its programs ran") as e:
            show(command, io.StringIO())
        assert e.value.exit_code == given


FAILURE = {
    "what": "trainer/0", "node": 0, "code": 3, "text": "ended with 3", "signal": "", "log": "/l/train.log",
    "tail": ["No space"], "advice": "make room",
}  # fmt: skip
SHOWN_FAILURE = [
    "FAILED: trainer/0 on node 0 (localhost): ended with 3",
    "  log: /l/train.log, which ends with:",
    "    No space",
    "  what to do: make room",
]


def test_status_shows_the_failure_and_reported_figures(note: Note) -> None:
    report = {"pass": 1, "batch": 200, "cost": 5.181938, "samples_per_s": 5320.4, "said": "connected"}
    processes = [
        {"process": "trainer/0", "node": 0, "log": "l", "state": "exited", "code": 3, **report, "pid": 12},
        {"process": "trainer/1", "node": 1, "log": "l", "state": "running", "pid": 13, **report},
        {"process": "trainer/2", "node": 2, "log": "l", "state": "waiting", "cost": "much"},
    ]
    places = [{"name": name} for name in ("localhost", "node2")]
    over = {"code": 3, "reason": "trainer/0 ended with 3", "elapsed_s": 65.0, "failure": FAILURE}
    note("train-1", "ended", processes=processes, places=places, **over)
    out = io.StringIO()
    jobs.show_status("train-1", out, as_json=False)
    figures = "pass 1, batch 200, cost 5.182, 5,320 samples/s"
    assert out.getvalue().splitlines() == [
        "train-1  ended: trainer/0 ended with 3 (exit code 3)",
        *[f"  {line}" for line in SHOWN_FAILURE],
        f"  trainer/0 on node 0 (localhost)  exit 3, {figures}",
        f"  trainer/1 on node 1 (node2)  running, pid 13, {figures}",
        "  trainer/2 on node 2  not started",
    ]


def test_following_a_failed_job_shows_its_failure(
    note: Note, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.log").write_text("a line\n")
    process = {"process": "trainer/0", "node": 0, "log": str(tmp_path / "train.log")}
    note("train-1", "ended", processes=[process], code=3, reason="so", elapsed_s=65.0, failure=FAILURE)
    for command, told in (
        ("logs", []),
        ("logs -f", [*SHOWN_FAILURE, "failed after 1 min 05 s, exit code 3"]),
    ):
        out = io.StringIO()
        show(command, out)
        said = capsys.readouterr().err.splitlines()
        assert (out.getvalue(), said) == ("trainer/0 | a line\n", [f"pslaunch  | {text}" for text in told])


def test_logs_of_a_job_that_never_ran_are_those_of_its_setup(note: Note, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log/setup.log").write_text("no compiler\n")
    process = {"process": "trainer/0", "node": 0, "log": "l", "state": record.WAITING}
    note("train-1", "ended", processes=[process], has_setup=True, code=7, reason="node 0 failed")
    out = io.StringIO()
    assert jobs.show_logs("train-1", "setup/0", out, follow=False, as_json=False) == 0
    assert out.getvalue() == "no compiler\n"
    out = io.StringIO()
    with pytest.raises(PslaunchError, match="ended before its programs ran: node 0 failed"):
        jobs.show_logs("train-1", None, out, follow=False, as_json=False)
    assert out.getvalue() == "setup/0   | no compiler\n"
    with pytest.raises(SpecError, match="no process 'setup/1' in job train-1; there are setup/0, trainer/0"):
        jobs.show_logs("train-1", "setup/1", out, follow=False, as_json=False)
    note("train-1", "ended", processes=[process], code=7)
    with pytest.raises(SpecError, match="no process 'setup/0' in job train-1; there are trainer/0"):
        jobs.show_logs("train-1", "setup/0", out, follow=False, as_json=False)


def test_every_node_whose_logs_can_not_be_fetched_is_named(
    note: Note, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = [Node(i, f"n{i}", "").place_in(str(tmp_path / f"ws{i}"))._asdict() for i in range(3)]
    (tmp_path / "ws2/log").mkdir(parents=True)
    (tmp_path / "ws2/log/train.log").touch()
    process = {"process": "trainer/0", "node": 0, "log": "l", "state": "exited"}
    note("train-1", "ended", processes=[process], places=places, code=0)
    out = io.StringIO()
    assert jobs.fetch("train-1", tmp_path / "got", out) == codes.IO
    assert out.getvalue() == f"{tmp_path}/got/log/2-n2/train.log\n"
    missing = [f"{tmp_path}/ws{i}/log: No such file or directory" for i in range(2)]
    assert capsys.readouterr().err.splitlines() == [f"pslaunch: pslaunch fetch: {text}" for text in missing]


def test_end_recorded_during_a_request_is_seen(note: Note, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(_r: object) -> bool:
        note("train-1", "ended", code=0)
        return False

    monkeypatch.setattr(record, "_has_listener", ends)
    note("train-1", "running")
    assert known_jobs.find("train-1")["state"] == "ended"


def test_job_unknown_to_its_first_host_is_asked_for_again(
    note: Note, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[dict[str, Any]] = []
    monkeypatch.setattr(known_jobs, "_read_jobs_there", lambda *_: known)
    monkeypatch.setattr(fabric, "from_data", lambda data: data)
    note("train-1", record.ELSEWHERE, end=record.POINTER, reach={})
    for _ in "12":
        assert known_jobs.find("train-1")["state"] == "unknown"
    with pytest.raises(SpecError, match="train-1: its first host does not know it any more"):
        jobs.stop("train-1", io.StringIO(), kill=False)
    known.append({"job": "train-1", "state": "ended", "code": 3})
    assert known_jobs.find("train-1")["code"] == 3
    known.clear()
    assert known_jobs.find("train-1")["code"] == 3  # noted here


@pytest.mark.parametrize(
    "fields",
    [
        {"state": "ended"},
        {"state": "running", "socket": "/no"},
        {"state": "lost", "end": record.POINTER, "reach": ANOTHERS},
        {"state": record.ELSEWHERE, "end": record.POINTER, "reach": ANOTHERS, record.FORGOTTEN: True},
    ],
)
def test_last_ended_jobs_are_kept(note: Note, fields: dict[str, Any]) -> None:
    note("running", "running", started=0.0)
    note("elsewhere", record.ELSEWHERE, end=record.POINTER, reach=ANOTHERS, started=0.0)
    for number in range(record.KEPT + 5):
        note(f"over-{number}", started=1.0 + number, **fields)
    left = [f"over-{number}" for number in range(5, record.KEPT + 5)]
    for _ in "12":
        read = [r["job"] for r in record.read_all(record.get_folder(os.environ))]
        assert sorted(read[:2]) == ["elsewhere", "running"] and read[2:] == left
    assert len(list(Path(record.get_folder(os.environ)).iterdir())) == record.KEPT + 2


@pytest.mark.parametrize("text", ["[]", "{}", '{"job": "train-2", "state": "running"}', "no JSON"])
def test_invalid_record_hides_no_job(note: Note, text: str) -> None:
    note("train-1", "running")
    (Path(record.get_folder(os.environ)) / "other.json").write_text(text)
    out = io.StringIO()
    jobs.show_jobs(out, as_json=False)
    assert out.getvalue().startswith("train-1  running") and len(out.getvalue().splitlines()) == 1


def test_empty_list_of_jobs_comes_with_advice(note: Note, capsys: pytest.CaptureFixture[str]) -> None:
    for as_json in (False, True):
        jobs.show_jobs(io.StringIO(), as_json=as_json)
        assert "; --conf conf.py asks hosts, --namespace=NAME a cluster" in capsys.readouterr().err
    with pytest.raises(SpecError, match="no jobs are known here; --conf"):
        known_jobs.find("train")
    note("train-1", "ended", code=0)
    out = io.StringIO()
    jobs.show_jobs(out, as_json=True)
    assert json.loads(out.getvalue())["job"] == "train-1" and not capsys.readouterr().err


def test_secrets_of_jobs_go_with_their_records(note: Note) -> None:
    folder = Path(record.get_folder(os.environ))
    for number in range(record.KEPT + 2):
        note(f"over-{number}", "ended", end=record.POINTER, reach={}, started=float(number), code=0)
        record.write_secret(str(folder / f"over-{number}.secret"), "00")
    record.read_all(str(folder))
    left = {path.name for path in folder.glob("*.secret")}
    assert left == {f"over-{number}.secret" for number in range(2, record.KEPT + 2)}
    assert {(folder / name).stat().st_mode & 0o777 for name in left} == {0o600}
