"""Tables of pslaunch.torch: steps as those of torch.nn in the process, on every kind of place."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.jobs import (
    QUICK,
    FabricPlace,
    LocalPlace,
    Place,
    succeeded,
    until_nothing_runs,
)
from support.openmpi import MpiPlace
from support.others import PROGRAMS, ROOT, torch_python, write_lib
from support.pages import DOCS, list_blocks
from support.pservers import cluster
from testbed import Hosts

pytestmark = pytest.mark.slow
PROGRAM = ["train.py", "--steps=100", "--batch=128", "--ids=300"]
EXAMPLE = ROOT / "examples/dlrm_torch/train.py"


@pytest.fixture(scope="module")
def lib(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what a Python that has torch imports of pslaunch."""
    return write_lib(tmp_path_factory.mktemp("lib"))


@pytest.fixture
def folder(tmp_path: Path, lib: Path) -> Path:
    """Return a folder with that, in which programs run."""
    shutil.copytree(lib, tmp_path / "lib")
    return tmp_path


@pytest.fixture
def carrying(workspace: Path, lib: Path) -> Path:
    """Return a workspace with that, which goes to the nodes."""
    shutil.copytree(lib, workspace / "lib")
    return workspace


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
            "PYTHONPATH": "lib",
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
def test_losses_are_those_of_torch(folder: Path, method: str, how: str) -> None:
    (one,) = train(folder, "torch_tables.py", method, how)
    assert len(one["losses"]) == 20 and one["losses"][0] != one["losses"][-1]
    for ours, theirs in one["losses"]:
        assert ours == pytest.approx(theirs, abs=1e-6, rel=1e-6)
    assert one["gap"] < 1e-6


def test_bits_depend_neither_on_pservers_nor_on_prefetching(folder: Path) -> None:
    found = [
        train(folder, "torch_tables.py", "adagrad", how, pservers=n, sparse=sparse)
        for n, sparse, how in ((1, 0, "plain"), (2, 1, "plain"), (3, 0, "prefetch"))
    ]
    assert [one[0]["losses"] for one in found] == [found[0][0]["losses"]] * 3
    assert [one[0]["bits"] for one in found] == [found[0][0]["bits"]] * 3


def test_two_trainers_are_one_with_both_batches(folder: Path) -> None:
    first, second = train(folder, "torch_tables.py", "adagrad", "prefetch", trainers=2)
    for (one, whole), (other, _) in zip(first["losses"], second["losses"], strict=True):
        assert (one + other) / 2 == pytest.approx(whole, abs=1e-6, rel=1e-6)
    assert max(first["gap"], second["gap"]) < 1e-6 and first["bits"] == second["bits"]


@pytest.mark.parametrize("mode", ["async", "half_async"])
def test_two_trainers_learn_in_asynchronous_modes(folder: Path, mode: str) -> None:
    for one in train(folder, "torch_modes.py", mode, pservers=2, trainers=2):
        assert sum(one["losses"][-20:]) / 20 < 0.3  # 0.05; 0.69 if only the dense layer learns


@pytest.mark.gpu
def test_ids_and_gradients_may_be_on_a_gpu(folder: Path) -> None:
    assert train(folder, "torch_gpu.py") == [{}]  # it compares them itself


def test_lookups_have_the_forms_of_torch(folder: Path) -> None:
    assert train(folder, "torch_forms.py", pservers=2) == [{}]  # it compares them itself


@pytest.mark.parametrize(("method", "trainers"), [("sgd", 2), ("adam", 1), ("adamw", 1), ("adagrad", 1)])
def test_dense_parameters_learn_by_pservers_as_by_torch(folder: Path, method: str, trainers: int) -> None:
    for one in train(folder, "torch_dense.py", method, "0", "20", trainers=trainers, pservers=2):
        assert one["gap"] < 1e-6


def test_a_checkpoint_has_dense_values_and_rows_of_one_step(folder: Path) -> None:
    whole = train(folder, "torch_dense.py", "adam", "0", "20")
    first = train(folder, "torch_dense.py", "adam", "0", "8", pservers=2)
    rest = train(folder, "torch_dense.py", "adam", "8", "20", pservers=3)
    assert [*first[0]["losses"], *rest[0]["losses"]] == whole[0]["losses"]
    assert rest[0]["bits"] == whole[0]["bits"]


def find_torch() -> list[str]:
    """Return the options by which programs have torch, on all nodes with the same kernels, and pslaunch."""
    return [f"--python={torch_python()}", "--env=PYTHONPATH=lib", "--env=OPENBLAS_CORETYPE=Haswell"]


def run_example(place: Place, workspace: Path, *options: str) -> tuple[float, float]:
    """Run the example; return its last loss and its AUC."""
    shutil.copy(EXAMPLE, workspace)
    job = succeeded(place, workspace, *find_torch(), *options, program=PROGRAM, timeout_s=120)
    said = "\n".join(job.lines("trainer/0"))
    until_nothing_runs(2.0)
    found = re.search(r"step 100: loss ([\d.]+)\nAUC ([\d.]+) ", said)
    assert found, said
    return float(found[1]), float(found[2])


def test_the_example_learns_the_same_on_each_place(hosts: Hosts, carrying: Path) -> None:
    places = (LocalPlace(1), 2), (FabricPlace(hosts), 3), (MpiPlace(hosts, 5), 3)
    found = [run_example(place, carrying, f"--server_num={n}", "--worker_num=3") for place, n in places]
    assert found == [found[0]] * 3 and found[0][1] > 0.62  # 0.5 without learning


def test_the_program_of_the_page_learns(carrying: Path) -> None:
    blocks = dict(list_blocks((DOCS / "pytorch.md").read_text()))
    (carrying / "tables.py").write_text(blocks["python tables.py"])
    options = [*find_torch(), "--server_num=2", "--worker_num=2"]
    job = succeeded(LocalPlace(1), carrying, *options, program=["tables.py"], timeout_s=90)
    found = [
        re.fullmatch(r"loss (\S+), row 3 begins with \S+", job.lines(f"trainer/{i}")[-1]) for i in (0, 1)
    ]
    assert all(one and float(one[1]) < 0.6 for one in found), job.launcher.output()  # 0.69 without learning


RESTARTED = """
import os, pathlib, signal
import torch
import pslaunch.torch as ps

saved = pathlib.Path(os.environ["PSLAUNCH_SNAPSHOT_DIR"]) / "saved"
rank, restarts = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
torch.manual_seed(1)
model = torch.nn.Sequential(ps.Embedding("table", 4, "sparse_adam", lr=0.1), torch.nn.Linear(4, 1))
begin = ps.load(saved, model) if saved.exists() else 0
optimizer = ps.DistributedOptimizer(model.parameters(), "adam", lr=0.1)
for step in range(begin, 20):
    torch.manual_seed(100 * step + rank)
    optimizer.zero_grad()
    model(torch.randint(30, (8,))).square().mean().backward()
    optimizer.step()
    if step % 4 == 3:
        ps.save(saved, model, extra=step + 1)
    if not restarts and (rank, step) == (1, int(os.environ["DIES"])):
        os.kill(os.getpid(), signal.SIGKILL)
print(begin, model[0].to_dense(30).tolist(), [p.tolist() for p in model.parameters()], flush=True)
"""


def test_a_restarted_job_goes_on_from_a_checkpoint(carrying: Path) -> None:
    said = []
    for dies in (-1, 10):
        restarts = ["--server_num=2", "--worker_num=2", "--max_restarts=1", "--restart_after=0", *QUICK]
        options = [*find_torch(), *restarts, f"--env=DIES={dies}", f"--snapshot_dir={carrying / str(dies)}"]
        job = succeeded(LocalPlace(1), carrying, *options, timeout_s=90, text=RESTARTED)
        said.append(job.lines("trainer/0")[-1].split(maxsplit=1))
    assert [begin for begin, _ in said] == ["0", "8"] and said[0][1] == said[1][1]


SNAPSHOTS = """
import os, pathlib, signal
import torch
import pslaunch.torch as ps

rank, own = int(os.environ["RANK"]), os.environ["OWN"]
snapshots = pathlib.Path(os.environ["PSLAUNCH_SNAPSHOT_DIR"])
dies = snapshots.name == "dies" and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
torch.manual_seed(1)
top = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
if own == "ddp":
    torch.distributed.init_process_group("gloo")
    top = torch.nn.parallel.DistributedDataParallel(top)
    optimizer = torch.optim.Adam(top.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
table = ps.Embedding("table", 4, "sparse_adam", lr=0.1)
model, drawn = torch.nn.Sequential(table, top), torch.Generator().manual_seed(rank)
if own == "ddp":
    done = ps.resume(model, optimizer, schedule)
else:
    done = ps.resume(model)
    optimizer = ps.DistributedOptimizer(model.parameters(), "adam", lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    for _ in range(done):
        schedule.step()
for step in range(300):
    ids = torch.randint(30, (8,), generator=drawn)
    if step < done:
        continue
    optimizer.zero_grad()
    model(ids).square().mean().backward()
    optimizer.step()
    with torch.no_grad():
        model(ids)  # an evaluation, before all of the step is done
    schedule.step()
    if dies and step % 4 == 1 and any(snapshots.glob("*/manifest.json")):
        os.kill(os.getpid(), signal.SIGKILL)
print(done, table.to_dense(30).tolist(), [p.tolist() for p in model.parameters()], flush=True)
"""


@pytest.mark.parametrize("own", ["ddp", "pservers"])
def test_a_restarted_job_goes_on_from_a_snapshot_with_the_same_bits(carrying: Path, own: str) -> None:
    options = [*find_torch(), "--server_num=2", "--worker_num=2", "--max_restarts=1", "--snapshot_steps=4"]
    said = []
    for name in ("lives", "dies"):
        given = [f"--env=OWN={own}", f"--snapshot_dir={carrying / name}"]
        job = succeeded(LocalPlace(1), carrying, *options, *QUICK, *given, timeout_s=90, text=SNAPSHOTS)
        said.append(job.lines("trainer/0")[-1].split(maxsplit=1))
    assert said[0][0] == "0" and int(said[1][0]) in range(4, 300, 4) and said[0][1] == said[1][1]


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


def test_a_table_is_larger_than_what_a_trainer_may_have(carrying: Path) -> None:
    options = [*find_torch(), "--server_num=2", "--worker_num=1"]  # 400,000 rows of 256 bytes, 64 MiB to have
    job = succeeded(LocalPlace(1), carrying, *options, text=LARGE)
    assert f"rows {[-1.0] * 8} 0.0" in job.lines("trainer/0")
