"""Fleet programs on every backend: the bits of `sync` do not depend on it, and all modes learn."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.jobs import LocalPlace, Place, hash_model, succeeded
from support.others import PROGRAMS

EXAMPLE = PROGRAMS.parents[1] / "examples/wide_and_deep"
PLACES = ("fabric_furnished", "mpi_furnished", "k8s")
NUMBERS = ("--server_num=2", "--worker_num=2")
PASSES = 3
JOBS_OWN = shutil.ignore_patterns("log", "output", "nodefile", "nodes", ".pslaunch", "__pycache__")

pytestmark = [pytest.mark.seam, pytest.mark.parametrize("place", PLACES, indirect=True)]


def train(place: Place, workspace: Path, *words: str) -> tuple[str, str]:
    """Return what worker 0 has printed, and the digest of the saved values."""
    job = succeeded(place, workspace, *NUMBERS, program=["train.py", *words])
    return "\n".join(job.lines("trainer/0")), hash_model(place.workspaces(workspace)[0])


def train_wide_and_deep(place: Place, workspace: Path, mode: str, passes: int) -> tuple[list[float], str]:
    """Return the AUC before and after each pass, and the digest of the saved values."""
    text, digest = train(place, workspace, f"--mode={mode}", f"--passes={passes}", "--output=output")
    return [float(auc) for auc in re.findall(r": AUC (0\.\d{4})$", text, re.MULTILINE)], digest


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example with a little data."""
    folder = tmp_path_factory.mktemp("wide_and_deep") / "ws"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("data", "log", "__pycache__"))
    make = [sys.executable, "make_data.py", "data", "--lines=6000", "--split_count=2"]
    subprocess.run(make, cwd=folder, check=True)
    return folder


@pytest.fixture(scope="module")
def here(example: Path) -> tuple[list[float], str]:
    """Results of `sync` on this machine."""
    return train_wide_and_deep(LocalPlace(1), example, "sync", PASSES)


def test_wide_and_deep_gives_the_bits_of_this_machine(
    place: Place, workspace: Path, example: Path, here: tuple[list[float], str]
) -> None:
    shutil.copytree(example, workspace, ignore=JOBS_OWN, dirs_exist_ok=True)
    aucs, digest = train_wide_and_deep(place, workspace, "sync", PASSES)
    assert aucs == sorted(aucs)
    assert aucs[-1] > aucs[0] + 0.05
    assert (aucs, digest) == here


@pytest.mark.parametrize("mode", ["async", "geo"])
def test_wide_and_deep_learns_in_other_modes_as_well(
    place: Place, workspace: Path, example: Path, here: tuple[list[float], str], mode: str
) -> None:
    shutil.copytree(example, workspace, ignore=JOBS_OWN, dirs_exist_ok=True)
    (before, after), _ = train_wide_and_deep(place, workspace, mode, 1)
    (before_here, sync, *_), _ = here
    assert before == before_here
    assert after > before + 0.02
    assert after >= sync - 0.01
