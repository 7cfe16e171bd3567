"""Static programs give the values of PaddlePaddle, with only their imports changed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.others import PROGRAMS, paddle_python

pytestmark = pytest.mark.slow


def run(python: Path | str, program: Path) -> dict[str, Any]:
    done = subprocess.run([python, program], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_values_are_those_of_paddlepaddle(tmp_path: Path) -> None:
    expected = run(paddle_python(), PROGRAMS / "static_steps.py")
    text = (PROGRAMS / "static_steps.py").read_text()
    changed = text.replace("import paddle.nn", "import pslaunch.runtime.nn").replace(
        "import paddle\n", "import pslaunch.runtime as paddle\n"
    )
    (tmp_path / "program.py").write_text(changed)
    found = run(sys.executable, tmp_path / "program.py")
    assert set(found) == set(expected) == {"SGD", "Momentum", "Adagrad", "Adam"}
    for name, values in expected.items():
        both = np.array(found[name]), np.array(values)
        (costs, areas), (their_costs, their_areas) = ((a[:, [0, 1, 4]], a[:, [2, 3]]) for a in both)
        np.testing.assert_allclose(costs, their_costs, rtol=2e-4, atol=2e-5, err_msg=name)
        # A sample may be in the next bucket.
        np.testing.assert_allclose(areas, their_areas, atol=5e-3, err_msg=name)
