"""Values that servers load: files that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from pslaunch.runtime.engine.param_config import ParamConfig
from pslaunch.runtime.engine.parameters import Parameters
from pslaunch.runtime.paddle2.base.loading import read_values
from pslaunch.runtime.pserver.pserver_options import parse_options
from pslaunch.runtime.pserver.threads import STATS, First, Shard

CONFIGS = {"w": ParamConfig(name="w", rows=2, cols=3)}


def save(folder: Path, value: float) -> None:
    parameters = Parameters(CONFIGS)
    parameters["w"] = np.full((2, 3), value)
    parameters.save(folder / "parameters.tar")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(tmp_path: Path, value: float) -> None:
    save(tmp_path, value)
    with pytest.raises(ValueError, match="has values of w that are not finite"):
        read_values(str(tmp_path), CONFIGS)


def test_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 1.0)
    path = tmp_path / "parameters.tar"
    path.write_bytes(path.read_bytes()[:530])
    with pytest.raises(ValueError, match=f"{path}: "):
        read_values(str(tmp_path), CONFIGS)


def test_shard_empties_the_list_of_values_that_it_has_copied() -> None:
    rows = np.ones((1000, 4), np.float32)
    first: list[First] = [("w", rows, 4, 0, 2)]

    def refuse(step: int) -> NoReturn:
        raise AssertionError(step)

    shard = Shard(0, parse_options(["--num_gradient_servers=1"], {}), 0.0, first, refuse)
    shard.stop()
    assert [kind for kind, *_ in shard.join()] == [STATS]
    assert shard.failure is None
    assert first == []
