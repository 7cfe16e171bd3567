"""A program of torch.distributed, unchanged: the launcher is of use without the runtime and pservers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.jobs import QUICK, LocalPlace, Place, succeeded, until_nothing_runs
from support.others import program, torch_python
from support.pages import DOCS, list_blocks

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("place", ["local", "fabric"], indirect=True)
def test_ranks_of_torch_end_with_the_same_weights(place: Place, workspace: Path) -> None:
    name = program("torch_train.py", workspace)
    options = [f"--python={torch_python()}", "--server_num=0", "--worker_num=3"]
    job = succeeded(place, workspace, *options, program=[name], timeout_s=90)
    weights = set()
    for rank in range(3):
        text = "\n".join(job.lines(f"trainer/{rank}"))
        shape = rf"^rank {rank} of 3: loss (\S+) -> (\S+), weights (\[.*\])$"
        found = re.search(shape, text, re.MULTILINE)
        assert found and float(found[2]) < float(found[1]), text
        weights.add(found[3])
    assert len(weights) == 1
    until_nothing_runs(2.0)


RESTARTED = """
import os, signal
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, restarts = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
kept = os.path.join(os.environ["PSLAUNCH_SNAPSHOT_DIR"], "state")
torch.manual_seed(1)
model, begin = torch.nn.Linear(4, 1), 0
if restarts:
    begin, state = torch.load(kept)
    model.load_state_dict(state)
for step in range(begin, 20):
    torch.manual_seed(100 * step + rank)
    model(torch.randn(8, 4)).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.data -= 0.1 * parameter.grad
        parameter.grad = None
    if rank == 0:
        os.makedirs(os.path.dirname(kept), exist_ok=True)
        torch.save((step + 1, model.state_dict()), kept + ".new")
        os.replace(kept + ".new", kept)
    if not restarts and (rank, step) == (1, int(os.environ["DIES"])):
        os.kill(os.getpid(), signal.SIGKILL)
print(restarts, begin > 0, [float(w) for p in model.parameters() for w in p.flatten()], flush=True)
dist.destroy_process_group()
"""


def test_a_program_with_its_own_state_goes_on_from_it(workspace: Path) -> None:
    said = []
    for dies, count in ((-1, 0), (9, 1)):
        options = ["--server_num=0", "--worker_num=2", "--max_restarts=1", "--restart_after=0", *QUICK]
        more = [f"--python={torch_python()}", f"--env=DIES={dies}"]
        job = succeeded(LocalPlace(1), workspace, *options, *more, timeout_s=90, text=RESTARTED)
        (line,) = job.lines("trainer/1")
        assert line.startswith(f"{count} {bool(count)} ")
        said.append(line.split(maxsplit=2)[2])
    assert said[0] == said[1]


def test_the_program_of_the_page_learns(workspace: Path) -> None:
    (text,) = (
        text for info, text in list_blocks((DOCS / "pytorch.md").read_text()) if info == "python ddp.py"
    )
    (workspace / "ddp.py").write_text(text)
    options = [f"--python={torch_python()}", "--worker_num=2"]
    job = succeeded(LocalPlace(1), workspace, *options, program=["ddp.py"], timeout_s=90)
    assert [job.lines(f"trainer/{rank}")[-1] for rank in (0, 1)] == [
        f"rank {rank} of 2: loss 0.0000" for rank in (0, 1)
    ]
