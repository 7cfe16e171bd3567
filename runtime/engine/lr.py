"""Schedulers of the learning rate, PaddlePaddle 2's `optimizer.lr`: the program says when a rate changes.

A scheduler computes the rate from the number of calls of `step()` so far, in Python's floats; an optimizer
reads it at each of its updates.
"""

from __future__ import annotations

import bisect
import functools
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

__all__ = [
    "CosineAnnealingDecay", "CosineAnnealingWarmRestarts", "CyclicLR", "ExponentialDecay", "InverseTimeDecay",
    "LRScheduler", "LambdaDecay", "LinearLR", "LinearWarmup", "MultiStepDecay", "MultiplicativeDecay",
    "NaturalExpDecay", "NoamDecay", "OneCycleLR", "PiecewiseDecay", "PolynomialDecay", "ReduceOnPlateau",
    "StepDecay",
]  # fmt: skip


class LRScheduler(ABC):
    """Base of all schedulers. A call of a scheduler returns its current rate.

    base_lr: the initial rate. last_epoch: calls of step() so far. `verbose`: step() prints the rate.
    """

    def __init__(self, learning_rate: float = 0.1, last_epoch: int = -1, verbose: bool = False) -> None:
        if isinstance(learning_rate, bool) or not isinstance(learning_rate, float | int):
            raise TypeError(f"{self._name}: learning_rate={learning_rate!r}, expected a number")
        self._require(learning_rate >= 0, "learning_rate", learning_rate, "0 or more")
        self.base_lr = self.last_lr = float(learning_rate)
        self.last_epoch, self.verbose = last_epoch, verbose
        self.keys: list[str] = []
        self._begin()

    @property
    def _name(self) -> str:
        return f"optimizer.lr.{type(self).__name__}"

    def _require(self, fits: bool, name: str, value: object, expected: str) -> None:
        if not fits:
            raise ValueError(f"{self._name}: {name}={value!r}, expected {expected}")

    def _begin(self) -> None:
        self.step()

    def __call__(self) -> float:
        return self.last_lr

    def step(self, epoch: int | None = None) -> None:
        """Take the next rate, or that after `epoch` steps."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self._set_rate(self.get_lr())

    def _set_rate(self, rate: float) -> None:
        self.last_lr = rate
        if self.verbose:
            print(f"Epoch {self.last_epoch}: {type(self).__name__} set learning rate to {rate}.", flush=True)

    @abstractmethod
    def get_lr(self) -> float:
        """Return the rate after `last_epoch` steps."""

    def state_keys(self) -> None:
        """Set `keys`, the names of the attributes that a state has."""
        self.keys = ["last_epoch", "last_lr"]

    def state_dict(self) -> dict[str, Any]:
        """Return the state, for set_state_dict()."""
        self.state_keys()
        return {key: getattr(self, key) for key in self.keys}

    def set_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state; raises ValueError if it lacks a key."""
        self.state_keys()
        for key in self.keys:
            if key not in state_dict:
                raise ValueError(f"{self._name}: the state has no {key}; give one of its state_dict()")
            setattr(self, key, state_dict[key])

    set_dict = set_state_dict


Formula = Callable[..., float]
Check = tuple[str, Callable[[Any], bool]]
_ABOVE_0: Check = "a number above 0", lambda value: value > 0
_BELOW_1: Check = "a number below 1", lambda value: value < 1.0
_WHOLE: Check = "a whole number above 0", lambda value: value > 0


class FormulaScheduler(LRScheduler):
    """A scheduler with a formula for its rate after n steps; its arguments are attributes."""

    formula: ClassVar[Formula]
    checks: ClassVar[Mapping[str, Check]]
    takes: ClassVar[inspect.Signature]

    def __init__(self, *args: Any, **options: Any) -> None:
        try:
            bound = self.takes.bind(*args, **options)
        except TypeError as e:
            raise TypeError(f"{self._name}: {e}") from None
        bound.apply_defaults()
        for name, (expected, fits) in self.checks.items():
            self._require(fits(bound.arguments[name]), name, bound.arguments[name], expected)
        common = {name: bound.arguments.pop(name) for name in ("last_epoch", "verbose")}
        self._values = bound.arguments
        vars(self).update(self._values)
        super().__init__(self._values.get("learning_rate", 0.1), **common)

    def get_lr(self) -> float:
        values = {name: getattr(self, name) for name in self._values}
        if "learning_rate" in values:
            values["learning_rate"] = self.base_lr
        return float(type(self).formula(self.last_epoch, **values))


def _make_scheduler(**checks: Check) -> Callable[[Formula], type[FormulaScheduler]]:
    """Make a class of a formula, with its name, its arguments behind n, and `last_epoch` and `verbose`.

    checks: of arguments, the expected values in words, and the function that is true for them.
    """

    def make(formula: Formula) -> type[FormulaScheduler]:
        (_, *own), (_, *common) = (
            inspect.signature(one).parameters.values() for one in (formula, LRScheduler)
        )
        takes = inspect.Signature([*own, *common])
        body = {"formula": staticmethod(formula), "checks": checks, "takes": takes, "__signature__": takes}
        body |= {"__doc__": formula.__doc__, "__module__": formula.__module__}
        return type(formula.__name__, (FormulaScheduler,), body)

    return make


# The formulas are those of PaddlePaddle 2.6, python/paddle/optimizer/lr.py, by the same names; n: steps.


@_make_scheduler(d_model=_ABOVE_0, warmup_steps=_ABOVE_0)
def NoamDecay(n: int, d_model: int, warmup_steps: int, learning_rate: float = 1.0) -> float:
    """learning_rate * d_model**-0.5 * min(n**-0.5, n * warmup_steps**-1.5)."""
    falling = float(n**-0.5) if n else 1.0
    return float(learning_rate * d_model**-0.5 * min(falling, warmup_steps**-1.5 * n))


@_make_scheduler(boundaries=("at least one", lambda value: len(value) > 0))
def PiecewiseDecay(n: int, boundaries: Sequence[int], values: Sequence[float]) -> float:
    """values[i] up to boundaries[i], the last value after the last boundary."""
    if len(values) <= len(boundaries):
        raise ValueError(f"optimizer.lr.PiecewiseDecay: {values=!r}, expected one more than boundaries")
    return values[next((i for i, end in enumerate(boundaries) if n < end), -1)]


@_make_scheduler(gamma=_ABOVE_0)
def NaturalExpDecay(n: int, learning_rate: float, gamma: float) -> float:
    """learning_rate * exp(-gamma * n)."""
    return learning_rate * math.exp(-gamma * n)


@_make_scheduler()
def InverseTimeDecay(n: int, learning_rate: float, gamma: float) -> float:
    """learning_rate / (1 + gamma * n)."""
    return learning_rate / (1 + gamma * n)


@_make_scheduler(decay_steps=_WHOLE, power=_ABOVE_0)
def PolynomialDecay(
    n: int,
    learning_rate: float,
    decay_steps: int,
    end_lr: float = 0.0001,
    power: float = 1.0,
    cycle: bool = False,
) -> float:
    """(learning_rate - end_lr) * (1 - n / decay_steps)**power + end_lr; then end_lr.

    `cycle`: decay_steps doubles, triples and so on, each time it is reached.
    """
    if cycle:
        decay_steps *= max(1, math.ceil(n / decay_steps))
    return float((learning_rate - end_lr) * (1 - min(n, decay_steps) / decay_steps) ** power + end_lr)


@_make_scheduler(gamma=("a number between 0 and 1", lambda value: 0.0 < value < 1.0))
def ExponentialDecay(n: int, learning_rate: float, gamma: float) -> float:
    """learning_rate * gamma**n."""
    return float(learning_rate * gamma**n)


@_make_scheduler(milestones=("ascending numbers", lambda value: [*value] == sorted({*value})), gamma=_BELOW_1)
def MultiStepDecay(n: int, learning_rate: float, milestones: Sequence[int], gamma: float = 0.1) -> float:
    """learning_rate * gamma**k after k of the milestones."""
    return float(learning_rate * gamma ** bisect.bisect_right(milestones, n))


@_make_scheduler(step_size=_WHOLE, gamma=_BELOW_1)
def StepDecay(n: int, learning_rate: float, step_size: int, gamma: float = 0.1) -> float:
    """learning_rate * gamma**floor(n / step_size)."""
    return float(learning_rate * gamma ** (n // step_size))


@_make_scheduler(lr_lambda=("a function", callable))
def LambdaDecay(n: int, learning_rate: float, lr_lambda: Callable[[int], float]) -> float:
    """learning_rate * lr_lambda(n)."""
    return learning_rate * lr_lambda(n)


@_make_scheduler(lr_lambda=("a function", callable))
def MultiplicativeDecay(n: int, learning_rate: float, lr_lambda: Callable[[int], float]) -> float:
    """learning_rate * lr_lambda(1) * lr_lambda(2) and so on, up to lr_lambda(n)."""
    return functools.reduce(lambda rate, i: rate * lr_lambda(i), range(1, n + 1), learning_rate)


@_make_scheduler(T_max=_WHOLE)
def CosineAnnealingDecay(n: int, learning_rate: float, T_max: int, eta_min: float = 0) -> float:
    """eta_min + (learning_rate - eta_min) * (1 + cos(pi * n / T_max)) / 2."""
    return eta_min + (learning_rate - eta_min) * ((1 + math.cos(math.pi * n / T_max)) / 2)


@_make_scheduler(T_0=_WHOLE, T_mult=_WHOLE)
def CosineAnnealingWarmRestarts(
    n: int, learning_rate: float, T_0: int, T_mult: int = 1, eta_min: float = 0
) -> float:
    """CosineAnnealingDecay that begins again after T_0 steps, then after T_mult times as many each time."""
    size, n = (T_0, n % T_0) if T_mult == 1 else (T_0, n)
    while n >= size:
        n, size = n - size, size * T_mult
    return eta_min + (learning_rate - eta_min) * (1 + math.cos(math.pi * n / size)) / 2


@_make_scheduler(total_steps=_WHOLE, start_factor=("above 0, at most 1", lambda value: 0.0 < value <= 1.0))
def LinearLR(
    n: int, learning_rate: float, total_steps: int, start_factor: float = 1.0 / 3, end_factor: float = 1.0
) -> float:
    """learning_rate times a factor that goes from start_factor to end_factor in total_steps."""
    return learning_rate * (start_factor + (end_factor - start_factor) * min(n, total_steps) / total_steps)


@_make_scheduler(
    total_steps=_WHOLE,
    phase_pct=("a number from 0 to 1", lambda value: 0.0 <= value <= 1.0),
    anneal_strategy=("cos or linear", lambda value: value in ("cos", "linear")),
)
def OneCycleLR(
    n: int,
    max_learning_rate: float,
    total_steps: int,
    divide_factor: float = 25.0,
    end_learning_rate: float = 0.0001,
    phase_pct: float = 0.3,
    anneal_strategy: str = "cos",
    three_phase: bool = False,
) -> float:
    """From max_learning_rate / divide_factor up in phase_pct of total_steps, then down to end_learning_rate.

    `three_phase`: between, down to the first rate, in as many steps as up.
    """
    if n > total_steps:
        raise ValueError(f"optimizer.lr.OneCycleLR: step {n}, but total_steps={total_steps}")
    rates = [max_learning_rate / divide_factor, max_learning_rate, end_learning_rate]
    ends = [0.0, phase_pct * total_steps - 1, total_steps - 1.0]
    if three_phase:
        ends, rates = [*ends[:2], 2 * ends[1], ends[2]], [*rates[:2], *rates[::2]]
    i = next((i for i, end in enumerate(ends[1:-1]) if n <= end), len(ends) - 2)
    share, (begin, end) = (n - ends[i]) / (ends[i + 1] - ends[i]), rates[i : i + 2]
    if anneal_strategy == "linear":
        return (end - begin) * share + begin
    return end + (begin - end) / 2.0 * (math.cos(math.pi * share) + 1)


@_make_scheduler(
    step_size_up=_WHOLE,
    mode=("one of its modes", lambda value: value in ("triangular", "triangular2", "exp_range")),
    scale_mode=("cycle or iterations", lambda value: value in ("cycle", "iterations")),
)
def CyclicLR(
    n: int,
    base_learning_rate: float,
    max_learning_rate: float,
    step_size_up: int,
    step_size_down: int | None = None,
    mode: str = "triangular",
    exp_gamma: float = 1.0,
    scale_fn: Callable[[float], float] | None = None,
    scale_mode: str = "cycle",
) -> float:
    """Up to max_learning_rate and down again, in cycles.

    `mode`: of the same height, of half the height of the one before, or of exp_gamma**n times the height;
    or `scale_fn` of the cycle or of n gives the factor.
    """
    size = step_size_up + (step_size_down or step_size_up)
    up, cycle = step_size_up / size, 1 + n // size
    place = 1.0 + n / size - cycle
    height = place / up if place <= up else (1 - place) / (1 - up)
    if scale_fn is not None:
        scale = scale_fn(cycle if scale_mode == "cycle" else n)
    else:
        scale = {"triangular": 1.0, "triangular2": 0.5 ** (cycle - 1), "exp_range": exp_gamma**n}[mode]
    return base_learning_rate + (max_learning_rate - base_learning_rate) * height * scale


class LinearWarmup(LRScheduler):
    """From start_lr to end_lr in warmup_steps steps; then `learning_rate`, a number or another scheduler."""

    def __init__(
        self,
        learning_rate: float | LRScheduler,
        warmup_steps: int,
        start_lr: float,
        end_lr: float,
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        if not isinstance(learning_rate, float | int | LRScheduler):
            raise TypeError(
                f"{self._name}: learning_rate={learning_rate!r}, expected a number or a scheduler"
            )
        self._require(warmup_steps > 0, "warmup_steps", warmup_steps, "a whole number above 0")
        self._require(end_lr > start_lr, "end_lr", end_lr, f"more than start_lr, {start_lr}")
        self.learning_rate, self.warmup_steps = learning_rate, warmup_steps
        self.start_lr, self.end_lr = start_lr, end_lr
        super().__init__(start_lr, last_epoch, verbose)

    def get_lr(self) -> float:
        if self.last_epoch < self.warmup_steps:
            return (self.end_lr - self.start_lr) * self.last_epoch / self.warmup_steps + self.start_lr
        if isinstance(self.learning_rate, LRScheduler):
            self.learning_rate.step(self.last_epoch - self.warmup_steps)
            return self.learning_rate()
        return self.learning_rate

    def state_dict(self) -> dict[str, Any]:
        own = super().state_dict()
        if isinstance(self.learning_rate, LRScheduler):
            own["LinearWarmup_LR"] = self.learning_rate.state_dict()
        return own

    def set_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().set_state_dict(state_dict)
        if isinstance(self.learning_rate, LRScheduler):
            self.learning_rate.set_state_dict(state_dict["LinearWarmup_LR"])


class ReduceOnPlateau(LRScheduler):
    """The rate times `factor` when a metric has not improved for more than `patience` steps.

    `mode`: "min" or "max", the direction of an improvement; it must exceed `threshold`, which is a share of
    the best value (`threshold_mode` "rel") or a difference ("abs"). After a change `cooldown` steps are not
    judged. The rate is never below min_lr, and changes of at most `epsilon` are left out.
    """

    def __init__(
        self,
        learning_rate: float,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float = 0,
        epsilon: float = 1e-8,
        verbose: bool = False,
    ) -> None:
        self.mode, self.threshold_mode = mode.lower(), threshold_mode.lower()
        self._require(self.mode in ("min", "max"), "mode", mode, "min or max")
        self._require(self.threshold_mode in ("rel", "abs"), "threshold_mode", threshold_mode, "rel or abs")
        self._require(factor < 1.0, "factor", factor, "a number below 1")
        self.factor, self.patience, self.threshold = factor, patience, threshold
        self.cooldown, self.min_lr, self.epsilon = cooldown, min_lr, epsilon
        self.cooldown_counter = self.num_bad_epochs = 0
        self.best: float | None = None
        super().__init__(learning_rate, 0, verbose)

    def state_keys(self) -> None:
        self.keys = ["cooldown_counter", "best", "num_bad_epochs", "last_epoch", "last_lr"]

    def _begin(self) -> None:
        pass  # the first step has a metric too

    def get_lr(self) -> float:
        return self.last_lr

    def step(self, metrics: Any, epoch: int | None = None) -> None:  # type: ignore[override]  # as there
        """Judge a metric: a number, or an array of one."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        value = float(getattr(metrics, "item", lambda: metrics)())
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            return
        if self.best is None or self._is_better(value, self.best):
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        if self.num_bad_epochs > self.patience:
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
            rate = max(self.last_lr * self.factor, self.min_lr)
            if self.last_lr - rate > self.epsilon:
                self._set_rate(rate)

    def _is_better(self, value: float, best: float) -> bool:
        margin = best * self.threshold if self.threshold_mode == "rel" else self.threshold
        return value < best - margin if self.mode == "min" else value > best + margin
