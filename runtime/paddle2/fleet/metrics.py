"""Metrics over all workers. All of them call the same functions in the same order, with fetched values."""

from __future__ import annotations

import math
from typing import Any

import numpy.typing as npt

from ...engine.ops.metric import compute_auc
from ..program.program import Variable
from .util_base import UtilBase

__all__ = ["acc", "auc", "mae", "max", "min", "mse", "rmse", "sum"]

Array = npt.NDArray[Any]
_util = UtilBase()


def sum(input: npt.ArrayLike, scope: None = None, util: UtilBase | None = None) -> Array:
    """Return the sum over all workers."""
    return _reduce(input, "sum")


def max(input: npt.ArrayLike, scope: None = None, util: UtilBase | None = None) -> Array:
    """Return the maximum over all workers."""
    return _reduce(input, "max")


def min(input: npt.ArrayLike, scope: None = None, util: UtilBase | None = None) -> Array:
    """Return the minimum over all workers."""
    return _reduce(input, "min")


def acc(
    correct: npt.ArrayLike, total: npt.ArrayLike, scope: None = None, util: UtilBase | None = None
) -> float:
    """Return the share of right answers of all workers."""
    return float(_reduce(correct, "sum").sum() / _reduce(total, "sum").sum())


def mae(
    abserr: npt.ArrayLike, total_ins_num: npt.ArrayLike, scope: None = None, util: UtilBase | None = None
) -> float:
    """Return the mean absolute error of all workers, from the sums of static.ctr_metric_bundle()."""
    return acc(abserr, total_ins_num)


def mse(
    sqrerr: npt.ArrayLike, total_ins_num: npt.ArrayLike, scope: None = None, util: UtilBase | None = None
) -> float:
    """Return the mean squared error of all workers, likewise."""
    return acc(sqrerr, total_ins_num)


def rmse(
    sqrerr: npt.ArrayLike, total_ins_num: npt.ArrayLike, scope: None = None, util: UtilBase | None = None
) -> float:
    """Return the root of the mean squared error of all workers, likewise."""
    return math.sqrt(mse(sqrerr, total_ins_num))


def auc(
    stat_pos: npt.ArrayLike, stat_neg: npt.ArrayLike, scope: None = None, util: UtilBase | None = None
) -> float:
    """Return the area under the ROC curve of all workers, from the counts of static.auc()."""
    high, low = (_reduce(one, "sum").reshape(-1) for one in (stat_pos, stat_neg))
    return compute_auc(low, high)


def _reduce(value: npt.ArrayLike, mode: str) -> Array:
    if isinstance(value, Variable | str):
        name = value.name if isinstance(value, Variable) else value
        raise TypeError(f"fleet.metrics: {name} is a variable; fetch it first by Executor.run")
    return _util.all_reduce(value, mode)
