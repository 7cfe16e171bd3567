"""Requests of later shells to a job: its end, status, logs and files."""

from __future__ import annotations

import io
import json
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pslaunch.backends import node_answers as answers
from pslaunch.errors import NodeLostError, PslaunchError, SpecError
from pslaunch.node import codes
from pslaunch.node.job import Node
from pslaunch.node.later import record
from pslaunch.node.line import wire
from pslaunch.node.logs import MAX_LINE_CHARS
from pslaunch.run import jobs, known_jobs
from pslaunch.run.fetch import hold_folders

Note = Callable[..., None]


def show(command: str, out: io.StringIO) -> int:
    """Run `pslaunch COMMAND train-1`."""
    if command == "stop":
        return jobs.stop_job("train-1", out, kill=False)
    if command == "status":
        jobs.show_status("train-1", out, as_json=False)
        return 0
    return jobs.show_logs("train-1", out=out, follow=command == "logs -f", as_json=False, elsewhere=None)


def write_log(folder: Path, text: str = "a line\n", **fields: object) -> dict[str, object]:
    """Write the log of trainer/0; return the process as in the record of its job."""
    (folder / "train.log").write_text(text)
    return {"process": "trainer/0", "node": 0, "log": str(folder / "train.log"), **fields}


COMMANDS = ("stop", "status", "logs", "logs -f")


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
        with pytest.raises(PslaunchError, match="has been started yet: pod train-1-0: no machine") as e:
            show(command, out)
        assert e.value.exit_code == codes.FAILED


@pytest.mark.timeout(60)
@pytest.mark.parametrize("command", COMMANDS)
def test_silent_head_is_neither_an_end_nor_an_answer(
    note: Note, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(jobs, "HEAD_LOST_AFTER_S", 0.2)
    note("train-1", "running")  # its head takes connections and no more
    out = io.StringIO()
    with pytest.raises(NodeLostError, match="the head of job train-1 was lost: ") as e:
        show(command, out)
    assert str(e.value).endswith("; it is not known if the job ends") == (command == "stop")
    assert not out.getvalue()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("command", COMMANDS)
def test_job_that_ends_before_a_request_has_ended(note: Note, tmp_path: Path, command: str) -> None:
    ending = {"socket": str(tmp_path / "ending"), "processes": [write_log(tmp_path, state="exited")]}

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
    process = write_log(tmp_path, "o\x1b[2Jne\n" + "x" * MAX_LINE_CHARS + "yz\n", state="exited")
    note("train-1", "ended", code=0, processes=[process])
    for follow in (False, True):
        out = io.StringIO()
        assert jobs.show_logs("train-1", out=out, follow=follow, as_json=True, elsewhere=None) == 0
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
    process = write_log(tmp_path)
    note("train-1", state, processes=[process], **fields)
    for command, given in (("logs", 0), ("logs -f", code)):
        out = io.StringIO()
        assert (show(command, out), out.getvalue()) == (given, "trainer/0 | a line\n")
    note("train-1", state, processes=[{**process, "state": record.WAITING}], **fields)
    for command, given in (("logs", codes.FAILED), ("logs -f", code or codes.FAILED)):
        with pytest.raises(PslaunchError, match="ended before its programs ran") as e:
            show(command, io.StringIO())
        assert e.value.exit_code == given


@pytest.mark.timeout(60)
def test_answers_of_a_head_choose_neither_job_nor_paths(note: Note, tmp_path: Path) -> None:
    chosen = {"job": "other-1", "path": str(tmp_path / "chosen"), "backend": "k8s", "reach": 7}
    end = {"n": 0, "time": 1.0, "event": "end", "code": 3, "reason": "so", "elapsed_s": 1.0, "failure": None}
    answers = {
        "status": {"type": "status", "state": "running", "events": 0, **chosen},
        "stop": {"type": "events", "events": [{**end, **chosen}]},
    }

    def answer(asked: str) -> None:
        head.accept()[0].close()  # who looks whether it runs
        with head.accept()[0] as asking:
            said = (wire.make_hello(), answers[asked], {"type": "over", "code": 3})
            asking.sendall(b"".join(map(wire.encode_control, said)))
            while asking.recv(4096):
                pass

    with socket.socket(socket.AF_UNIX) as head, ThreadPoolExecutor() as aside:
        head.bind(str(tmp_path / "hostile"))
        head.listen()
        note("train-1", "running", socket=str(tmp_path / "hostile"))
        for asked in answers:
            heard, out = aside.submit(answer, asked), io.StringIO()
            if asked == "status":
                jobs.show_status("train-1", out, as_json=True)
            else:
                jobs.stop_job("train-1", out, kill=False, as_json=True)
            heard.result()
            told = json.loads(out.getvalue())
            assert told["job"] == "train-1" and told.get("backend", "local") == "local"
    assert known_jobs.find_job("train-1")["backend"] == "local" and not (tmp_path / "chosen").exists()


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
    process = write_log(tmp_path)
    note("train-1", "ended", processes=[process], code=3, reason="so", elapsed_s=65.0, failure=FAILURE)
    ended = [*SHOWN_FAILURE, "failed after 1 min 05 s, exit code 3"]
    for command, told in (("logs", []), ("logs -f", ended)):
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
    assert jobs.show_logs("train-1", "setup/0", out=out, follow=False, as_json=False, elsewhere=None) == 0
    assert out.getvalue() == "no compiler\n"
    out = io.StringIO()
    with pytest.raises(PslaunchError, match="ended before its programs ran: node 0 failed"):
        jobs.show_logs("train-1", out=out, follow=False, as_json=False, elsewhere=None)
    assert out.getvalue() == "setup/0   | no compiler\n"
    with pytest.raises(SpecError, match="no process 'setup/1' in job train-1; there are setup/0, trainer/0"):
        jobs.show_logs("train-1", "setup/1", out=out, follow=False, as_json=False, elsewhere=None)
    note("train-1", "ended", processes=[process], code=7)
    with pytest.raises(SpecError, match="no process 'setup/0' in job train-1; there are trainer/0"):
        jobs.show_logs("train-1", "setup/0", out=out, follow=False, as_json=False, elsewhere=None)


@pytest.mark.timeout(60)
def test_logs_of_a_disk_that_hangs_are_given_up(
    note: Note, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "train.log")  # nobody writes there
    process = {"process": "trainer/0", "node": 0, "log": str(tmp_path / "train.log"), "state": "exited"}
    note("train-1", "ended", processes=[process], code=0)
    monkeypatch.setattr(answers, "SILENT_S", 0.2)
    assert show("logs", io.StringIO()) == codes.HOST
    assert "localhost: read failed: no answer for 0 s; check that its machine" in capsys.readouterr().err


def test_every_node_whose_logs_can_not_be_fetched_is_named(
    note: Note, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = [Node(i, f"n{i}", "").place_in(str(tmp_path / f"ws{i}"))._asdict() for i in range(3)]
    (tmp_path / "ws2/log").mkdir(parents=True)
    (tmp_path / "ws2/log/train.log").touch()
    process = {"process": "trainer/0", "node": 0, "log": "l", "state": "exited"}
    note("train-1", "ended", processes=[process], places=places, code=0)
    out = io.StringIO()
    assert jobs.fetch_job("train-1", tmp_path / "got", out) == codes.IO
    assert out.getvalue() == f"{tmp_path}/got/log/2-n2/train.log\n"
    missing = [f"n{i}: {tmp_path}/ws{i}/log: No such file or directory" for i in range(2)]
    assert capsys.readouterr().err.splitlines() == [f"pslaunch: {text}" for text in missing]


def test_files_are_not_fetched_into_the_folder_of_another_job(note: Note, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    process = {"process": "trainer/0", "node": 0, "log": "l", "state": "exited"}
    note("train-1", "ended", processes=[process], code=0)
    held = {"its": tmp_path / "got/output"}
    with hold_folders(held, "train-2"), pytest.raises(SpecError, match="job train-2"):
        jobs.fetch_job("train-1", tmp_path / "got", io.StringIO())
    with hold_folders(held, "train-1"):  # by its own launcher
        assert jobs.fetch_job("train-1", tmp_path / "got", io.StringIO()) == codes.OK
