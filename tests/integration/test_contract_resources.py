"""Trainers of a node have GPUs and cores of their own, from the node's facts to the program."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pslaunch.node import codes
from support.jobs import LocalPlace, finished, succeeded

SHOW = """
import json, os, signal
names = ("CUDA_VISIBLE_DEVICES", "FLAGS_selected_gpus")
print(json.dumps([os.environ.get(name) for name in names] + [sorted(os.sched_getaffinity(0))]), flush=True)
if os.environ["TRAINING_ROLE"] == "PSERVER":
    signal.pause()
"""


def test_trainers_have_gpus_and_cores_of_their_own(workspace: Path) -> None:
    (workspace / "train.py").write_text(SHOW)
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        pytest.skip("needs two cores")
    own = ("--server=script", "--server_num=1", "--worker_num=2", "--gpus=4", "--bind_cores")
    job = succeeded(LocalPlace(1), workspace, *own, env={"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b,7,8,9"})
    shown = [json.loads(job.lines(f"trainer/{rank}")[-1]) for rank in range(2)]
    assert [one[:2] for one in shown] == [["GPU-a,GPU-b", "0,1"], ["7,8", "0,1"]]
    first, second = (one[2] for one in shown)
    assert first and not {*first} & {*second} and {*first, *second} <= {*usable} and len(first) == len(second)
    pserver = json.loads(job.lines("pserver/0")[-1])[2]
    assert pserver == (sorted({*usable} - {*first, *second}) or usable), "the rest, or all"


def test_too_few_gpus_end_the_job_before_its_start(workspace: Path) -> None:
    (workspace / "train.py").write_text(SHOW)
    own = ("--server_num=0", "--worker_num=2", "--gpus_per_trainer=1")
    code, job = finished(LocalPlace(1), workspace, *own, env={"CUDA_VISIBLE_DEVICES": "3"})
    failure = job.end()["failure"]
    assert code == codes.PREFLIGHT and failure["what"] == "node 0 (localhost)" and not job.lines("trainer/0")
    assert failure["text"] == (
        "has 1 GPU (CUDA_VISIBLE_DEVICES=3), and --gpus_per_trainer=1 for 2 trainers asks for 2"
    )
