"""Programs of examples/book learn, alone and as jobs with pservers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.jobs import LocalPlace, succeeded
from support.others import ROOT

EXAMPLE = ROOT / "examples/book"
PASSES = {"fit_a_line": 4, "recommender_system": 5, "understand_sentiment": 4, "click_through_rate": 4}


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example with its data."""
    folder = tmp_path_factory.mktemp("book") / "ws"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("data", "log", "output", "__pycache__"))
    made = subprocess.run([sys.executable, "make_data.py"], cwd=folder, check=True, capture_output=True)
    assert b"stand-ins" in made.stdout
    return folder


@pytest.mark.parametrize(("program", "passes"), PASSES.items())
def test_program_learns_alone_and_with_pservers(book: Path, program: str, passes: int) -> None:
    env = {**os.environ, "PADDLE_DATA_HOME": "data", "PASSES": str(passes)}
    argv = [sys.executable, f"{program}.py"]
    done = subprocess.run(argv, cwd=book, env=env, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    options = ("--server_num=2", "--worker_num=2", "--env=PADDLE_DATA_HOME=data", f"--env=PASSES={passes}")
    job = succeeded(LocalPlace(1), book, *options, program=[f"{program}.py"])
    for text in (done.stdout, *("\n".join(job.lines(f"trainer/{i}")) for i in range(2))):
        costs = [float(cost) for cost in re.findall(r"^Test \d+, Cost ([\d.]+)", text, re.MULTILINE)]
        assert len(costs) == passes
        assert costs[-1] < 0.96 * costs[0], text
