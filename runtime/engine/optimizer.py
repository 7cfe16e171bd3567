"""Optimizers by their names in v2 and in PaddlePaddle 2; the C kernels apply them to parameters.

Formulas: csrc/kernels/ps_optim.h. In v2 the gradient is the sum over all samples of all trainers, in static
mode that of the program's loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from .. import _core
from ..shared.env import suggest
from . import lr
from .average import ModelAverage
from .clip import ClipGradByGlobalNorm, ClipGradByNorm, ClipGradByValue
from .kernel_numbers import KERNELS, OF_ROWS, SCHEDULES, Optim, Schedule
from .param_config import ParamConfig
from .regularizer import L1Decay, L2Decay
from .strategy import RATIO, Strategy, make_v2_strategy

__all__ = [
    "SGD", "AdaDelta", "AdaGrad", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "DecayedAdaGrad",
    "DecayedAdagrad", "Ftrl", "L2Regularization", "Lamb", "ModelAverage", "Momentum", "Optimizer", "RMSProp",
    "lr",
]  # fmt: skip


Rate = float | lr.LRScheduler


class L2Regularization(L2Decay):
    """v2's: pulls every value towards 0 at a rate, unless its parameter has an l2_rate.

    For a table with sparse_update only the rows of a step; v2 also catches up on the steps that a row missed.
    """

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__(rate)


_CLIP = "gradient_clipping_threshold"
_SCHEDULE = "learning_rate_schedule"
_DECAYS = ("learning_rate_decay_a", "learning_rate_decay_b")
_ARGS = "learning_rate_args"
_TYPES: Mapping[str, tuple[type, ...]] = {
    "regularization": (L2Regularization,),
    "model_average": (ModelAverage,),
    "weight_decay": (L1Decay, L2Decay, float, int),
    "grad_clip": (ClipGradByNorm, ClipGradByGlobalNorm, ClipGradByValue),
}
_OPTIONS = (_SCHEDULE, *_DECAYS, _ARGS, _CLIP, "is_async", RATIO, "batch_size", "name", *_TYPES)
_ABSENT = ("parameters", "multi_precision", "use_multi_tensor", "lr_ratio")
_INFINITE = float("inf")
_FREE = ("initial_accumulator_value", "l1", "l2")  # numbers that may be 1 or more


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
    PaddlePaddle 2's regularization, a number, L1Decay or L2Decay; `grad_clip` is one of nn.ClipGrad.

    Of a table with sparse updates only the rows of a step are changed. A program that calls minimize() gets
    PaddlePaddle 2's form of a method, any other v2's (docs/optimizers.md).
    """

    __slots__ = (
        "_is_async", "_strategy", "average", "choices", "clip", "decay", "l1", "learning_rate", "moves",
        "norm", "numbers", "schedule", "scheduler", "share", "warning",
    )  # fmt: skip
    method = "sgd"  # the row in csrc/kernels/ps_optim.c, without fleet_
    takes: tuple[str, ...] = ()  # the numbers that a program may give, in PaddlePaddle 2's order
    variants: ClassVar[Mapping[str, str]] = {}  # further arguments that choose other methods if true

    def __init__(self, learning_rate: Rate = 1e-3, *numbers: float, **options: Any) -> None:
        # Of the program's loss, if minimize() gives it: then methods have PaddlePaddle 2's forms.
        self.share: float | None = None
        self.moves = 1.0  # share of this trainer in a step of running means
        self.numbers = self._take_numbers(numbers, options)
        self.choices = {name for name in self.variants if options.pop(name, False)}
        for name, value in options.items():
            self._check(name, value)
        self.scheduler = learning_rate if isinstance(learning_rate, lr.LRScheduler) else None
        if self.scheduler is not None and options.get(_SCHEDULE):
            raise ValueError(
                f"{self._name}: {_SCHEDULE} and a scheduler as learning_rate both change the rate; remove one"
            )
        self.learning_rate = 1.0 if isinstance(learning_rate, lr.LRScheduler) else float(learning_rate)
        try:
            self.schedule = make_schedule(options)
        except ValueError as e:
            raise ValueError(f"{self._name}: {e}") from None
        decay = options.get("weight_decay") or options.get("regularization") or 0.0
        self.l1 = decay.coeff if isinstance(decay, L1Decay) else 0.0
        self.decay = decay.coeff if isinstance(decay, L2Decay) else 0.0 if self.l1 else float(decay)
        self.average = options.get("model_average")
        clip = options.get("grad_clip")
        self.clip = float(options.get(_CLIP) or (clip.max if isinstance(clip, ClipGradByValue) else 0.0))
        self.norm = clip if isinstance(clip, ClipGradByNorm) else None
        for name, number in (("learning_rate", self.learning_rate), (_CLIP, self.clip)):
            if not 0.0 <= number < _INFINITE:
                raise ValueError(f"{self._name}: {name}={number} must be finite and not negative")
        self._is_async = bool(options.get("is_async"))
        self._strategy, self.warning = make_v2_strategy(self._is_async, options.get(RATIO), self._name)

    def _take_numbers(self, numbers: Sequence[float], options: dict[str, Any]) -> dict[str, float]:
        """Return the method's own numbers, and take those from the options."""
        if len(numbers) > len(self.takes):
            raise TypeError(f"{self._name}: {len(numbers) + 1} numbers without names are too many")
        given = dict(zip(self.takes, numbers, strict=False))
        given |= {name: options.pop(name) for name in self.takes if options.get(name) is not None}
        for name, value in given.items():
            value = given[name] = float(value)
            most, text = (_INFINITE, "finite") if name in _FREE else (1.0, "below 1")
            if not 0.0 <= value < most:
                raise ValueError(f"{self._name}: {name}={value} must be at least 0 and {text}")
        return {name.removesuffix("_accumulator_value"): value for name, value in given.items()}

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
        if not 0.0 <= rate < _INFINITE:
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
        if name not in _OPTIONS:
            hint = suggest(name, ("learning_rate", *self.takes, *self.variants, *_OPTIONS))
            raise TypeError(f"{self._name} has no option {name}{hint}")
        if value is not None and not isinstance(value, _TYPES.get(name, object)):
            kinds = " or ".join(kind.__name__ for kind in _TYPES[name])
            raise TypeError(f"{self._name}: {name}={value!r}, expected {kinds}")

    def minimize(
        self, loss: object, startup_program: None = None, parameters: None = None, no_grad_set: None = None
    ) -> tuple[list[object], list[object]]:
        """Let the default main program of static mode learn to reduce `loss` in this process alone."""
        refuse_choices(parameters, no_grad_set)
        be_minimized = getattr(loss, "be_minimized", None)  # as Variable has it
        if be_minimized is None:
            raise make_loss_error(repr(loss))
        be_minimized(self)
        return [], []

    def make_rule(self, config: ParamConfig, *, rows: bool = False) -> Optim:
        """Return this optimizer's rule for a parameter, or for the rows of a table with sparse updates.

        Raises ValueError for attributes and numbers that are not of its method.
        """
        if config.is_running:
            return Optim(method="sgd", learning_rate=config.learning_rate)
        method, numbers = self._choose(config, rows)
        kernel, schedule = KERNELS[method], self.schedule
        for name in [name for name in numbers if name not in kernel.numbers]:
            raise ValueError(f"{self._name}: {name} has no effect: the method of v2 has none")
        if (rows and kernel.whole) or (config.momentum and "momentum" not in kernel.numbers):
            what = "momentum" if config.momentum else "sparse updates"
            raise ValueError(f"parameter {config.name}: {self._name} does not support {what}")
        if schedule.kind == "linear":  # its numbers are rates, to which the parameter's factor applies too
            factor = config.learning_rate
            schedule = replace(schedule, a=schedule.a * factor, b=schedule.b * factor)
        return Optim(
            method=method,
            learning_rate=self.learning_rate * config.learning_rate,
            schedule=schedule,
            l1=self.l1 if config.l1 is None else config.l1,
            decay=self._find_decay(config),
            clip=self.clip if config.clip is None else config.clip,
            numbers=numbers,
        )

    def _choose(self, config: ParamConfig, rows: bool) -> tuple[str, Mapping[str, float]]:
        """Return the method for a parameter, and its own numbers."""
        method = f"fleet_{self.method}"
        if self.share is None or method not in KERNELS:
            method = self.method
        for flag in self.choices:
            variant = self.variants[flag]
            method = variant if rows or variant not in OF_ROWS else method
        return method, self.numbers

    def _find_decay(self, config: ParamConfig) -> float:
        return self.decay if config.decay is None else config.decay


class SGD(Optimizer):
    """p -= lr * g."""

    __slots__ = ()

    def _choose(self, config: ParamConfig, rows: bool) -> tuple[str, Mapping[str, float]]:
        own = self.numbers.get("momentum", 0.0 if self.share is None or type(self) is SGD else 0.9)
        momentum = own if config.momentum is None else config.momentum
        if momentum == 0.0:
            return "sgd" if self.share is None else "fleet_sgd", {}
        if self.choices:
            return "nesterov", {"momentum": momentum}
        # With a rate that changes PaddlePaddle 2's formula differs from v2's.
        v2 = self.share is None and self.scheduler is None
        return "momentum" if v2 else "fleet_momentum", {"momentum": momentum}


class Momentum(SGD):
    """m = momentum * m - lr * g; p += m. Without `momentum`, or with 0, the same as SGD.

    With a scheduler or minimize() PaddlePaddle 2's: m = momentum * m + g; p -= lr * m. With minimize()
    `momentum` is 0.9 unless given, and with `use_nesterov` p -= lr * (g + momentum * m).
    """

    __slots__ = ()
    takes = ("momentum",)
    variants: ClassVar[Mapping[str, str]] = {"use_nesterov": "nesterov"}

    def __init__(self, *numbers: Any, **options: Any) -> None:
        """Numbers without names are PaddlePaddle 2's: the learning rate, then the momentum."""
        if len(numbers) == 1:
            raise TypeError(
                f"optimizer.Momentum({numbers[0]}): name it: learning_rate=, or momentum= as in v2"
            )
        super().__init__(*numbers, **options)


def _define(name: str, method: str, takes: str = "", **variants: str) -> type[Optimizer]:
    """Return the class of a method, with the names of numbers, and flags that choose other methods."""
    own = {"method": method, "takes": tuple(takes.split()), "variants": variants, "__slots__": ()}
    doc = f"Optimizer by the formula in docs/optimizers.md; its numbers: {takes or 'none'}."
    return type(name, (Optimizer,), {**own, "__doc__": doc, "__module__": __name__})


AdaGrad = _define("AdaGrad", "adagrad")
Adagrad = _define("Adagrad", "fleet_adagrad", "epsilon initial_accumulator_value", by_row="row_adagrad")
DecayedAdaGrad = _define("DecayedAdaGrad", "decayed_adagrad", "rho epsilon")
DecayedAdagrad = _define("DecayedAdagrad", "fleet_decayed_adagrad", "rho epsilon")
AdaDelta = _define("AdaDelta", "adadelta", "rho epsilon")
Adadelta = _define("Adadelta", "fleet_adadelta", "epsilon rho")
RMSProp = _define("RMSProp", "rmsprop", "rho epsilon momentum", centered="centered_rmsprop")
Adam = _define("Adam", "adam", "beta1 beta2 epsilon", lazy_mode="lazy_adam")
Adamax = _define("Adamax", "adamax", "beta1 beta2 epsilon")
Ftrl = _define("Ftrl", "ftrl", "l1 l2")


class AdamW(Optimizer):
    """Adam with a weight decay beside the gradient: p -= lr * weight_decay * p.

    `apply_decay_param_fun` is true for names of parameters with it. `lazy_mode` has no effect.
    """

    __slots__ = ("_decays",)
    method, takes = "adamw", ("beta1", "beta2", "epsilon")
    variants: ClassVar[Mapping[str, str]] = {"lazy_mode": "adamw"}

    def __init__(
        self,
        *numbers: Any,
        weight_decay: float = 0.01,
        apply_decay_param_fun: Callable[[str], bool] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*numbers, weight_decay=float(weight_decay), **options)
        apply = apply_decay_param_fun or bool  # names are not empty
        self._decays: Callable[[ParamConfig], bool] = lambda config: apply(config.name)

    def _find_decay(self, config: ParamConfig) -> float:
        if config.decay or config.l1:
            raise ValueError(f"parameter {config.name}: {self._name} does not support regularizers")
        return self.decay if self._decays(config) else 0.0


class Lamb(AdamW):
    """Adam with steps as long as lr times the parameter (You et al., ICLR 2020); no sparse updates.

    Each parameter is whole on one port of a pserver. `exclude_from_weight_decay_fn`: true for
    parameters without weight decay.
    """

    __slots__ = ()
    method = "lamb"
    variants: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self,
        learning_rate: Rate = 1e-3,
        lamb_weight_decay: float = 0.01,
        *numbers: Any,
        exclude_from_weight_decay_fn: Callable[[ParamConfig], bool] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(learning_rate, *numbers, weight_decay=lamb_weight_decay, **options)
        if leave := exclude_from_weight_decay_fn:
            self._decays = lambda config: not leave(config)
