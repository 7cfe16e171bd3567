"""The optimizers in numpy: csrc/kernels/ps_optim.c must compute the same bits (support/reference.py).

p: the values, s: the state [slots, *p.shape], g: the clipped gradient. lr, l1, l2 and the
method's own numbers n are float32. docs/optimizers.md has the sources.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
ONE = np.float32(1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """Update rule: ps_optim in csrc/kernels/ps_optim.h."""

    method: int
    lr: float
    l1: float = 0.0
    l2: float = 0.0
    clip: float = 0.0
    numbers: tuple[float, ...] = ()  # the method's own

    def pack(self) -> tuple[int, float, float, float, float, float, float, float]:
        """Return the rule as the compiled core takes it."""
        own = (*self.numbers, 0.0, 0.0, 0.0)
        return (self.method, self.lr, self.l1, self.l2, self.clip, own[0], own[1], own[2])


class Step:
    """A step of one rule: its numbers in float32."""

    def __init__(self, rule: Rule, step: int) -> None:
        self.lr, self.l1, self.l2 = (np.float32(x) for x in (rule.lr, rule.l1, rule.l2))
        self.n = [np.float32(x) for x in rule.numbers]
        self.step = step

    def decay(self, p: F32, g: F32) -> F32:
        """Return the gradient with PaddlePaddle 2's weight decays."""
        d = g + self.l2 * p
        return np.where(p > 0, d + self.l1, np.where(p < 0, d - self.l1, d)) if self.l1 else d

    def shrink(self, p: F32, by: F32 | np.float32) -> None:
        """Move the values towards 0 by `by`, but not beyond."""
        if self.l1:
            p[...] = np.where(p > by, p - by, np.where(p < -by, p + by, np.float32(0) * p))

    def correct(self, step: int) -> tuple[np.float32, np.float32]:
        """Return Adam's rate of a step, and the root of the correction of its second moment."""
        first, root = 1 - raise_to(float(self.n[0]), step), np.sqrt(1 - raise_to(float(self.n[1]), step))
        return np.float32(float(self.lr) * float(root) / first), np.float32(root)


Method = Callable[[Step, F32, F32, F32], None]
METHODS: list[tuple[str, int, int, Method]] = []  # name, slots, own numbers; -1 slots: one state a row


def method(slots: int, numbers: int) -> Callable[[Method], Method]:
    """Enter a method into the table, in the order of the core's."""

    def enter(function: Method) -> Method:
        METHODS.append((function.__name__, slots, numbers, function))
        return function

    return enter


def raise_to(base: float, exponent: int) -> float:
    """Return the power as products of doubles, in the order of the exponent's bits."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def sum_squares(p: F32) -> float:
    """Return the sum of squares, in 8 chains of doubles, then in a tree."""
    chains = [0.0] * 8
    for i, x in enumerate(p.ravel().tolist()):
        chains[i % 8] += x * x
    a, b, c, d, e, f, g, h = chains
    return ((a + b) + (c + d)) + ((e + f) + (g + h))


def mix(old: F32, rho: np.float32, x: F32) -> None:
    old[...] = rho * old + (ONE - rho) * x


@method(0, 0)
def sgd(o: Step, p: F32, s: F32, g: F32) -> None:
    p -= o.lr * (g + o.l2 * p)
    o.shrink(p, o.lr * o.l1)


@method(1, 1)
def momentum(o: Step, p: F32, s: F32, g: F32) -> None:
    s[0] = o.n[0] * s[0] - o.lr * (g + o.l2 * p)
    p += s[0]
    o.shrink(p, o.lr * o.l1)


def move(o: Step, p: F32, g: F32, root: F32) -> None:
    """End a step of v2's methods with a rate of each value."""
    p -= o.lr * (g + o.l2 * p) / root
    o.shrink(p, o.lr * o.l1 / root)


@method(1, 1)
def adagrad(o: Step, p: F32, s: F32, g: F32) -> None:
    s[0] += g * g
    move(o, p, g, np.sqrt(s[0] + o.n[0]))


@method(1, 2)
def fleet_adagrad(o: Step, p: F32, s: F32, g: F32) -> None:
    d = o.decay(p, g)
    s[0] += d * d
    p -= o.lr * d / (np.sqrt(s[0] + o.n[1]) + o.n[0])


@method(2, 3)
def adam(o: Step, p: F32, s: F32, g: F32) -> None:
    d, (rate, _) = g + o.l2 * p, o.correct(o.step)
    mix(s[0], o.n[0], d)
    mix(s[1], o.n[1], d * d)
    p -= s[0] * rate / (np.sqrt(s[1]) + o.n[2])
    o.shrink(p, o.lr * o.l1)


@method(1, 1)
def fleet_momentum(o: Step, p: F32, s: F32, g: F32) -> None:
    s[0] = o.n[0] * s[0] + o.decay(p, g)
    p -= o.lr * s[0]


@method(0, 0)
def fleet_sgd(o: Step, p: F32, s: F32, g: F32) -> None:
    p -= o.lr * o.decay(p, g)


@method(1, 1)
def nesterov(o: Step, p: F32, s: F32, g: F32) -> None:
    d = o.decay(p, g)
    s[0] = o.n[0] * s[0] + d
    p -= o.lr * (d + o.n[0] * s[0])


def mix_first(o: Step, old: F32, x: F32) -> None:
    """Mix as v2, which begins with the first."""
    old[...] = o.n[0] * old + (ONE if o.step == 1 else ONE - o.n[0]) * x


@method(1, 2)
def decayed_adagrad(o: Step, p: F32, s: F32, g: F32) -> None:
    mix_first(o, s[0], g * g)
    move(o, p, g, np.sqrt(s[0] + o.n[1]))


@method(1, 2)
def fleet_decayed_adagrad(o: Step, p: F32, s: F32, g: F32) -> None:
    d = o.decay(p, g)
    mix(s[0], o.n[0], d * d)
    p -= o.lr * d / (np.sqrt(s[0]) + o.n[1])


@method(2, 2)
def adadelta(o: Step, p: F32, s: F32, g: F32) -> None:
    mix(s[0], o.n[0], g * g)
    root = np.sqrt((s[0] + o.n[1]) / (s[1] + o.n[1]))
    mix(s[1], o.n[0], (g / root) * (g / root))
    move(o, p, g, root)


@method(2, 2)
def fleet_adadelta(o: Step, p: F32, s: F32, g: F32) -> None:
    d = o.decay(p, g)
    mix(s[0], o.n[0], d * d)
    change = np.sqrt((s[1] + o.n[1]) / (s[0] + o.n[1])) * d
    mix(s[1], o.n[0], change * change)
    p -= o.lr * change


@method(2, 2)
def rmsprop(o: Step, p: F32, s: F32, g: F32) -> None:
    mix_first(o, s[0], g * g)
    mix(s[1], o.n[0], g)
    move(o, p, g, np.sqrt(s[0] - s[1] * s[1] + o.n[1]))


@method(2, 3)
def fleet_rmsprop(o: Step, p: F32, s: F32, g: F32) -> None:
    d = o.decay(p, g)
    mix(s[0], o.n[0], d * d)
    s[1] = o.n[2] * s[1] + o.lr * d / np.sqrt(s[0] + o.n[1])
    p -= s[1]


@method(3, 3)
def centered_rmsprop(o: Step, p: F32, s: F32, g: F32) -> None:
    d = o.decay(p, g)
    mix(s[0], o.n[0], d * d)
    mix(s[2], o.n[0], d)
    s[1] = o.n[2] * s[1] + o.lr * d / np.sqrt(s[0] - s[2] * s[2] + o.n[1])
    p -= s[1]


def move_by_moments(o: Step, p: F32, s: F32, d: F32, step: int) -> None:
    rate, root = o.correct(step)
    mix(s[0], o.n[0], d)
    mix(s[1], o.n[1], d * d)
    p -= s[0] * rate / (np.sqrt(s[1]) + o.n[2] * root)


@method(2, 3)
def fleet_adam(o: Step, p: F32, s: F32, g: F32) -> None:
    move_by_moments(o, p, s, o.decay(p, g), o.step)


@method(2, 3)
def lazy_adam(o: Step, p: F32, s: F32, g: F32) -> None:
    move_by_moments(o, p, s, o.decay(p, g), o.step + 1)


@method(2, 3)
def adamw(o: Step, p: F32, s: F32, g: F32) -> None:
    p -= o.lr * o.l2 * p
    move_by_moments(o, p, s, g, o.step)


def find_greatest(old: F32, d: F32) -> F32:
    return np.where(old > np.abs(d), old, np.abs(d))


def correct_first(o: Step) -> np.float32:
    return np.float32(float(o.lr) / (1 - raise_to(float(o.n[0]), o.step)))


@method(2, 2)
def adamax(o: Step, p: F32, s: F32, g: F32) -> None:
    d = g + o.l2 * p
    mix(s[0], o.n[0], d)
    s[1] = find_greatest(o.n[1] * s[1], d)
    p -= np.where(s[1] == 0, np.float32(0), correct_first(o) * s[0] / s[1])
    o.shrink(p, o.lr * o.l1)


@method(2, 3)
def fleet_adamax(o: Step, p: F32, s: F32, g: F32) -> None:
    d = o.decay(p, g)
    mix(s[0], o.n[0], d)
    s[1] = find_greatest(o.n[1] * s[1] + o.n[2], d)
    p -= correct_first(o) * s[0] / s[1]


@method(2, 2)
def ftrl(o: Step, p: F32, s: F32, g: F32) -> None:
    if o.lr == 0:
        return
    d, old, least = o.decay(p, g), np.sqrt(s[0]), o.n[0]
    s[0] += d * d
    root = np.sqrt(s[0])
    s[1] += d - (root - old) / o.lr * p
    z = s[1]
    beyond = np.where(z > least, least - z, np.where(z < -least, -least - z, np.float32(0) * z))
    p[...] = beyond / (root / o.lr + np.float32(2) * o.n[1])


@method(-1, 2)
def row_adagrad(o: Step, p: F32, s: F32, g: F32) -> None:
    """Rows p [n, dim], s [1, n, 1]."""
    for row, state, grad in zip(p, s[0], g, strict=True):
        d = o.decay(row, grad)
        state += np.float32(sum_squares(d) / len(d))
        row -= o.lr / (np.sqrt(state + o.n[1]) + o.n[0]) * d


@method(2, 3)
def lamb(o: Step, p: F32, s: F32, g: F32) -> None:
    """The whole parameter."""
    (rate, root), ratio = o.correct(o.step), ONE
    mix(s[0], o.n[0], g)
    mix(s[1], o.n[1], g * g)
    change = s[0] * rate / (np.sqrt(s[1]) + o.n[2] * root) + o.lr * o.l2 * p
    own, length = sum_squares(p), sum_squares(change)
    if o.l2 > 0 and own > 0 and length > 0:
        ratio = np.float32(float(o.lr) * float(np.sqrt(own)) / float(np.sqrt(length)))
    p -= ratio * change


NAMES = [name for name, *_ in METHODS]
SGD, MOMENTUM, ADAGRAD, FLEET_ADAGRAD, ADAM, FLEET_MOMENTUM = range(6)


def get_state_shape(method: int, rows: int, dim: int) -> tuple[int, int, int]:
    """Return the shape of the state of a matrix."""
    slots = METHODS[method][1]
    return (1, rows, 1) if slots < 0 else (slots, rows, dim)


def apply_optim(rule: Rule, step: int, value: F32, slots: F32, grad: F32) -> None:
    """Apply one optimizer step in place. slots: [slots, *value.shape], or [1, rows, 1]."""
    if rule.clip:
        most = np.float32(rule.clip)
        grad = np.where(grad > most, most, np.where(grad < -most, -most, grad))
    METHODS[rule.method][3](Step(rule, step), value, slots, grad)
