"""What a trainer tells: its log, and reports of its progress; neither ever ends training."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from pslaunch.runtime.process.infolog import InfoLog, get_log_path
from pslaunch.runtime.process.progress import PERIOD_S, Progress
from pslaunch.runtime.process.settings import resolve
from pslaunch.runtime.shared import reports


def test_lines_have_glogs_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = InfoLog(tmp_path / "log" / "paddle_trainer.INFO")
    log.info("quiet")
    log.say("two\nlines")
    log.warn("careful")
    log.close()
    lines = log.path.read_text().splitlines()
    assert [line[0] for line in lines] == ["I", "I", "W"]
    assert re.fullmatch(r"I\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ trainer\] quiet", lines[0])
    assert lines[1].endswith("trainer] two lines")
    assert capsys.readouterr().err == "two\nlines\nWARNING: careful\n"


def test_a_log_that_cant_be_written_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    log = InfoLog(tmp_path / "file" / "x.INFO")
    log.info("a")
    log.info("b")
    log.close()
    assert capsys.readouterr().err.count("training continues without this log") == 1


def test_info_log_is_in_the_log_folder() -> None:
    assert get_log_path(resolve({}, {})) == Path("log/paddle_trainer.INFO")
    second = {"trainer_id": 1, "num_gradient_servers": 2}
    assert get_log_path(resolve(second, {})) == Path("log/paddle_trainer.1.INFO")
    launched = {"PSLAUNCH_JOB_ID": "j", "PSLAUNCH_LOG_DIR": "/l", "PSLAUNCH_RANK": "3"}
    assert get_log_path(resolve({}, launched)) == Path("/l/paddle_trainer.INFO")
    assert get_log_path(resolve({}, launched | {"PSLAUNCH_LOCAL_RANK": "1"})) == Path(
        "/l/paddle_trainer.3.INFO"
    )
    assert get_log_path(resolve({"log_dir": "/own"}, launched)) == Path("/own/paddle_trainer.INFO")


def test_reports_are_rate_limited_and_states_are_not(tmp_path: Path) -> None:
    now_s = 0.0
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        receiver.settimeout(5)
        progress = Progress(path, clock=lambda: now_s)
        assert progress.is_due()
        progress.report(**{"pass": 1, "batch": 2, "cost": 5.5})
        assert not progress.is_due()
        now_s = PERIOD_S
        assert progress.is_due()
        progress.report_state("finished")
        assert reports.parse_progress(receiver.recv(2000)) == [{"pass": 1, "batch": 2, "cost": 5.5}]
        assert reports.parse_progress(receiver.recv(2000)) == [
            {"pass": 1, "batch": 2, "cost": 5.5, "state": "finished"}
        ]


def test_a_full_queue_and_nobody_there_are_no_errors(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    progress = Progress(path)
    progress.report_state("connected")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        for _ in range(2000):
            progress.report(batch=1)


def test_without_a_path_nothing_is_due() -> None:
    progress = Progress("")
    assert not progress.is_due()
    progress.report_state("connected")
