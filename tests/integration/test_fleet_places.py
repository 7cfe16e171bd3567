"""Fleet programs on every backend: the bits of a training do not depend on it."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.fleet import find_results, write_quick_start
from support.jobs import LocalPlace, Place, finished
from support.others import PROGRAMS

EXAMPLE = PROGRAMS.parents[1] / "examples/wide_and_deep"
PLACES = ("fabric_furnished", "mpi_furnished", "k8s")
NUMBERS = ("--server_num=2", "--worker_num=2")

pytestmark = [pytest.mark.seam, pytest.mark.parametrize("place", PLACES, indirect=True)]


def train(place: Place, workspace: Path, *words: str) -> tuple[str, str]:
    """Return what worker 0 has printed, and the digest of the saved values."""
    code, job = finished(place, workspace, *NUMBERS, program=["train.py", *words])
    assert code == 0, job.launcher.output()
    model = place.workspaces(workspace)[0] / "output/parameters.tar"
    return "\n".join(job.lines("trainer/0")), hashlib.sha256(model.read_bytes()).hexdigest()


def test_quick_start_gives_the_bits_of_this_machine(place: Place, workspace: Path) -> None:
    write_quick_start(workspace)
    _, here = train(LocalPlace(1), workspace, "sync", "output")
    text, digest = train(place, workspace, "sync", "output")
    assert find_results(text)[2] > 0.65
    assert digest == here


def test_wide_and_deep_gives_the_bits_of_this_machine(place: Place, workspace: Path) -> None:
    shutil.copytree(EXAMPLE, workspace, ignore=shutil.ignore_patterns("data", "log"), dirs_exist_ok=True)
    make = [sys.executable, "make_data.py", "data", "--lines=6000", "--split_count=2"]
    subprocess.run(make, cwd=workspace, check=True)
    _, here = train(LocalPlace(1), workspace, "--passes=5", "--output=output")
    text, digest = train(place, workspace, "--passes=5", "--output=output")
    aucs = [float(auc) for auc in re.findall(r": AUC (0\.\d{4})$", text, re.MULTILINE)]
    assert aucs == sorted(aucs)
    assert aucs[-1] > aucs[0] + 0.1
    assert digest == here
