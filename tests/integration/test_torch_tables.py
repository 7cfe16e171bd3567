"""Tables of pslaunch.torch: steps as those of torch.nn in the process, on every kind of place."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from pslaunch.ship.wheel import RUNTIME_FILES, make_wheel
from support.jobs import QUICK, LocalPlace, Place, finished, running, succeeded, until_nothing_runs
from support.others import PROGRAMS, ROOT, torch_python
from support.pservers import cluster

pytestmark = pytest.mark.slow
EXAMPLE = ROOT / "examples/dlrm_torch/train.py"


def train(
    folder: Path, name: str, *words: str, pservers: int = 1, trainers: int = 1, sparse: int = 0
) -> list[dict[str, Any]]:
    """Run a program of tests/programs as trainers beside pservers; return what each of them says."""
    python, program = torch_python(), PROGRAMS / name
    with cluster(pservers, sparse=sparse, trainers=trainers) as found:
        env = {
            **os.environ,
            "PADDLE_INIT_NUM_GRADIENT_SERVERS": str(trainers),
            "PADDLE_INIT_PORTS_NUM_FOR_SPARSE": str(sparse),
            "PADDLE_INIT_PSERVERS": ",".join(f"{host}:{port}" for host, port in found.endpoints),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        running = [
            subprocess.Popen(
                [python, program, *words],
                env={**env, "PADDLE_INIT_TRAINER_ID": str(t)},
                cwd=folder,
                stdout=subprocess.PIPE,
            )
            for t in range(trainers)
        ]
        said = [one.communicate()[0] for one in running]
        assert [one.returncode for one in running] == [0] * trainers
        assert found.codes() == [0] * pservers  # each trainer has said that it is finished
    return [json.loads(one) for one in said]


@pytest.mark.parametrize(
    ("method", "how"), [("sgd", "plain"), ("adagrad", "prefetch"), ("sparse_adam", "prefetch")]
)
def test_losses_are_those_of_torch(tmp_path: Path, method: str, how: str) -> None:
    (one,) = train(tmp_path, "torch_tables.py", method, how)
    assert len(one["losses"]) == 20 and one["losses"][0] != one["losses"][-1]
    for ours, theirs in one["losses"]:
        assert ours == pytest.approx(theirs, abs=1e-6, rel=1e-6)
    assert one["gap"] < 1e-6


def test_bits_depend_neither_on_pservers_nor_on_prefetching(tmp_path: Path) -> None:
    found = [
        train(tmp_path, "torch_tables.py", "adagrad", how, pservers=n, sparse=sparse)
        for n, sparse, how in ((1, 0, "plain"), (2, 1, "plain"), (3, 0, "prefetch"))
    ]
    assert [one[0]["losses"] for one in found] == [found[0][0]["losses"]] * 3
    assert [one[0]["bits"] for one in found] == [found[0][0]["bits"]] * 3


def test_two_trainers_are_one_with_both_batches(tmp_path: Path) -> None:
    first, second = train(tmp_path, "torch_tables.py", "adagrad", "prefetch", trainers=2)
    for (one, whole), (other, _) in zip(first["losses"], second["losses"], strict=True):
        assert (one + other) / 2 == pytest.approx(whole, abs=1e-6, rel=1e-6)
    assert max(first["gap"], second["gap"]) < 1e-6 and first["bits"] == second["bits"]


@pytest.mark.parametrize(("method", "trainers"), [("sgd", 2), ("adam", 1), ("adamw", 1), ("adagrad", 1)])
def test_dense_parameters_learn_by_pservers_as_by_torch(tmp_path: Path, method: str, trainers: int) -> None:
    for one in train(tmp_path, "torch_dense.py", method, "0", "20", trainers=trainers, pservers=2):
        assert one["gap"] < 1e-6


def test_a_checkpoint_has_dense_values_and_rows_of_one_step(tmp_path: Path) -> None:
    whole = train(tmp_path, "torch_dense.py", "adam", "0", "20")
    first = train(tmp_path, "torch_dense.py", "adam", "0", "8", pservers=2)
    rest = train(tmp_path, "torch_dense.py", "adam", "8", "20", pservers=3)
    assert [*first[0]["losses"], *rest[0]["losses"]] == whole[0]["losses"]
    assert rest[0]["bits"] == whole[0]["bits"]


def run_example(place: Place, workspace: Path, *options: str) -> list[float]:
    """Run the example with a trainer on each of two nodes, or two here; return its AUC and its losses."""
    shutil.copy(EXAMPLE, workspace)
    with zipfile.ZipFile(io.BytesIO(make_wheel(RUNTIME_FILES))) as wheel:  # what torch's Python imports there
        wheel.extractall(workspace / "lib")
    own = [f"--python={torch_python()}", "--env=PYTHONPATH=lib", *options]
    job = succeeded(place, workspace, *own, program=["train.py", "--steps=40", "--batch=256"], timeout_s=120)
    said = "\n".join(job.lines("trainer/0"))
    until_nothing_runs(2.0)
    return [float(one) for one in re.findall(r"(?:AUC|loss) ([\d.]+)", said)]


@pytest.mark.parametrize("place", ["local", "fabric", "mpi"], indirect=True)
def test_the_example_learns_on_each_place(place: Place, workspace: Path) -> None:
    numbers = ["--server_num=2", "--worker_num=2"] if place.nodes == 1 else []
    assert run_example(place, workspace, *numbers)[-1] > 0.6


KILLED = """
import os, signal, sys
import torch
import pslaunch.torch as ps

table = ps.Embedding("table", 4)
for step in range(1000):
    table(torch.arange(8)).sum().backward()
    if step == 3:
        print("training", flush=True)
        signal.pause() if os.environ["RANK"] == "1" else None
"""


def test_a_killed_trainer_ends_the_job(workspace: Path) -> None:
    (workspace / "train.py").write_text(KILLED)
    options = [f"--python={torch_python()}", "--server_num=2", "--worker_num=2", *QUICK]
    with running(LocalPlace(1), workspace, *options) as job:
        job.until_printed("training", ["trainer/1"])
        os.kill(job.pid("trainer/1"), signal.SIGKILL)
        assert job.launcher.wait(timeout_s=60) == 128 + signal.SIGKILL
    until_nothing_runs(2.0)


LARGE = """
import resource
import torch
import pslaunch.torch as ps

table = ps.Embedding("table", 64, "sgd", lr=1.0, init=1.0)
table(torch.arange(8)).sum().backward()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), used + (64 << 20)))
for step in range(20):
    table(torch.arange(20_000) + 20_000 * step).sum().backward()
print("rows", table.to_dense(8)[:, 0].tolist(), float(table(torch.tensor([399_999]))[0, 0].detach()))
"""


def test_a_table_is_larger_than_what_a_trainer_may_have(workspace: Path) -> None:
    (workspace / "train.py").write_text(LARGE)  # 400,000 rows of 256 bytes, and 64 MiB to have
    options = [f"--python={torch_python()}", "--server_num=2", "--worker_num=1"]
    code, job = finished(LocalPlace(1), workspace, *options)
    assert code == 0, job.launcher.output()
    assert f"rows {[-1.0] * 8} 0.0" in job.lines("trainer/0")
