"""Attributes of parameters and layers by their v2 names: `Param`, `Extra` and their longer aliases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .entry import EntryAttr

__all__ = ["Extra", "ExtraAttr", "ExtraLayerAttribute", "Param", "ParamAttr", "ParameterAttribute"]

Initializer = Callable[[str], npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class ParameterAttribute:
    """Initial values and learning of a parameter. None: the default of the layer or the optimizer.

    `learning_rate` multiplies the optimizer's; `l1_rate`, `l2_rate`, `momentum` and
    `gradient_clipping_threshold` replace its own. With
    `initial_min` and `initial_max` the values are uniform between them, else normal.
    `sparse_update`: only the rows of a batch are fetched and updated. `entry`: the ids that get a row in such
    a table on pservers, as CountFilterEntry(10).
    `initializer` is called with the name and returns the initial values.
    """

    name: str | None = None
    is_static: bool = False
    initial_std: float | None = None
    initial_mean: float | None = None
    initial_max: float | None = None
    initial_min: float | None = None
    l1_rate: float | None = None
    l2_rate: float | None = None
    learning_rate: float | None = None
    momentum: float | None = None
    gradient_clipping_threshold: float | None = None
    sparse_update: bool = False
    update_hooks: Any = None
    initializer: Initializer | None = None
    entry: EntryAttr | None = None

    def __post_init__(self) -> None:
        if self.update_hooks is not None:
            raise ValueError("attr.Param(update_hooks=...): not supported by the bundled runtime")
        if (self.initial_min is None) != (self.initial_max is None):
            raise ValueError("attr.Param: give both initial_min and initial_max, or neither")
        if self.initial_min is not None and (self.initial_std, self.initial_mean) != (None, None):
            raise ValueError("attr.Param: initial_min and initial_max exclude initial_std and initial_mean")
        if (self.initial_min or 0.0) >= (self.initial_max or 0.0) and self.initial_min is not None:
            raise ValueError("attr.Param: initial_min must be below initial_max")
        for rate in ("initial_std", "l1_rate", "l2_rate", "learning_rate", "gradient_clipping_threshold"):
            if not 0.0 <= (getattr(self, rate) or 0.0) < float("inf"):
                raise ValueError(f"attr.Param({rate}={getattr(self, rate)}) must be finite and not negative")
        entry: object = self.entry
        if entry is not None and not isinstance(entry, EntryAttr):
            raise TypeError(f"attr.Param(entry={entry!r}): expected an entry rule, as CountFilterEntry(10)")
        if entry is not None and not self.sparse_update:
            raise ValueError(f"attr.Param(entry={entry!r}) has no effect without sparse_update=True")
        if not 0.0 <= (self.momentum or 0.0) < 1.0:
            raise ValueError(f"attr.Param(momentum={self.momentum}) must be at least 0 and below 1")


@dataclass(frozen=True, slots=True)
class ExtraLayerAttribute:
    """Further attributes of a layer. `drop_rate`: share of outputs set to zero in a training step."""

    error_clipping_threshold: float | None = None
    drop_rate: float | None = None
    device: int | None = None

    def __post_init__(self) -> None:
        if self.error_clipping_threshold is not None:
            raise ValueError("attr.Extra(error_clipping_threshold=...): not supported by the bundled runtime")
        if self.device not in (None, -1):
            raise ValueError(f"attr.Extra(device={self.device}): the bundled runtime computes on the CPU")
        if not 0.0 <= (self.drop_rate or 0.0) < 1.0:
            raise ValueError(f"attr.Extra(drop_rate={self.drop_rate}) must be at least 0 and below 1")


Param = ParamAttr = ParameterAttribute
Extra = ExtraAttr = ExtraLayerAttribute
