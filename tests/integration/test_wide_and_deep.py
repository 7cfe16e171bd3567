"""examples/wide_and_deep learns as a job in every mode: the AUC of lines that nobody has learned from."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.jobs import LocalPlace, succeeded, until_nothing_runs

EXAMPLE = Path(__file__).parents[2] / "examples" / "wide_and_deep"
MODES = ("sync", "async", "geo")


@pytest.fixture(scope="module")
def workspace_with_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example with the data of make_data.py."""
    folder = tmp_path_factory.mktemp("wide_and_deep") / "ws"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("data", "__pycache__", "log"))
    subprocess.run([sys.executable, "make_data.py"], cwd=folder, check=True)
    return folder


def train(folder: Path, mode: str) -> list[float]:
    """Return the AUC before and after one pass, which all workers show."""
    job = succeeded(
        LocalPlace(1), folder, "--server_num=2", "--worker_num=2", program=["train.py", f"--mode={mode}"]
    )
    until_nothing_runs(2.0)
    first, second = ([line for line in job.lines(f"trainer/{i}") if "AUC" in line] for i in range(2))
    assert first == second
    return [float(auc) for auc in re.findall(r"^\w+(?: 0)?: AUC (0\.\d{4})$", "\n".join(first), re.MULTILINE)]


@pytest.mark.slow
def test_one_pass_is_enough_in_every_mode(workspace_with_data: Path) -> None:
    (before, sync), *others = (train(workspace_with_data, mode) for mode in MODES)
    assert before == pytest.approx(0.5, abs=0.05)
    assert sync >= 0.795  # 0.785 with the rate of one worker
    assert all(auc >= sync - 0.02 for _, auc in others), (sync, others)
