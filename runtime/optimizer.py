"""Optimizers by their v2 names; the C kernels apply them to parameters.

Formulas: csrc/ps_optim.h. The gradient is the sum over all samples of all trainers.
"""

from __future__ import annotations

import difflib
from typing import Any

from . import publish
from .kernel_numbers import Method, Optim
from .param_config import ParamConfig
from .strategy import RATIO, Strategy, make_v2_strategy

__all__ = ["SGD", "AdaGrad", "Adam", "L2Regularization", "Momentum", "Optimizer"]
publish(__name__, __all__)


class L2Regularization:
    """Pulls every value towards 0 at `rate`, unless its parameter has an l2_rate.

    For a table with sparse_update only the rows of a step; v2 also catches up on the steps that a row missed.
    """

    def __init__(self, rate: float) -> None:
        if not rate >= 0.0:
            raise ValueError(f"L2Regularization: rate={rate} is negative")
        self.rate = float(rate)


_CLIP = "gradient_clipping_threshold"
_OPTIONS = ("learning_rate", "regularization", _CLIP, "is_async", RATIO, "batch_size")
_ABSENT = (
    "model_average",
    "learning_rate_decay_a",
    "learning_rate_decay_b",
    "learning_rate_schedule",
    "learning_rate_args",
)


class Optimizer:
    """Base of all optimizers: `learning_rate` (default 1e-3) and `regularization`.

    `gradient_clipping_threshold`: greatest magnitude of a value of the gradient, summed over all trainers.
    `is_async`: pservers apply the gradients of each trainer as they come, and drop those that come later than
    `async_lagged_grad_discard_ratio` allows (docs/training.md).
    `batch_size` has no effect, as in v2. Options of v2 that the bundled runtime lacks are errors.
    """

    __slots__ = ("_is_async", "_strategy", "clip", "decay", "learning_rate", "momentum", "numbers", "warning")
    method: Method = "sgd"

    def __init__(self, **options: Any) -> None:
        for name, value in options.items():
            self._check(name, value)
        self.learning_rate = float(options.get("learning_rate", 1e-3))
        if not 0.0 <= self.learning_rate < float("inf"):
            raise ValueError(
                f"{self._name}: learning_rate={self.learning_rate} must be finite and not negative"
            )
        regularization = options.get("regularization")
        self.decay = regularization.rate if regularization is not None else 0.0
        self.momentum, self.numbers = 0.0, dict[str, float]()
        self.clip = float(options.get(_CLIP) or 0.0)
        if not 0.0 <= self.clip < float("inf"):
            raise ValueError(f"{self._name}: {_CLIP}={self.clip} must be finite and not negative")
        self._is_async = bool(options.get("is_async"))
        self._strategy, self.warning = make_v2_strategy(self._is_async, options.get(RATIO), self._name)

    @property
    def strategy(self) -> Strategy:
        """Mode of the training with pservers (docs/training.md); an error if is_async has chosen it."""
        return self._strategy

    @strategy.setter
    def strategy(self, value: Strategy) -> None:
        if not isinstance(value, Strategy):
            raise TypeError(
                f'{self._name}: strategy={value!r}, expected a Strategy, as Strategy(mode="async")'
            )
        if self._is_async:
            raise ValueError(
                f"{self._name}: is_async=True and strategy (now {value}) both choose the mode; remove one"
            )
        self._strategy = value

    @property
    def _name(self) -> str:
        return f"optimizer.{type(self).__name__}"

    def _check(self, name: str, value: object) -> None:
        if name in _ABSENT:
            if value is None:
                return
            raise ValueError(f"{self._name}({name}={value!r}): not supported by the bundled runtime")
        if name not in _OPTIONS:
            near = difflib.get_close_matches(name, (*_OPTIONS, "momentum"), 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise TypeError(f"{self._name} has no option {name}{hint}")
        if name == "regularization" and not isinstance(value, L2Regularization | None):
            raise TypeError(f"{self._name}: regularization={value!r}, expected L2Regularization")

    def make_rule(self, config: ParamConfig) -> Optim:
        """Return this optimizer's rule for a parameter; raises ValueError for unsupported attributes."""
        if config.momentum and self.method != "sgd":
            raise ValueError(f"parameter {config.name}: {self._name} does not support momentum")
        momentum = self.momentum if config.momentum is None else config.momentum
        return Optim(
            method="momentum" if self.method == "sgd" and momentum > 0.0 else self.method,
            learning_rate=self.learning_rate * config.learning_rate,
            momentum=momentum,
            decay=self.decay if config.decay is None else config.decay,
            clip=self.clip,
            **self.numbers,
        )


class SGD(Optimizer):
    """p -= lr * g."""

    __slots__ = ()


class Momentum(Optimizer):
    """m = momentum * m - lr * g; p += m. Without `momentum`, or with 0, the same as SGD."""

    __slots__ = ()

    def __init__(self, momentum: float | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.momentum = float(momentum or 0.0)
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"optimizer.Momentum: momentum={momentum} must be at least 0 and below 1")


class AdaGrad(Optimizer):
    """h += g * g; p -= lr * g / sqrt(h + 1e-6)."""

    __slots__ = ()
    method: Method = "adagrad"


class Adam(Optimizer):
    """p -= lr * m / (sqrt(v) + epsilon), with the moments m and v of the gradient, their first bias removed.

    For a table with sparse_update only the rows of a step; v2 has no such tables with Adam.
    """

    __slots__ = ()
    method: Method = "adam"

    def __init__(
        self, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, **options: Any
    ) -> None:
        super().__init__(**options)
        self.numbers = {"beta1": float(beta1), "beta2": float(beta2), "epsilon": float(epsilon)}
        for name, value in self.numbers.items():
            if not 0.0 <= value < 1.0:
                raise ValueError(f"optimizer.Adam: {name}={value} must be at least 0 and below 1")
