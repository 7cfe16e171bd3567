"""Static programs give the values of PaddlePaddle; docs/fleet.md lists its names."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from support.others import PROGRAMS, paddle_python
from support.pages import read_name_tables

pytestmark = pytest.mark.slow


def run(python: Path | str, program: Path, folder: Path) -> str:
    done = subprocess.run(
        [python, program], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_both(name: str, folder: Path) -> tuple[str, str]:
    """Return what a program prints with this runtime, and with PaddlePaddle."""
    text = (PROGRAMS / name).read_text()
    changed = text.replace("import paddle.nn", "import pslaunch.runtime.nn").replace(
        "import paddle\n", "import pslaunch.runtime as paddle\n"
    )
    (folder / "program.py").write_text(changed)
    found = run(sys.executable, folder / "program.py", folder)
    return found, run(paddle_python(), PROGRAMS / name, folder)


def test_values_are_those_of_paddlepaddle(tmp_path: Path) -> None:
    found, expected = (json.loads(one.splitlines()[-1]) for one in run_both("static_steps.py", tmp_path))
    assert set(found) == set(expected) == {"SGD", "Momentum", "Adagrad", "Adam"}
    for name, values in expected.items():
        both = np.array(found[name]), np.array(values)
        (costs, areas), (their_costs, their_areas) = ((a[:, [0, 1, 4]], a[:, [2, 3]]) for a in both)
        np.testing.assert_allclose(costs, their_costs, rtol=2e-4, atol=2e-5, err_msg=name)
        # A sample may be in the next bucket.
        np.testing.assert_allclose(areas, their_areas, atol=5e-3, err_msg=name)


def test_functions_of_tensors_have_values_and_gradients_of_paddlepaddle(tmp_path: Path) -> None:
    found, expected = (json.loads(one.splitlines()[-1]) for one in run_both("tensor_steps.py", tmp_path))
    assert list(found) == list(expected)
    for name, steps in expected.items():
        ours, theirs = np.array(found[name]), np.array(steps)
        assert ours.shape == theirs.shape, name
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5, err_msg=name)


def test_learning_rates_and_their_training_are_those_of_paddlepaddle(tmp_path: Path) -> None:
    found, expected = (json.loads(one.splitlines()[-1]) for one in run_both("schedule_steps.py", tmp_path))
    assert [list(found[kind]) for kind in found] == [list(expected[kind]) for kind in expected]
    for kind, values in expected.items():
        for name, theirs in values.items():
            tolerance = 1e-3 if kind == "losses" else 1e-12
            np.testing.assert_allclose(found[kind][name], theirs, rtol=tolerance, atol=1e-15, err_msg=name)


def test_every_optimizer_loses_as_that_of_paddlepaddle(tmp_path: Path) -> None:
    found, expected = (json.loads(one.splitlines()[-1]) for one in run_both("optimizer_steps.py", tmp_path))
    assert list(found) == list(expected)
    for name, theirs in expected.items():
        assert len(theirs) == 20
        np.testing.assert_allclose(found[name], theirs, rtol=2e-5, err_msg=name)


def test_training_from_datasets_gives_the_values_of_paddlepaddle(tmp_path: Path) -> None:
    pattern = r"^time: \[[-0-9: ]+\], (batch: \[\d+\], loss\[1\]):\[(\S+)\]$"
    found, expected = (
        re.findall(pattern, one, re.MULTILINE) for one in run_both("dataset_steps.py", tmp_path)
    )
    assert [text for text, _ in found] == [text for text, _ in expected]
    assert len(found) == 2 * 3  # batches of each kind
    losses, theirs = ([float(loss) for _, loss in one] for one in (found, expected))
    np.testing.assert_allclose(losses, theirs, rtol=1e-4)


# Prints, for each module, its public names and those that it has besides.
NAMES = """
import functools, json, sys
import paddle

modules = {name: functools.reduce(getattr, name.split(".")[1:], paddle) for name in sys.argv[1:]}
print(json.dumps({name: [getattr(one, "__all__", []), dir(one)] for name, one in modules.items()}))
"""
OLDER = ("of PaddlePaddle 1.7", "v2's")


def test_page_has_every_public_name_of_paddlepaddle_and_no_other() -> None:
    tables = read_name_tables()
    argv = [str(paddle_python()), "-c", NAMES, *tables]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    for module, (public, every) in json.loads(done.stdout.splitlines()[-1]).items():
        states = tables[module]
        if module != "paddle":  # its page says that functions without a row are absent
            assert set(public) <= set(states), module
        for name in set(states) - {*public, *every}:
            assert states[name].startswith("ours: ") or any(one in states[name] for one in OLDER), name
