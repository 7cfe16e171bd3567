"""Schedulers of the learning rate, PaddlePaddle 2's `optimizer.lr`: the program says when a rate changes.

A scheduler computes the rate from the number of calls of `step()` so far, in Python's floats; an optimizer
reads it at each of its updates.
"""

from __future__ import annotations

import bisect
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import publish

__all__ = [
    "CosineAnnealingDecay",
    "ExponentialDecay",
    "InverseTimeDecay",
    "LRScheduler",
    "LambdaDecay",
    "LinearWarmup",
    "MultiStepDecay",
    "MultiplicativeDecay",
    "NaturalExpDecay",
    "NoamDecay",
    "PiecewiseDecay",
    "PolynomialDecay",
    "ReduceOnPlateau",
    "StepDecay",
]
_NAME = "pslaunch.runtime.optimizer.lr"  # by which programs import it
sys.modules[_NAME] = sys.modules[__name__]
publish(_NAME, __all__)


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


class NoamDecay(LRScheduler):
    """learning_rate * d_model**-0.5 * min(n**-0.5, n * warmup_steps**-1.5)."""

    def __init__(
        self,
        d_model: int,
        warmup_steps: int,
        learning_rate: float = 1.0,
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        self._require(d_model > 0, "d_model", d_model, "a number above 0")
        self._require(warmup_steps > 0, "warmup_steps", warmup_steps, "a number above 0")
        self.d_model, self.warmup_steps = d_model, warmup_steps
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        n = self.last_epoch
        falling = float(n**-0.5) if n else 1.0
        return float(self.base_lr * self.d_model**-0.5 * min(falling, self.warmup_steps**-1.5 * n))


class PiecewiseDecay(LRScheduler):
    """values[i] up to boundaries[i], the last value after the last boundary."""

    def __init__(
        self,
        boundaries: Sequence[int],
        values: Sequence[float],
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        self._require(len(boundaries) > 0, "boundaries", boundaries, "at least one")
        self._require(len(values) > len(boundaries), "values", values, "one more than boundaries")
        self.boundaries, self.values = list(boundaries), list(values)
        super().__init__(last_epoch=last_epoch, verbose=verbose)

    def get_lr(self) -> float:
        below = (i for i, end in enumerate(self.boundaries) if self.last_epoch < end)
        return float(self.values[next(below, -1)])


class NaturalExpDecay(LRScheduler):
    """learning_rate * exp(-gamma * n)."""

    def __init__(
        self, learning_rate: float, gamma: float, last_epoch: int = -1, verbose: bool = False
    ) -> None:
        self._require(gamma > 0.0, "gamma", gamma, "a number above 0")
        self.gamma = gamma
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        return self.base_lr * math.exp(-self.gamma * self.last_epoch)


class InverseTimeDecay(LRScheduler):
    """learning_rate / (1 + gamma * n)."""

    def __init__(
        self, learning_rate: float, gamma: float, last_epoch: int = -1, verbose: bool = False
    ) -> None:
        self.gamma = gamma
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        return self.base_lr / (1 + self.gamma * self.last_epoch)


class PolynomialDecay(LRScheduler):
    """(learning_rate - end_lr) * (1 - n / decay_steps)**power + end_lr; then end_lr.

    `cycle`: decay_steps doubles, triples and so on, each time it is reached.
    """

    def __init__(
        self,
        learning_rate: float,
        decay_steps: int,
        end_lr: float = 0.0001,
        power: float = 1.0,
        cycle: bool = False,
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        self._require(decay_steps > 0, "decay_steps", decay_steps, "a whole number above 0")
        self._require(power > 0.0, "power", power, "a number above 0")
        self.decay_steps, self.end_lr, self.power, self.cycle = decay_steps, end_lr, power, cycle
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        n, steps = self.last_epoch, self.decay_steps
        if self.cycle:
            steps *= max(1, math.ceil(n / steps))
        else:
            n = min(n, steps)
        return float((self.base_lr - self.end_lr) * (1 - n / steps) ** self.power + self.end_lr)


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

    set_dict = set_state_dict


class ExponentialDecay(LRScheduler):
    """learning_rate * gamma**n."""

    def __init__(
        self, learning_rate: float, gamma: float, last_epoch: int = -1, verbose: bool = False
    ) -> None:
        self._require(0.0 < gamma < 1.0, "gamma", gamma, "a number between 0 and 1")
        self.gamma = gamma
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        return float(self.base_lr * self.gamma**self.last_epoch)


class MultiStepDecay(LRScheduler):
    """learning_rate * gamma**k after k of the milestones."""

    def __init__(
        self,
        learning_rate: float,
        milestones: Sequence[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        self._require([*milestones] == sorted({*milestones}), "milestones", milestones, "ascending numbers")
        self._require(gamma < 1.0, "gamma", gamma, "a number below 1")
        self.milestones, self.gamma = list(milestones), gamma
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        return float(self.base_lr * self.gamma ** bisect.bisect_right(self.milestones, self.last_epoch))


class StepDecay(LRScheduler):
    """learning_rate * gamma**floor(n / step_size)."""

    def __init__(
        self,
        learning_rate: float,
        step_size: int,
        gamma: float = 0.1,
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        self._require(step_size > 0, "step_size", step_size, "a whole number above 0")
        self._require(gamma < 1.0, "gamma", gamma, "a number below 1")
        self.step_size, self.gamma = step_size, gamma
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        return float(self.base_lr * self.gamma ** (self.last_epoch // self.step_size))


class LambdaDecay(LRScheduler):
    """learning_rate * lr_lambda(n)."""

    def __init__(
        self,
        learning_rate: float,
        lr_lambda: Callable[[int], float],
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        if not callable(lr_lambda):
            raise TypeError(f"{self._name}: lr_lambda={lr_lambda!r}, expected a function")
        self.lr_lambda = lr_lambda
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        return float(self.base_lr * self.lr_lambda(self.last_epoch))


class MultiplicativeDecay(LambdaDecay):
    """learning_rate * lr_lambda(1) * lr_lambda(2) and so on, up to lr_lambda(n)."""

    def get_lr(self) -> float:
        rate = self.base_lr
        for n in range(1, self.last_epoch + 1):
            rate *= self.lr_lambda(n)
        return float(rate)


class CosineAnnealingDecay(LRScheduler):
    """eta_min + (learning_rate - eta_min) * (1 + cos(pi * n / T_max)) / 2."""

    def __init__(
        self,
        learning_rate: float,
        T_max: int,
        eta_min: float = 0,
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        self._require(T_max > 0, "T_max", T_max, "a whole number above 0")
        self.T_max, self.eta_min = T_max, float(eta_min)
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        share = (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
        return self.eta_min + (self.base_lr - self.eta_min) * share


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
