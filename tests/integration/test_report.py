"""Jobs of a terminal, from any later shell: listed, watched, stopped; their reports, also of earlier ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pslaunch.cli import BROKEN_PIPE
from pslaunch.node import codes
from support.jobs import (
    PSLAUNCH,
    QUICK,
    FabricPlace,
    LocalPlace,
    run_pslaunch,
    running,
    succeeded,
    until_nothing_runs,
)
from support.shells import Shell
from support.trainings import REPORTING
from testbed import Hosts

SECRET = "not-for-the-report"
PROGRAM = f"""{REPORTING}
print("{SECRET}", flush=True)
report("pass=0 batch=0 cost=4.5 metric.auc=0.5")
if "HOLD" in os.environ:
    signal.pause()
"""
ALONE = ("--server_num=0", f"--env=SECRET={SECRET}", *QUICK)


def ask(*words: str) -> str:
    done = run_pslaunch(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def find_listed(job_id: str) -> dict[str, Any]:
    (found,) = [r for r in map(json.loads, ask("jobs", "--json").splitlines()) if r["job"] == job_id]
    return dict(found)


def test_report_of_an_ended_job_by_name_by_folder_and_after_a_later_one(workspace: Path) -> None:
    place, named, page = LocalPlace(1), f"--job_name={workspace.parent.name}", workspace / "page.html"
    first = str(succeeded(place, workspace, *ALONE, named, text=PROGRAM).get_job()["job"])
    listed = find_listed(first)
    assert (listed["state"], listed["code"]) == ("ended", 0)
    assert listed["output"] == str(workspace / "output") and listed["elapsed_s"] > 0
    assert f"{first}  ended 0  local, 1 node" in ask("jobs")
    reports = []
    for word in (workspace.parent.name, str(workspace), str(workspace / "log"), first):
        assert ask("report", word, "-o", str(page)) == f"{page}\n"
        reports.append(page.read_text())
    assert len({*reports}) == 1 and "auc" in reports[0] and first in reports[0]
    assert SECRET not in reports[0] + (workspace / "log/events.jsonl").read_text()
    second = str(succeeded(place, workspace, *ALONE, named, "--keep_logs=1").get_job()["job"])
    ask("report", first, "-o", str(page))
    assert page.read_text() == reports[0]
    assert ask("logs", first) == f"trainer/0 | {SECRET}\n"
    ask("report", workspace.parent.name, "-o", str(page))
    assert second in page.read_text()  # the newest of this name
    succeeded(place, workspace, *ALONE, named, "--keep_logs=0")
    assert first not in ask("jobs") and not (workspace / "log/earlier" / first).exists()


def test_job_of_a_terminal_is_watched_and_stopped_from_another_shell(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # lines of `top` must not wait for others
    with running(LocalPlace(1), workspace, *ALONE, "--env=HOLD=1", text=PROGRAM) as job:
        job.until(lambda events: any("cost" in e for e in events), "its cost")
        job_id = str(job.get_job()["job"])
        assert find_listed(job_id)["state"] == "running"
        assert "cost 4.500" in ask("status", job_id)
        with subprocess.Popen([*PSLAUNCH, "top", job_id], stdout=subprocess.PIPE, text=True) as top:
            assert top.stdout is not None
            said = [top.stdout.readline() for _ in range(4)]
            top.send_signal(signal.SIGINT)
            assert top.wait() == codes.OK
        assert "trainer/0 runs on node 0" in said[3] and SECRET not in "".join(said)
        for count, words in ((4, ("top",)), (1, ("logs", "--follow"))):  # | head, and then the job is quiet
            with subprocess.Popen([*PSLAUNCH, *words, job_id], stdout=subprocess.PIPE, text=True) as show:
                assert show.stdout is not None and all(show.stdout.readline() for _ in range(count))
                show.stdout.close()
                try:
                    assert show.wait(20) == BROKEN_PIPE
                finally:
                    show.kill()
        assert job.launcher.proc.poll() is None  # it goes on
        with subprocess.Popen([*PSLAUNCH, "top", job_id], stdout=subprocess.PIPE, text=True) as top:
            assert top.stdout is not None and top.stdout.readline()
            assert "has ended" in ask("stop", job_id)
            assert top.wait() == codes.TERM
        assert job.launcher.wait() == codes.TERM
    assert find_listed(job_id)["reason"] == "pslaunch stop"


def test_killed_launcher_leaves_a_lost_job_in_the_list(workspace: Path) -> None:
    with running(LocalPlace(1), workspace, *ALONE, "--env=HOLD=1", text=PROGRAM) as job:
        job.until(lambda events: any("cost" in e for e in events), "its cost")
        os.kill(job.launcher.proc.pid, signal.SIGKILL)
        job.launcher.wait()
        assert find_listed(str(job.get_job()["job"]))["state"] == "lost"
        until_nothing_runs(10.0)
        page = workspace / "page.html"
        ask("report", str(workspace), "-o", str(page))
    assert "No end is known" in page.read_text()


def test_job_on_hosts_is_listed_and_reported_where_its_launcher_ran(
    hosts: Hosts, workspace: Path, tmp_path: Path
) -> None:
    (workspace / "train.py").write_text(PROGRAM)
    logs, shell = tmp_path / "logs", Shell(hosts, Path(os.environ["XDG_STATE_HOME"]))
    job = succeeded(FabricPlace(hosts, on=[hosts[0], hosts[1]]), workspace, *ALONE, f"--fetch_logs={logs}")
    job_id, pages = str(job.get_job()["job"]), [tmp_path / "1.html", tmp_path / "2.html"]
    assert f"{job_id}  ended 0  fabric, 2 nodes" in shell.ok("jobs")
    assert shell.ok("logs", job_id) == f"trainer/0 | {SECRET}\n"  # from its node
    for word, page in zip((job_id, str(logs)), pages, strict=True):
        shell.ok("report", word, "-o", str(page))
    assert pages[0].read_text() == pages[1].read_text()
    assert "Dispatch" in pages[0].read_text() and "auc" in pages[0].read_text()
