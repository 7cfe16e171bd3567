"""Optimizers by their names in v2 and in PaddlePaddle 2; the C kernels apply them to parameters.

Formulas: csrc/kernels/ps_optim.h. In v2 the gradient is the sum over all samples of all trainers, in static
mode that of the program's loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from .. import _core
from ..shared.env import suggest
from . import lr
from .kernel_numbers import SCHEDULES, Method, Optim, Schedule
from .param_config import ParamConfig
from .regularizer import L2Decay
from .strategy import RATIO, Strategy, make_v2_strategy

__all__ = ["SGD", "AdaGrad", "Adagrad", "Adam", "L2Regularization", "Momentum", "Optimizer", "lr"]


Rate = float | lr.LRScheduler


class L2Regularization:
    """Pulls every value towards 0 at `rate`, unless its parameter has an l2_rate.

    For a table with sparse_update only the rows of a step; v2 also catches up on the steps that a row missed.
    """

    def __init__(self, rate: float) -> None:
        if not rate >= 0.0:
            raise ValueError(f"L2Regularization: rate={rate} is negative")
        self.rate = float(rate)


_CLIP = "gradient_clipping_threshold"
_SCHEDULE = "learning_rate_schedule"
_DECAYS = ("learning_rate_decay_a", "learning_rate_decay_b")
_ARGS = "learning_rate_args"
_OPTIONS = (_SCHEDULE, *_DECAYS, _ARGS, "regularization", _CLIP, "is_async", RATIO, "batch_size")
_NEWER = ("weight_decay", "lazy_mode", "name")  # of PaddlePaddle 2
_ABSENT = (
    "model_average", "parameters", "grad_clip", "multi_precision", "use_multi_tensor", "use_nesterov",
)  # fmt: skip


def make_schedule(options: Mapping[str, Any]) -> Schedule:
    """Return the schedule of v2's options; raises ValueError if they do not go together."""
    kind = options.get(_SCHEDULE) or "poly"  # v2's default: with a and b of 0 the rate is constant
    if kind not in SCHEDULES:
        hint = suggest(kind, SCHEDULES, f", expected one of {', '.join(SCHEDULES)}")
        raise ValueError(f"{_SCHEDULE}={kind!r}{hint}")
    args = options.get(_ARGS) or ""
    manual = kind in ("manual", "pass_manual")
    if bool(args) != manual:
        unused = f"which has no effect with the schedule {kind}"
        remedy = "expected text as '1000:1.0,2000:0.5'" if manual else unused
        raise ValueError(f"{_ARGS}={args!r}, {remedy}")
    a, b = (float(options.get(name) or 0.0) for name in _DECAYS)
    schedule = Schedule(kind=kind, a=a, b=b, segments=_parse_segments(args) if manual else ())
    _core.find_rate(schedule.pack(), 1.0, 0, 0)  # checks the numbers
    return schedule


def _parse_segments(args: str) -> tuple[tuple[int, float], ...]:
    segments = []
    for piece in args.split(","):
        last, _, factor = piece.partition(":")
        try:
            segments.append((int(last), float(factor)))
        except ValueError:
            expected = "the end of a segment, a colon and a factor of the learning rate, as 1000:0.5"
            raise ValueError(f"{_ARGS}={args!r}: {piece!r}, expected {expected}") from None
    if min(last for last, _ in segments) < 0:
        raise ValueError(f"{_ARGS}={args!r}: the end of a segment is negative")
    return tuple(segments)


@runtime_checkable
class Loss(Protocol):
    """A value that the default main program of static mode can learn to reduce."""

    def be_minimized(self, optimizer: Optimizer) -> None: ...


def make_loss_error(name: str) -> ValueError:
    """Return the error for a loss that is none of the default main program."""
    return ValueError(
        f"minimize: {name} is not a variable of the default main program; call minimize in the "
        "program_guard of its program"
    )


def refuse_choices(parameters: object, no_grad_set: object) -> None:
    """Raise ValueError for arguments of minimize() that choose the parameters that learn."""
    for name, value in (("parameters", parameters), ("no_grad_set", no_grad_set)):
        if value is not None:
            raise ValueError(f"minimize: {name} is not in this runtime; use ParamAttr(trainable=False)")


class Optimizer:
    """Base of all optimizers: `learning_rate` (default 1e-3) and `regularization`.

    `learning_rate` is a number, or a scheduler of optimizer.lr, which has the rate of each update.

    `learning_rate_schedule`, with `learning_rate_decay_a`, `learning_rate_decay_b` and `learning_rate_args`:
    the learning rate as a function of the samples of all trainers so far (docs/training.md).

    `gradient_clipping_threshold`: greatest magnitude of a value of the gradient, summed over all trainers.
    `is_async`: pservers apply the gradients of each trainer as they come, and drop those that come later than
    `async_lagged_grad_discard_ratio` allows (docs/training.md).
    `batch_size` has no effect, as in v2. Options that the bundled runtime lacks are errors. `weight_decay` is
    PaddlePaddle 2's regularization, a number or L2Decay. `lazy_mode` has no effect: of a table with sparse
    updates, only the rows of a step are changed.
    """

    __slots__ = (
        "_is_async", "_strategy", "clip", "decay", "learning_rate", "momentum", "numbers", "schedule",
        "scheduler", "warning",
    )  # fmt: skip
    method: Method = "sgd"

    def __init__(self, learning_rate: Rate = 1e-3, **options: Any) -> None:
        for name, value in options.items():
            self._check(name, value)
        self.scheduler = learning_rate if isinstance(learning_rate, lr.LRScheduler) else None
        if self.scheduler is not None and options.get(_SCHEDULE):
            raise ValueError(
                f"{self._name}: {_SCHEDULE} and a scheduler as learning_rate both change the rate; remove one"
            )
        self.learning_rate = 1.0 if isinstance(learning_rate, lr.LRScheduler) else float(learning_rate)
        if not 0.0 <= self.learning_rate < float("inf"):
            raise ValueError(
                f"{self._name}: learning_rate={self.learning_rate} must be finite and not negative"
            )
        try:
            self.schedule = make_schedule(options)
        except ValueError as e:
            raise ValueError(f"{self._name}: {e}") from None
        regularization = options.get("regularization")
        decay = options.get("weight_decay") or 0.0
        self.decay = float(decay.coeff if isinstance(decay, L2Decay) else decay)
        if regularization is not None:
            self.decay = regularization.rate
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
    def factor(self) -> float:
        """Factor of `learning_rate` in the next update: the rate of the scheduler, else 1."""
        if self.scheduler is None:
            return 1.0
        rate = float(self.scheduler())
        if not 0.0 <= rate < float("inf"):
            raise ValueError(f"{self._name}: the rate of its scheduler is {rate}, expected 0 or more")
        return rate

    def get_lr(self) -> float:
        """Return the learning rate of the next update, without options learning_rate_schedule."""
        return self.learning_rate * self.factor

    @property
    def _name(self) -> str:
        return f"optimizer.{type(self).__name__}"

    def _check(self, name: str, value: object) -> None:
        if name in _ABSENT:
            if value in (None, False):
                return
            raise ValueError(f"{self._name}({name}={value!r}): not supported by the bundled runtime")
        if name not in (*_OPTIONS, *_NEWER):
            hint = suggest(name, ("learning_rate", *_OPTIONS, *_NEWER, "momentum"))
            raise TypeError(f"{self._name} has no option {name}{hint}")
        if name == "regularization" and not isinstance(value, L2Regularization | None):
            raise TypeError(f"{self._name}: regularization={value!r}, expected L2Regularization")
        if name == "weight_decay" and not isinstance(value, L2Decay | float | int | None):
            raise TypeError(f"{self._name}: weight_decay={value!r}, expected a number or L2Decay")

    def minimize(
        self, loss: object, startup_program: None = None, parameters: None = None, no_grad_set: None = None
    ) -> tuple[list[object], list[object]]:
        """Let the default main program of static mode learn to reduce `loss` in this process alone."""
        refuse_choices(parameters, no_grad_set)
        if not isinstance(loss, Loss):
            raise make_loss_error(repr(loss))
        loss.be_minimized(self)
        return [], []

    def make_rule(self, config: ParamConfig) -> Optim:
        """Return this optimizer's rule for a parameter; raises ValueError for unsupported attributes."""
        if config.momentum and self.method != "sgd":
            raise ValueError(f"parameter {config.name}: {self._name} does not support momentum")
        momentum = self.momentum if config.momentum is None else config.momentum
        schedule, method = self.schedule, self.method
        if method == "sgd" and momentum > 0.0:
            # With a rate that changes PaddlePaddle 2's formula differs from v2's.
            method = "momentum" if self.scheduler is None else "fleet_momentum"
        if schedule.kind == "linear":  # its numbers are rates, to which the parameter's factor applies too
            factor = config.learning_rate
            schedule = replace(schedule, a=schedule.a * factor, b=schedule.b * factor)
        return Optim(
            method=method,
            learning_rate=self.learning_rate * config.learning_rate,
            schedule=schedule,
            momentum=momentum,
            decay=self.decay if config.decay is None else config.decay,
            clip=self.clip,
            **self.numbers,
        )


class SGD(Optimizer):
    """p -= lr * g."""

    __slots__ = ()


class Momentum(Optimizer):
    """m = momentum * m - lr * g; p += m. Without `momentum`, or with 0, the same as SGD.

    With a scheduler PaddlePaddle 2's: m = momentum * m + g; p -= lr * m.
    """

    __slots__ = ()

    def __init__(self, *numbers: Any, momentum: float | None = None, **options: Any) -> None:
        """Numbers without names are PaddlePaddle 2's: the learning rate, then the momentum."""
        if len(numbers) == 1:
            raise TypeError(
                f"optimizer.Momentum({numbers[0]}): name it: learning_rate=, or momentum= as in v2"
            )
        if numbers:
            options["learning_rate"], momentum = numbers
        super().__init__(**options)
        self.momentum = float(momentum or 0.0)
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"optimizer.Momentum: momentum={momentum} must be at least 0 and below 1")


class AdaGrad(Optimizer):
    """h += g * g; p -= lr * g / sqrt(h + 1e-6)."""

    __slots__ = ()
    method: Method = "adagrad"


class Adagrad(Optimizer):
    """PaddlePaddle 2's: h += g * g; p -= lr * g / (sqrt(h) + epsilon)."""

    __slots__ = ()
    method: Method = "fleet_adagrad"

    def __init__(self, learning_rate: Rate = 1e-3, epsilon: float = 1e-6, **options: Any) -> None:
        super().__init__(learning_rate, **options)
        self.numbers = {"epsilon": float(epsilon)}
        if not 0.0 < epsilon < float("inf"):
            raise ValueError(f"optimizer.Adagrad: epsilon={epsilon} must be finite and above 0")


class Adam(Optimizer):
    """p -= lr * m / (sqrt(v) + epsilon), with the moments m and v of the gradient, their first bias removed.

    For a table with sparse_update only the rows of a step; v2 has no such tables with Adam.
    """

    __slots__ = ()
    method: Method = "adam"

    def __init__(
        self,
        learning_rate: Rate = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        **options: Any,
    ) -> None:
        super().__init__(learning_rate, **options)
        self.numbers = {"beta1": float(beta1), "beta2": float(beta2), "epsilon": float(epsilon)}
        for name, value in self.numbers.items():
            if not 0.0 <= value < 1.0:
                raise ValueError(f"optimizer.Adam: {name}={value} must be at least 0 and below 1")
