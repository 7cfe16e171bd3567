"""Prices of houses in the form of v2's `dataset.uci_housing`: 13 numbers, scaled, and the price.

Reads `housing.data` below `uci_housing/` in PADDLE_DATA_HOME.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ...engine.ops.base import Array
from ...engine.ops.signature import make_function
from .data_home import read_files

__all__ = ["test", "train"]


def _make_reader(begin: float, end: float) -> Callable[[], Iterator[tuple[Array, Array]]]:
    ((_, read),) = read_files("uci_housing", ["housing.data"], "housing.data$")
    rows = np.array(read().split(), float).reshape(-1, 14)
    x = rows[:, :-1]
    x[:] = (x - x.mean(axis=0)) / (x.max(axis=0) - x.min(axis=0))
    return lambda: ((row[:-1], row[-1:]) for row in rows[int(len(rows) * begin) : int(len(rows) * end)])


train = make_function("uci_housing.train", "a reader of the first 80 % of the houses",
                      lambda: _make_reader(0.0, 0.8))  # fmt: skip
test = make_function("uci_housing.test", "a reader of the others", lambda: _make_reader(0.8, 1.0))
