"""Schedulers of the learning rate: rates, states, mistakes, and the optimizers that use them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pslaunch.runtime as paddle
from pslaunch.runtime.engine import lr
from pslaunch.runtime.engine.optimizer import Optimizer
from pslaunch.runtime.engine.param_config import ParamConfig
from pslaunch.runtime.paddle2 import static
from pslaunch.runtime.paddle2.program.initializer import Constant


def list_rates(scheduler: lr.LRScheduler, count: int) -> list[float]:
    """Return the rates before and after each step."""
    rates = [scheduler()]
    for _ in range(count - 1):
        scheduler.step()
        rates.append(scheduler())
    return rates


def test_rates_follow_the_steps() -> None:
    assert list_rates(lr.PiecewiseDecay([2, 3], [1.0, 0.5, 0.25]), 5) == [1.0, 1.0, 0.5, 0.25, 0.25]
    assert list_rates(lr.MultiStepDecay(1.0, [1, 3], gamma=0.5), 5) == [1.0, 0.5, 0.5, 0.25, 0.25]
    warmup = lr.LinearWarmup(lr.StepDecay(0.5, step_size=2, gamma=0.5), 2, start_lr=0.0, end_lr=0.5)
    assert list_rates(warmup, 6) == [0.0, 0.25, 0.5, 0.5, 0.25, 0.25]
    plateau = lr.ReduceOnPlateau(1.0, factor=0.5, patience=1)
    for metric in (2.0, np.float32(2.0), np.array([2.0])):
        plateau.step(metric)
    assert plateau() == 0.5


def test_scheduler_of_a_program_goes_on_from_its_state(capsys: pytest.CaptureFixture[str]) -> None:
    class Halves(lr.LRScheduler):
        def get_lr(self) -> float:
            return self.base_lr * 0.5**self.last_epoch

    first, second = Halves(1.0), Halves(1.0, verbose=True)
    first.step()
    second.set_state_dict(first.state_dict())
    second.step()
    assert (second(), second.last_epoch) == (0.25, 2)
    assert capsys.readouterr().out.splitlines()[-1] == "Epoch 2: Halves set learning rate to 0.25."
    with pytest.raises(ValueError, match=r"lr\.Halves: the state has no last_lr"):
        second.set_state_dict({"last_epoch": 1})


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: lr.ExponentialDecay(0.1, gamma=2.0),
            r"lr\.ExponentialDecay: gamma=2\.0, expected a number bet",
        ),
        (lambda: lr.PiecewiseDecay([1, 2], [0.1, 0.2]), "expected one more than boundaries"),
        (lambda: lr.MultiStepDecay(0.1, [3, 2]), "milestones=.*, expected ascending numbers"),
        (lambda: lr.StepDecay("0.1", 2), "learning_rate='0.1', expected a number"),
        (lambda: lr.StepDecay(-0.1, 2), r"learning_rate=-0\.1, expected 0 or more"),
        (lambda: lr.LambdaDecay(0.1, 0.5), "lr_lambda=0.5, expected a function"),
        (lambda: lr.LinearWarmup(0.1, 5, 0.1, 0.1), "expected more than start_lr"),
        (
            lambda: paddle.optimizer.SGD(lr.StepDecay(0.1, 2), learning_rate_schedule="poly"),
            "learning_rate_schedule and a scheduler as learning_rate both change the rate; remove one",
        ),
        (
            lambda: paddle.optimizer.SGD(lr.LambdaDecay(0.1, lambda n: -1.0)).get_lr(),
            r"optimizer\.SGD: the rate of its scheduler is -0\.1, expected 0 or more",
        ),
    ],
)
def test_mistakes_are_named(make: Callable[[], Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        make()


def test_momentum_keeps_gradients_without_their_rates_if_a_scheduler_changes_them() -> None:
    config = ParamConfig(name="p", rows=1, cols=1, learning_rate=2.0)
    number, scheduled = (
        paddle.optimizer.Momentum(0.1, 0.9),
        paddle.optimizer.Momentum(lr.StepDecay(0.1, 2), 0.9),
    )
    assert (number.make_rule(config).method, scheduled.make_rule(config).method) == (
        "momentum",
        "fleet_momentum",
    )
    assert scheduled.make_rule(config).pack_at(0, 0, 0.25)[1] == 0.5
    assert (number.get_lr(), scheduled.get_lr()) == (0.1, 0.1)


def learn(make: Callable[[Any], Optimizer], scheduler: lr.LRScheduler) -> list[float]:
    """Return the values of a parameter whose gradient is 1, before each of four steps."""
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        x = static.data("x", [None, 1])
        value = paddle.mean(static.nn.fc(x, 1, weight_attr=Constant(1.0), bias_attr=False))
        make(scheduler).minimize(value)
    executor = static.Executor()
    executor.run(startup)
    values = []
    for _ in range(4):
        values.append(
            float(executor.run(main, feed={"x": np.ones((2, 1), np.float32)}, fetch_list=[value])[0])
        )
        scheduler.step()
    return values


def test_program_learns_with_the_current_rate() -> None:
    rates = [0.5, 0.25, 0.125, 1.0]
    assert learn(paddle.optimizer.SGD, lr.PiecewiseDecay([1, 2, 3], rates)) == [1.0, 0.5, 0.25, 0.125]
    own = learn(lambda rate: paddle.optimizer.Momentum(rate, 0.5), lr.PiecewiseDecay([1, 2, 3], rates))
    assert own == [1.0, 0.5, 0.125, -0.09375]


def test_module_is_imported_by_its_name_there() -> None:
    assert importlib.import_module("pslaunch.runtime.optimizer.lr") is lr is paddle.optimizer.lr
