"""Rows of a geo trainer's copy, next to a dict of rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from pslaunch.runtime.client.remote_geo import _Rows
from pslaunch.runtime.engine.keeping import NONE
from pslaunch.runtime.engine.kernel_numbers import Optim
from pslaunch.runtime.engine.param_config import ParamConfig

Row = npt.NDArray[np.float32]


@pytest.mark.parametrize("seed", range(3))
def test_rows_are_those_of_a_dict(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = _Rows(ParamConfig(name="e", rows=200, cols=2), Optim(method="sgd", learning_rate=1.0), beside=True)
    expected: dict[int, tuple[Row, Row]] = {}
    for step in range(60):
        keys = rng.permutation(200)[: rng.integers(0, 30)].astype(np.uint64) << np.uint64(56)
        missing, others = rows.sort_out(keys)
        assert missing.tolist() == [key for key in keys.tolist() if key not in expected]
        assert sorted(others.tolist()) == sorted(key for key in keys.tolist() if key in expected)
        own, base, grads = rng.integers(0, 9, (3, len(keys), 2)).astype(np.float32)
        base = own if step % 2 else base
        new = own if step % 2 else np.concatenate([own, base], axis=1)
        rows.core.load(missing, new[: len(missing)], NONE)
        expected |= {key: (own[i], base[i]) for i, key in enumerate(missing.tolist())}
        rows.core.learn(0.5, step + 1, keys, grads)
        for i, key in enumerate(keys.tolist()):
            expected[key] = expected[key][0] - grads[i] / 2, expected[key][1]
        assert rows.read(keys).tolist() == [expected[key][0].tolist() for key in keys.tolist()]
        if step % 7 == 6:
            keys, changes = rows.take_changes(3)
            assert sorted(keys.tolist()) == sorted(expected)
            pairs = [expected[key] for key in keys.tolist()]
            assert changes.tolist() == [((base - own) / np.float32(3)).tolist() for own, base in pairs]
            expected.clear()
