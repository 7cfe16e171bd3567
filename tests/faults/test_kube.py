"""Failures of a cluster while a job runs: of a pod's memory."""

from __future__ import annotations

import re
from pathlib import Path

from support.jobs import QUICK, finished
from support.kube import Kube, KubePlace

OOM_KILLED = 137
BOTH = ("--server_num=0", "--worker_num=2")
GREEDY = """
import os, signal
if os.environ["PADDLE_TRAINER_ID"] == "0":
    signal.pause()
{first}
held = []
while True:
    held.append(b"x" * (1 << 20))
"""
# The kernel takes the first process, and with it all others, as with memory.oom.group of cgroup 2.
WHOLE = 'open("/proc/1/oom_score_adj", "w").write("1000")'


def test_trainer_without_enough_memory_gives_137(cluster: Kube, workspace: Path) -> None:
    (workspace / "train.py").write_text(GREEDY.format(first=""))
    amounts = ("--cpu=500m", "--memory=150Mi")
    code, job = finished(KubePlace(cluster, 2), workspace, *BOTH, *amounts, *QUICK)
    assert code == job.end()["code"] == OOM_KILLED, job.launcher.output()
    assert job.end()["reason"] == "trainer/1 was killed for memory (SIGKILL by the kernel)"


def test_container_without_enough_memory_gives_137(cluster: Kube, workspace: Path) -> None:
    (workspace / "train.py").write_text(GREEDY.format(first=WHOLE))
    amounts = ("--cpu=500m", "--memory=150Mi")
    code, job = finished(KubePlace(cluster, 2), workspace, *BOTH, *amounts, *QUICK)
    assert code == OOM_KILLED, job.launcher.output()
    assert re.search(r"pod \S+-1 on node\d: its memory was not enough; raise --memory", job.launcher.output())
