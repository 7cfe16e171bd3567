"""Trainers of a node have GPUs and cores of their own, from the node's facts to the program."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

from pslaunch.node import codes
from support.jobs import LocalPlace, finished, running, succeeded
from support.process import make_script, poll_until

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
    own = ("--server_num=0", "--worker_num=2", "--gpus_per_trainer=1")
    code, job = finished(LocalPlace(1), workspace, *own, env={"CUDA_VISIBLE_DEVICES": "3"}, text=SHOW)
    failure = job.end()["failure"]
    assert code == codes.PREFLIGHT and failure["what"] == "node 0 (localhost)" and not job.lines("trainer/0")
    assert failure["text"] == (
        "has 1 GPU (CUDA_VISIBLE_DEVICES=3), and --gpus_per_trainer=1 for 2 trainers asks for 2"
    )


# In a format that NVIDIA documents: nvidia-smi --help-query-gpu, --help-query-compute-apps.
NVIDIA_SMI = """
case "$1" in
--query-gpu=*) echo 'GPU-9f3b, 93' ;;
*) echo "$(cat child), GPU-9f3b, 11450"; echo '[N/A], GPU-9f3b, 7'; touch asked ;;
esac
"""
USES_GPU = """
import pathlib, subprocess, time
child = subprocess.Popen(["sleep", "60"])  # works on the GPU
pathlib.Path("child").write_text(str(child.pid))
while not pathlib.Path("enough").exists():
    time.sleep(0.02)
child.kill()
"""


@pytest.mark.parametrize(
    ("script", "used"),
    [
        (NVIDIA_SMI, {"gpu_percent": 93.0, "gpu_bytes": 11450 << 20}),
        ("touch asked; echo NVIDIA-SMI has failed; exit 9", {}),
        ("touch asked; sleep 600 & exec sleep 600", {}),
    ],
    ids=["answers", "fails", "hangs"],
)
def test_use_of_gpus_is_reported_and_its_reader_hurts_no_job(
    workspace: Path, tmp_path: Path, script: str, used: dict[str, float]
) -> None:
    (tmp_path / "bin").mkdir()
    make_script(tmp_path / "bin/nvidia-smi", f"cd {shlex.quote(str(workspace))}\n{script}")
    environ = {"CUDA_VISIBLE_DEVICES": "0", "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    with running(LocalPlace(1), workspace, "--server_num=0", env=environ, text=USES_GPU) as job:
        if used:
            job.until(lambda events: any("gpu_bytes" in e for e in events), "the use of the GPU")
        else:
            poll_until((workspace / "asked").exists, describe="a question to nvidia-smi")
        (workspace / "enough").touch()
        assert job.launcher.wait() == 0, job.launcher.output()
    reports = [e for e in job.events() if e["event"] == "progress"]
    found = {name: x for e in reports for name, x in e.items() if name.startswith("gpu")}
    assert found == used
    assert not [e["text"] for e in job.events() if e["event"] == "note" and "left-over" in e["text"]]
