"""A PyTorch program under `pslaunch local`: the launcher is of use without the runtime and pservers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.jobs import LocalPlace, finished, until_nothing_runs
from support.others import program, torch_python

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("nodes", [1, 2])
def test_two_ranks_over_gloo_end_with_the_same_weights(workspace: Path, nodes: int) -> None:
    name = program("torch_train.py", workspace)
    options = [f"--python={torch_python()}", "--server_num=0", "--worker_num=2"]
    code, job = finished(LocalPlace(nodes), workspace, *options, program=[name], timeout_s=90)
    assert code == 0, job.launcher.output()
    results = {}
    for rank in (0, 1):
        text = "\n".join(job.lines(f"trainer/{rank}"))
        found = re.search(rf"^rank {rank} of 2: loss (\S+) -> (\S+), weights (\[.*\])$", text, re.MULTILINE)
        assert found and float(found[2]) < float(found[1]), text
        results[rank] = found[3]
    assert results[0] == results[1]
    until_nothing_runs(2.0)
