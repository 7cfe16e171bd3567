"""Attached jobs on a real cluster: live, fetched, ended in order, and nothing of them left."""

from __future__ import annotations

import signal
from pathlib import Path

from integration.test_contract import POLITE
from pslaunch.node import codes
from support.jobs import finished, running
from support.kube import Kube, KubePlace

ALONE = ("--server_num=0",)
BOTH = ("--server_num=2", "--worker_num=2")
SAY_AND_SAVE = """
import os
print("rank", os.environ["PADDLE_TRAINER_ID"], flush=True)
with open("output/model", "w") as f:
    f.write("the model")
"""
FAIL = """
import os, signal, sys
if os.environ["PADDLE_TRAINER_ID"] == "0":
    signal.pause()
sys.exit(7)
"""


def test_results_come_here_and_nothing_is_left(cluster: Kube, workspace: Path) -> None:
    (workspace / "train.py").write_text(SAY_AND_SAVE)
    code, job = finished(KubePlace(cluster, 2), workspace, *ALONE, "--worker_num=2")
    assert code == 0, job.launcher.output()
    assert job.lines("trainer/0") == ["rank 0"] and job.lines("trainer/1") == ["rank 1"]
    assert (workspace / "output/model").read_text() == "the model"
    logs = sorted(path.read_text() for path in (workspace / "log").glob("*/train.log"))
    assert logs == ["rank 0\n", "rank 1\n"]
    cluster.wait_until_gone(set())


def test_failed_program_gives_the_code_and_its_log(cluster: Kube, workspace: Path) -> None:
    (workspace / "train.py").write_text(FAIL)
    code, job = finished(KubePlace(cluster, 2), workspace, *ALONE, "--worker_num=2")
    assert (code, job.end()["failure"]["what"]) == (7, "trainer/1"), job.launcher.output()
    assert len(list((workspace / "log").glob("*/train.log"))) == 2


def test_interrupt_ends_in_order_and_fetches(cluster: Kube, workspace: Path) -> None:
    (workspace / "train.py").write_text(POLITE)
    with running(KubePlace(cluster, 2), workspace, "--server=script", *BOTH) as job:
        job.until_printed("ready", ["pserver/0", "pserver/1", "trainer/0", "trainer/1"])
        assert not list_deadlines(cluster)
        job.launcher.proc.send_signal(signal.SIGINT)
        assert job.launcher.wait() == codes.INT
        said = [e["text"] for e in job.events() if e["event"] == "line" and e["text"].startswith("leaving")]
        assert said == ["leaving trainer"] * 2 + ["leaving pserver"] * 2
    assert len(list((workspace / "log").glob("*/train.log"))) == 2
    assert cluster.list_names() == set()


def list_deadlines(cluster: Kube) -> list[int]:
    jobs = cluster.batch.list_namespaced_job(cluster.namespace).items
    return [job.spec.active_deadline_seconds for job in jobs if job.spec.active_deadline_seconds]
