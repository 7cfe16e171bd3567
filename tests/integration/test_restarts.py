"""Restarts on every backend: all programs start again under the next epoch, and nothing of the last one is left."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from pslaunch.node import codes
from support.jobs import QUICK, Event, Job, Place, finished, run_pslaunch, running, succeeded, until_nothing_runs

# Reports a step in each epoch. In the first one, each process leaves a hidden one behind, then waits.
BEGIN = r"""
import json, os, signal, socket, sys
role, rank, epoch = (os.environ["PSLAUNCH_" + name] for name in ("ROLE", "RANK", "EPOCH"))
me, folder = f"{role}/{rank}", os.environ["PSLAUNCH_SNAPSHOT_DIR"]
def report(text):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(text.encode(), os.environ["PSLAUNCH_PROGRESS"])
"""
ONCE = BEGIN + r"""
names = ("TORCHELASTIC_RESTART_COUNT", "PADDLE_PSERVERS_IP_PORT_LIST", "MASTER_PORT", "PSLAUNCH_JOB_ID")
print(json.dumps([int(epoch), *(os.environ.get(name) for name in names)]), flush=True)
os.makedirs(folder, exist_ok=True)
kept = os.path.join(folder, me.replace("/", "-"))
if epoch == "0":
    hidden = os.fork()
    if hidden == 0:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        while True:
            signal.pause()
    with open(kept, "w") as f:
        f.write(str(hidden))
    report("pass=0 batch=7")
    os.write(1, b"ready\n")
    while True:
        signal.pause()
with open(kept) as f:
    try:
        os.kill(int(f.read()), 0)
        sys.exit("a process of the last epoch is alive")
    except ProcessLookupError:
        pass
if role == "pserver":
    signal.sigwait({signal.SIGTERM})
"""
ALL = ("pserver/0", "trainer/0", "trainer/1")


def restarts(job: Job, state: str = "running") -> list[Event]:
    return [e for e in job.events() if e["event"] == "restart" and e["state"] == state]


@pytest.mark.seam
@pytest.mark.parametrize("killed", ["trainer/1", "pserver/0"])
def test_a_killed_process_restarts_all(place: Place, workspace: Path, killed: str) -> None:
    (workspace / "train.py").write_text(ONCE)
    options = ("--server=script", "--worker_num=2", "--max_restarts=1", *QUICK)
    with running(place, workspace, *options) as job:
        job.until_printed("ready", ALL)
        os.kill(job.pid(killed), signal.SIGKILL)
        assert job.launcher.wait() == codes.OK, job.launcher.output()
    (ending,), (restart,) = restarts(job, "ending"), restarts(job)
    assert ending["failure"]["what"] == killed and ending["failure"]["signal"] == "SIGKILL"
    assert (restart["epoch"], restart["restart"], restart["of"]) == (1, 1, 1) and restart["lost_s"] < 60
    for process in ALL:
        first, ready, second = job.lines(process)
        assert ready == "ready"
        (zero, *said), (one, *again) = json.loads(first), json.loads(second)
        assert (zero, one) == (0, 1) and said[1:] == again[1:]
        if process != "pserver/0":
            assert (said[0], again[0]) == ("0", "1")
        assert job.log_of(process).read_text().splitlines() == [first, ready, second]
    until_nothing_runs(5.0)
