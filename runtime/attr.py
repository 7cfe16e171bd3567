"""Attributes of parameters and layers by their v2 names: `Param`, `Extra` and their longer aliases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from . import publish

__all__ = ["Extra", "ExtraAttr", "ExtraLayerAttribute", "Param", "ParamAttr", "ParameterAttribute"]
publish(__name__, __all__)

Initializer = Callable[[str], npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class ParameterAttribute:
    """How a parameter starts and learns. None: the layer's or the optimizer's own.

    `learning_rate` multiplies the optimizer's, `l2_rate` and `momentum` take its place. With
    `initial_min` and `initial_max` the values are uniform between them, else normal.
    `sparse_update`: only the rows of a batch are fetched and updated.
    `initializer` is called with the name and returns the first values.
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

    def __post_init__(self) -> None:
        for unsupported in ("l1_rate", "gradient_clipping_threshold", "update_hooks"):
            if getattr(self, unsupported) not in (None, 0, 0.0):
                raise ValueError(f"attr.Param({unsupported}=...): the bundled runtime does not have it")
        if (self.initial_min is None) != (self.initial_max is None):
            raise ValueError("attr.Param: initial_min and initial_max come together")
        if self.initial_min is not None and (self.initial_std, self.initial_mean) != (None, None):
            raise ValueError("attr.Param: initial_std and initial_mean, or initial_min and initial_max")
        if (self.initial_min or 0.0) >= (self.initial_max or 0.0) and self.initial_min is not None:
            raise ValueError("attr.Param: initial_min is not below initial_max")
        for rate in ("initial_std", "l2_rate", "learning_rate"):
            if not 0.0 <= (getattr(self, rate) or 0.0) < float("inf"):
                raise ValueError(f"attr.Param({rate}={getattr(self, rate)}) is negative or not finite")
        if not 0.0 <= (self.momentum or 0.0) < 1.0:
            raise ValueError(f"attr.Param(momentum={self.momentum}) is not from 0 to below 1")


@dataclass(frozen=True, slots=True)
class ExtraLayerAttribute:
    """What else a layer does. `drop_rate`: share of its outputs that are zero in a training step."""

    error_clipping_threshold: float | None = None
    drop_rate: float | None = None
    device: int | None = None

    def __post_init__(self) -> None:
        if self.error_clipping_threshold is not None:
            raise ValueError("attr.Extra(error_clipping_threshold=...): the bundled runtime does not have it")
        if self.device not in (None, -1):
            raise ValueError(f"attr.Extra(device={self.device}): the bundled runtime computes on the CPU")
        if not 0.0 <= (self.drop_rate or 0.0) < 1.0:
            raise ValueError(f"attr.Extra(drop_rate={self.drop_rate}) is not from 0 to below 1")


Param = ParamAttr = ParameterAttribute
Extra = ExtraAttr = ExtraLayerAttribute
