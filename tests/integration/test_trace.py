"""--trace: each control message on launcher and nodes, and nothing that somebody else must not see."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pslaunch.node import codes
from pslaunch.node.logs import EVENTS_LOG, HEAD_TRACE, NODE_TRACE
from support.jobs import FabricPlace, LocalPlace, finished, on_hosts, run_pslaunch, succeeded
from testbed import Hosts

PROGRAM = """
import os, shutil
print("said by", os.environ["TOKEN"])
if os.environ["PADDLE_TRAINER_ID"] == "0":
    shutil.copy(os.environ["PSLAUNCH_SECRET_FILE"], "kept")
"""
PASSED_ON_BYTES = 5 * 1024 * 1024  # from node to node


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def count(lines: list[dict[str, Any]], direction: str) -> Counter[str]:
    return Counter(line[direction] for line in lines if direction in line)


@pytest.mark.parametrize("head", ["launcher", "node"])
def test_each_message_is_in_the_traces_of_both_sides_without_secrets(
    workspace: Path, tmp_path: Path, head: str
) -> None:
    (workspace / "data").write_bytes(os.urandom(PASSED_ON_BYTES))
    place, file = LocalPlace(3, f"--head={head}"), tmp_path / "trace"
    options = ("--server_num=0", "--worker_num=3", "--env=TOKEN=of-the-user", f"--trace={file}")
    succeeded(place, workspace, *options, text=PROGRAM)
    at_head = file if head == "launcher" else workspace / "log" / HEAD_TRACE
    nodes = [folder / "log" / NODE_TRACE for folder in place.workspaces(workspace)]
    known = read(at_head)
    for number, path in enumerate(nodes):
        of_node = [line for line in known if line["peer"].startswith(f"node {number} ")]
        there = [line for line in read(path) if line["peer"] == "head"]
        assert {line["side"] for line in there} == {f"node {number}"}
        sent, got = count(of_node, "sent"), count(there, "got")
        assert (
            sent - got == Counter({"hello": 1}) and not got - sent
        )  # which came before it was asked for one
        sent, got = count(there, "sent"), count(of_node, "got")
        assert got - sent == Counter({"hello": 1}) and not sent - got
        assert {"prepared", "started", "exited", "finished"} <= set(sent)
    if head == "node":
        assert {"lead", "expect", "follow"} <= set(count(read(file), "sent"))
        assert {"leading", "events", "over"} <= set(count(read(file), "got"))
    secret = (workspace / "kept").read_text()
    for path in {file, at_head, *nodes}:
        text = path.read_text()
        assert not [word for word in (secret, "of-the-user") if word in text], path
        assert path.stat().st_mode & 0o777 == 0o600


def test_trace_of_an_earlier_job_does_not_stay_beside_the_logs_of_the_next(workspace: Path) -> None:
    own = ("--server_num=0",)
    succeeded(LocalPlace(1), workspace, *own, env={"PSLAUNCH_TRACE": str(workspace / "t")}, text="print(1)")
    assert (workspace / "t").exists() and (workspace / "log" / NODE_TRACE).exists()
    succeeded(LocalPlace(1), workspace, *own)
    assert not (workspace / "log" / NODE_TRACE).exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--trace=none/trace"], "none/trace can't be written: No such file or directory"),
        (["--trace=."], "can't be written: Is a directory"),
        (["--trace=t", "--dry_run"], "--trace=t has no effect with --dry_run"),
    ],
)
def test_file_that_can_not_be_is_an_error_before_anything_starts(
    workspace: Path, options: list[str], words: str
) -> None:
    (workspace / "train.py").write_text("print(1)")
    done = run_pslaunch("local", *options, cwd=workspace)
    assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1
    assert [path.name for path in workspace.iterdir()] == ["train.py"]


def test_traces_of_hosts_are_fetched_with_the_logs_also_without_a_program(
    hosts: Hosts, workspace: Path, tmp_path: Path
) -> None:
    (workspace / "train.py").write_text("print('has run')")
    place, logs = FabricPlace(hosts, "--head=node"), tmp_path / "logs"
    options = (f"--trace={tmp_path / 'trace'}", f"--fetch_logs={logs}")
    with place.holding_port() as (port, _):
        code, job = finished(place, workspace, f"--port={port}", "--server=bundled", *options)
    assert code == codes.SERVICE, job.launcher.output()
    found = {str(path.relative_to(logs)) for path in logs.rglob("*") if path.is_file()}
    wanted = {f"{i}-{host.name}/{NODE_TRACE}" for i, host in enumerate(hosts)}
    assert found == wanted | {f"0-{hosts[0].name}/{name}" for name in (HEAD_TRACE, EVENTS_LOG)}
    assert all(count(read(logs / name), "sent")["prepared"] for name in wanted)


def test_check_traces_its_questions_and_the_answers(hosts: Hosts, workspace: Path, tmp_path: Path) -> None:
    (workspace / "train.py").write_text("print('has run')")
    options = ("--server_num=0", "--env=TOKEN=of-the-user", f"--trace={tmp_path / 'trace'}")
    done = run_pslaunch("check", "fabric", *on_hosts(hosts, workspace, [hosts[0]]), *options, hosts=hosts)
    assert done.returncode == 0, done.stderr
    lines = read(tmp_path / "trace")
    assert list(count(lines, "sent")) == ["hello", "inspect", "door", "reach", "finish"]
    assert {"clock", "inspected", "opened", "reached", "finished"} <= set(count(lines, "got"))
    (asked,) = [line["message"] for line in lines if line.get("sent") == "inspect"]
    assert (asked["secret"], asked["env"]) == ("left out", ["TOKEN"])
