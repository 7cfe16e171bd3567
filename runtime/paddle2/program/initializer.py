"""Initial values of parameters by PaddlePaddle 2's names. They depend on seed, name and place alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ... import _core
from ...engine.arrays import F32
from ...engine.kernel_numbers import KINDS
from ...engine.param_config import ParamConfig
from ...process.settings import get_settings

__all__ = [
    "Assign", "Constant", "Initializer", "KaimingNormal", "KaimingUniform", "Normal", "TruncatedNormal",
    "Uniform", "XavierNormal", "XavierUniform", "calculate_gain", "set_global_initializer",
]  # fmt: skip

DRAWS = 8  # of a truncated value; later ones are needed once in 10**10 values


class Initializer:
    """Base of all initial values. Those that do not depend on the shape are fields of a configuration."""

    _fields: Mapping[str, Any]

    def begin(self, config: ParamConfig, shape: Sequence[int]) -> ParamConfig:
        """Return the configuration of a parameter of this shape with its initial values, instead of 0."""
        return replace(config, **self._fields)


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Return the factor by which values grow again after a function; `param`: the slope of leaky_relu."""
    slope = 0.01 if param is None else float(param)
    gains = {
        **dict.fromkeys(("sigmoid", "linear"), 1.0),
        "tanh": 5.0 / 3,
        "relu": math.sqrt(2.0),
        "leaky_relu": math.sqrt(2.0 / (1 + slope**2)),
        "selu": 3.0 / 4,
    }
    if nonlinearity not in gains:
        raise ValueError(f"initializer: {nonlinearity=}, expected one of {', '.join(gains)}")
    return gains[nonlinearity]


_usual: dict[bool, Initializer | None] = {}  # by set_global_initializer(); True: of biases


def set_global_initializer(weight_init: Initializer | None, bias_init: Initializer | None = None) -> None:
    """Set the initial values of parameters that name none, until it is called with None."""
    _usual.update({False: weight_init, True: bias_init})


def get_usual(*, is_bias: bool) -> Initializer:
    """Return the initial values of a parameter that names none: 0 for a bias, XavierUniform for a weight."""
    return _usual.get(is_bias) or (Constant() if is_bias else XavierUniform())


class Constant(Initializer):
    """The same value everywhere."""

    def __init__(self, value: float = 0.0) -> None:
        self._fields = {"mean": float(value)}


class Uniform(Initializer):
    """Even between `low` and `high`."""

    def __init__(self, low: float = -1.0, high: float = 1.0, name: str | None = None) -> None:
        if low > high:
            raise ValueError(f"initializer.Uniform: low={low} is above high={high}")
        low, high = float(low), float(high)
        self._fields = _spread((low + high) / 2, (high - low) / 2)


class Normal(Initializer):
    """Normal distribution."""

    def __init__(self, mean: float = 0.0, std: float = 1.0, name: str | None = None) -> None:
        if not 0.0 <= std < float("inf"):
            raise ValueError(f"initializer.Normal: std={std} must be finite and not negative")
        self._fields = {"mean": float(mean), "std": float(std)}


class TruncatedNormal(Normal):
    """Normal distribution, without values further than 2 std from the mean."""

    def begin(self, config: ParamConfig, shape: Sequence[int]) -> ParamConfig:
        return replace(config, **self._fields, initializer=_TruncatedMaker(tuple(shape), **self._fields))


class XavierUniform(Initializer):
    """Even, with a variance of 2 / (fan_in + fan_out) (Glorot and Bengio, AISTATS 2010)."""

    def __init__(
        self, fan_in: float | None = None, fan_out: float | None = None, name: str | None = None
    ) -> None:
        self._fans = fan_in, fan_out

    def _find_std(self, shape: Sequence[int]) -> float:
        fan_in, fan_out = (
            own or own_size for own, own_size in zip(self._fans, _find_fans(shape), strict=True)
        )
        return math.sqrt(2.0 / (fan_in + fan_out))

    def begin(self, config: ParamConfig, shape: Sequence[int]) -> ParamConfig:
        return replace(config, **_spread(0.0, math.sqrt(3.0) * self._find_std(shape)))


class XavierNormal(XavierUniform):
    """Normal distribution with a variance of 2 / (fan_in + fan_out)."""

    def begin(self, config: ParamConfig, shape: Sequence[int]) -> ParamConfig:
        return replace(config, std=self._find_std(shape))


class KaimingUniform(Initializer):
    """Even, with a variance of gain**2 / fan_in: calculate_gain() (He et al., ICCV 2015)."""

    def __init__(
        self, fan_in: float | None = None, negative_slope: float = 0.0, nonlinearity: str = "relu"
    ) -> None:
        self._fan_in, self._gain = fan_in, calculate_gain(nonlinearity, negative_slope)

    def _find_std(self, shape: Sequence[int]) -> float:
        return self._gain / math.sqrt(self._fan_in or _find_fans(shape)[0])

    def begin(self, config: ParamConfig, shape: Sequence[int]) -> ParamConfig:
        return replace(config, **_spread(0.0, math.sqrt(3.0) * self._find_std(shape)))


class KaimingNormal(KaimingUniform):
    """Normal distribution with a variance of gain**2 / fan_in."""

    def begin(self, config: ParamConfig, shape: Sequence[int]) -> ParamConfig:
        return replace(config, std=self._find_std(shape))


class Assign(Initializer):
    """The given values."""

    def __init__(self, value: Any, name: str | None = None) -> None:
        self._values: F32 = np.array(value, dtype=np.float32)

    def begin(self, config: ParamConfig, shape: Sequence[int]) -> ParamConfig:
        if self._values.shape != tuple(shape):
            raise ValueError(
                f"initializer.Assign: the value has the shape {list(self._values.shape)}, the parameter "
                f"{list(shape)}"
            )
        return replace(config, initializer=_GivenMaker(self._values.shape, self._values.tobytes()))


# Makers of equal values are equal: so several values of a program may share a parameter.


@dataclass(frozen=True, slots=True)
class _GivenMaker:
    shape: tuple[int, ...]
    data: bytes

    def __call__(self, name: str) -> F32:
        return np.frombuffer(self.data, np.float32).reshape(self.shape)


def _spread(mean: float, half: float) -> dict[str, Any]:
    return {"kind": "uniform" if half else "normal", "mean": mean, "std": half}


def _find_fans(shape: Sequence[int]) -> tuple[int, int]:
    """Return rows and columns of a matrix, of a vector its size twice, of more axes a convolution's."""
    if len(shape) < 3:
        return math.prod(shape[:1]), math.prod(shape[-1:])
    return math.prod(shape[1:]), shape[0] * math.prod(shape[2:])


@dataclass(frozen=True, slots=True)
class _TruncatedMaker:
    shape: tuple[int, ...]
    mean: float
    std: float

    def __call__(self, name: str) -> F32:
        cols = self.shape[-1]
        values: F32 = np.empty((math.prod(self.shape) // cols, cols), np.float32)
        rows = np.arange(len(values), dtype=np.uint64)
        left = np.ones(values.shape, np.bool_)
        for draw in range(DRAWS):
            fresh: F32 = np.empty_like(values)
            table = _core.hash_name(f"{name}/{draw}" if draw else name)
            _core.init_rows(fresh, rows, get_settings().seed, table, KINDS["normal"], 0.0, 1.0)
            values[left] = fresh[left]
            left = np.abs(values) > 2.0
            if not left.any():
                break
        np.clip(values, -2.0, 2.0, out=values)
        return (np.float32(self.mean) + np.float32(self.std) * values).reshape(self.shape)
