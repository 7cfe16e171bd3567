"""Models of examples/recommenders: losses of PaddlePaddle, and jobs that learn, on every backend alike."""

from __future__ import annotations

import functools
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.jobs import LocalPlace, Place, hash_model, succeeded
from support.others import ROOT

EXAMPLE = ROOT / "examples/recommenders"
MODELS = sorted(path.parent.name for path in EXAMPLE.glob("*/config.yaml"))
EVERYWHERE = MODELS if os.environ.get("EVERY_MODEL") else ["deepfm", "din"]  # make models
NUMBERS = ("--server_num=2", "--worker_num=2")
JOBS_OWN = shutil.ignore_patterns("log", "output", "nodefile", "nodes", ".pslaunch", "__pycache__")
LEAST = {"din": 0.54, "esmm": 0.54}  # the areas of these grow slowly
Results = tuple[list[dict[str, float]], str]  # what worker 0 has shown of each tenth batch, and a digest


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example with a little data."""
    folder = tmp_path_factory.mktemp("recommenders") / "ws"
    shutil.copytree(EXAMPLE, folder, ignore=JOBS_OWN)
    make = [sys.executable, "make_data.py", "--lines=4000", "--split_count=2"]
    subprocess.run(make, cwd=folder, check=True)
    return folder


def train(place: Place, workspace: Path, model: str) -> Results:
    """Train a model for a pass, and return the results with the digest of the saved values."""
    words = ["train.py", "-m", f"{model}/config.yaml", "-o", "runner.model_save_path=output"]
    job = succeeded(place, workspace, *NUMBERS, program=words)
    lines = [line for line in job.lines("trainer/0") if "batch: [" in line]
    shown = [{name: float(one) for name, one in re.findall(r"(\w+)\[1\]:\[(\S+?)\]", line)} for line in lines]
    return shown, hash_model(place.workspaces(workspace)[0])


@pytest.fixture(scope="module")
def here(example: Path) -> Callable[[str], Results]:
    """A function that returns the results of a model on this machine."""
    return functools.cache(lambda model: train(LocalPlace(1), example, model))


def list_values(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of all sections, each with their names."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        nested = isinstance(value, dict)
        found |= list_values(value, f"{prefix}{name}.") if nested else {f"{prefix}{name}": value}
    return found


@pytest.mark.parametrize("model", MODELS)
def test_config_has_the_values_of_yaml(model: str) -> None:
    read_config = runpy.run_path(str(EXAMPLE / "config.py"))["read_config"]
    path = EXAMPLE / model / "config.yaml"
    expected = list_values(yaml.safe_load(path.read_text()))
    assert read_config(path) == expected
    assert read_config(path, ["runner.epochs=3"]) == expected | {"runner.epochs": 3}


def test_losses_are_those_of_paddlepaddle() -> None:
    argv = [sys.executable, "steps.py"]
    done = subprocess.run(argv, cwd=EXAMPLE, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"^\| (\w+) ", done.stdout, re.MULTILINE)) == MODELS
    assert done.stdout in (ROOT / "docs/recommenders.md").read_text()


@pytest.mark.parametrize("model", MODELS)
def test_model_learns(here: Callable[[str], Results], model: str) -> None:
    (first, *_, last), _ = here(model)
    areas = [one for name, one in last.items() if "auc" in name]
    assert all(area > LEAST.get(model, 0.62) for area in areas), last  # 0.58 without learning
    assert areas or last["cost"] < 0.85 * first["cost"], (first, last)


@pytest.mark.seam
@pytest.mark.parametrize("place", ["fabric_furnished", "mpi_furnished", "k8s"], indirect=True)
@pytest.mark.parametrize("model", EVERYWHERE)
def test_results_are_those_of_this_machine(
    place: Place, example: Path, here: Callable[[str], Results], workspace: Path, model: str
) -> None:
    expected = here(model)
    shutil.copytree(example, workspace, ignore=JOBS_OWN, dirs_exist_ok=True)
    assert train(place, workspace, model) == expected
