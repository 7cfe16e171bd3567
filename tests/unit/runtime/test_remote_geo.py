"""Rows of a geo trainer's copy, next to a dict of rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from pslaunch.runtime.client.remote_geo import _Rows


@pytest.mark.parametrize("seed", range(3))
def test_rows_are_those_of_a_dict(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, used = _Rows(2), set[int]()
    expected: dict[int, npt.NDArray[np.float32]] = {}
    for step in range(60):
        keys = rng.permutation(200)[: rng.integers(0, 30)].astype(np.uint64) << np.uint64(56)
        missing = rows.find_missing(keys)
        assert set(missing.tolist()) == set(keys.tolist()) - expected.keys()
        values = rng.random((len(missing), 2), np.float32)
        rows.insert(missing, values)
        expected.update(zip(missing.tolist(), values, strict=True))
        for place, key in zip(rows.find(keys), keys.tolist(), strict=True):
            assert rows.keys[place] == key
            assert rows.copy.own[place].tolist() == rows.copy.base[place].tolist() == expected[key].tolist()
        rows.note_used(rows.find(keys))
        used.update(keys.tolist())
        if step % 5 == 4:
            rows.keep_used()
            expected = {key: row for key, row in expected.items() if key in used}
            assert set(rows.keys.tolist()) == used == expected.keys()
            rows.note_pushed()
            used.clear()
    assert rows.count == len(expected)
