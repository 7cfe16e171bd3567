"""Metrics over all workers. All of them call the same functions in the same order, with fetched values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from ...engine.ops.metric import compute_auc
from ...engine.ops.signature import R, make_function
from ..program.program import Variable
from .util_base import UtilBase

__all__ = ["acc", "auc", "mae", "max", "min", "mse", "rmse", "sum"]

_util = UtilBase()


def _reduce(value: npt.ArrayLike, mode: str) -> npt.NDArray[Any]:
    if isinstance(value, Variable | str):
        name = value.name if isinstance(value, Variable) else value
        raise TypeError(f"fleet.metrics: {name} is a variable; fetch it first by Executor.run")
    return _util.all_reduce(value, mode)


def _divide(value: npt.ArrayLike, total: npt.ArrayLike) -> float:
    return float(_reduce(value, "sum").sum() / _reduce(total, "sum").sum())


def _find_auc(positive: npt.ArrayLike, negative: npt.ArrayLike) -> float:
    high, low = (_reduce(one, "sum").reshape(-1) for one in (positive, negative))
    return compute_auc(low, high)


def _define(row: str, text: str, find: Callable[..., R]) -> Callable[..., R]:
    """Return a function, from its name and those of its values; `scope` and `util` have no effect."""

    def call(scope: object, util: object, **given: Any) -> R:
        return find(*given.values())

    return make_function(f"fleet.metrics.{row} | scope util", text, call)


sum = _define("sum input", "the sum over all workers", lambda value: _reduce(value, "sum"))
max = _define("max input", "the maximum over all workers", lambda value: _reduce(value, "max"))
min = _define("min input", "the minimum over all workers", lambda value: _reduce(value, "min"))
acc = _define("acc correct total", "the share of right answers of all workers", _divide)
mae = _define("mae abserr total_ins_num", "the mean absolute error of all workers, from the sums of "
              "static.ctr_metric_bundle()", _divide)  # fmt: skip
mse = _define("mse sqrerr total_ins_num", "the mean squared error of all workers, likewise", _divide)
rmse = _define("rmse sqrerr total_ins_num", "the root of the mean squared error of all workers, likewise",
               lambda *sums: math.sqrt(_divide(*sums)))  # fmt: skip
auc = _define("auc stat_pos stat_neg", "the area under the ROC curve of all workers, from the counts of "
              "static.auc()", _find_auc)  # fmt: skip
