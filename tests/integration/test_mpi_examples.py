"""examples/mpi4py on hosts, with real mpi4py and both versions of Open MPI."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from support.jobs import succeeded
from support.openmpi import MpiPlace
from testbed import Hosts

EXAMPLES = Path(__file__).parents[2] / "examples/mpi4py"


def test_examples_of_mpi4py_run_beside_pservers_and_without(
    hosts: Hosts, workspace: Path, major: int
) -> None:
    shutil.copytree(EXAMPLES, workspace, dirs_exist_ok=True)
    for host in hosts:
        host.show_installation()
    place, python = MpiPlace(hosts, major), f"--python={sys.executable}"
    job = succeeded(place, workspace, python, "--server_num=2", "--worker_num=3", program=["mean_cost.py"])
    said = [job.lines(f"trainer/{rank}") for rank in range(3)]
    passes = [[line for line in lines if "mean cost of 3 trainers" in line] for lines in said]
    assert len(passes[0]) == 3 and passes == passes[:1] * 3
    job = succeeded(place, workspace, python, "--server_num=0", "--worker_num=3", program=["squares.py"])
    assert job.lines("trainer/0") == ["sum of squares 328350, computed by ranks [1, 2]"]
