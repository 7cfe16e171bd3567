"""Optimizers: how the optimizer's numbers and a parameter's go together."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from pslaunch.runtime.engine import optimizer
from pslaunch.runtime.engine.attr import ParamAttr
from pslaunch.runtime.engine.clip import ClipGradByGlobalNorm, ClipGradByNorm, ClipGradByValue
from pslaunch.runtime.engine.param_config import ParamConfig, make_config
from pslaunch.runtime.engine.regularizer import L1Decay
from pslaunch.runtime.engine.strategy import Strategy

pytestmark = pytest.mark.asan


config = functools.partial(ParamConfig, name="p", rows=1, cols=1)
OPTIMIZERS = [
    name for name in optimizer.__all__ if name not in ("L2Regularization", "ModelAverage", "Optimizer", "lr")
]


def test_adagrad_applies_l2() -> None:
    adagrad = optimizer.AdaGrad(learning_rate=3e-3, regularization=optimizer.L2Regularization(8e-4))
    rule = adagrad.make_rule(config(learning_rate=2.0))
    assert (rule.method, rule.learning_rate, rule.decay) == ("adagrad", 6e-3, 8e-4)
    assert rule.pack()[5] == 1e-6
    assert adagrad.make_rule(config(decay=0.0)).decay == 0.0


def test_momentum_follows_its_formula() -> None:
    assert optimizer.Momentum(momentum=0.9).make_rule(config()).method == "momentum"
    assert optimizer.Momentum(momentum=0).make_rule(config()).method == "sgd"
    assert optimizer.Momentum().make_rule(config()).kernel.slots == 0
    own = optimizer.Momentum(momentum=0.9).make_rule(config(momentum=0.5))
    assert (own.numbers, own.kernel.slots) == ({"momentum": 0.5}, 1)
    assert optimizer.SGD().make_rule(config()).learning_rate == 1e-3


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"learnin_rate": 1}, "no option learnin_rate; did you mean learning_rate"),
        ({"model_average": object()}, "model_average=.*, expected ModelAverage"),
        ({"gradient_clipping_threshold": -1}, "gradient_clipping_threshold=-1"),
        ({"async_lagged_grad_discard_ratio": 1.6}, "has no effect without is_async"),
        ({"learning_rate": -1}, "learning_rate=-1"),
        ({"regularization": 0.1}, "expected L2Regularization"),
    ],
)
def test_unknown_optimizer_is_an_error(options: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        optimizer.AdaGrad(**options)


def test_the_published_optimizer_is_half_asynchronous() -> None:
    made = optimizer.AdaGrad(
        is_async=True,
        async_lagged_grad_discard_ratio=1.6,
        learning_rate=3e-3,
        regularization=optimizer.L2Regularization(8e-4),
    )
    assert (made.strategy.mode, made.strategy.count_discard(4), made.warning) == ("half_async", 6, "")


def test_an_optimizer_takes_strategies_alone() -> None:
    made = optimizer.Momentum(momentum=0)
    with pytest.raises(TypeError, match=r"optimizer\.Momentum: strategy='geo', expected a Strategy"):
        made.strategy = "geo"  # type: ignore[assignment]
    made.strategy = Strategy(mode="geo", k_steps=10)
    assert made.strategy.k_steps == 10


def test_is_async_and_a_strategy_exclude_each_other() -> None:
    made = optimizer.AdaGrad(is_async=True)
    with pytest.raises(
        ValueError, match=r"AdaGrad: is_async=True and strategy \(now mode async, pending 1\)"
    ):
        made.strategy = Strategy(mode="async")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_misspelt_attribute_is_an_error(name: str) -> None:
    with pytest.raises(AttributeError, match="stratgy"):
        getattr(optimizer, name)().stratgy = Strategy(mode="async")


def test_adam_has_its_numbers_and_clips_the_sum() -> None:
    adam = optimizer.Adam(beta1=0.8, learning_rate=0.5, gradient_clipping_threshold=25)
    rule = adam.make_rule(config())
    assert rule.pack() == (4, 0.5, 0.0, 0.0, 25.0, 0.8, 0.999, 1e-8)
    assert rule.kernel.slots == 2
    with pytest.raises(ValueError, match=r"optimizer\.Adam: beta2=1\.0 must be at least 0 and below 1"):
        optimizer.Adam(beta2=1)


def choose(made: optimizer.Optimizer, *, fleet: bool = False, rows: bool = False) -> tuple[Any, ...]:
    """Return the method of v2's form or PaddlePaddle 2's, and its numbers."""
    made.share = 1.0 if fleet else None
    rule = made.make_rule(config(), rows=rows)
    return rule.method, *rule.pack()[5 : 5 + len(rule.kernel.numbers)]


def test_form_of_a_method_is_that_of_its_program() -> None:
    adamax, rmsprop = optimizer.Adamax(0.1, 0.5), optimizer.RMSProp(0.1, 0.5, 1e-4)
    assert choose(adamax) == ("adamax", 0.5, 0.999)
    assert choose(adamax, fleet=True) == ("fleet_adamax", 0.5, 0.999, 1e-8)
    assert choose(rmsprop) == ("rmsprop", 0.5, 1e-4)
    assert choose(rmsprop, fleet=True) == ("fleet_rmsprop", 0.5, 1e-4, 0.0)
    assert choose(optimizer.RMSProp(0.1, 0.5, 1e-4, 0.75, centered=True), fleet=True) == (
        "centered_rmsprop", 0.5, 1e-4, 0.75,
    )  # fmt: skip
    with pytest.raises(
        ValueError, match=r"optimizer\.Adamax: epsilon has no effect: the method of v2 has none"
    ):
        choose(optimizer.Adamax(epsilon=1e-4))
    assert choose(optimizer.Adadelta(0.1, 1e-4, 0.5), fleet=True) == ("fleet_adadelta", 0.5, 1e-4)
    assert choose(optimizer.Momentum(learning_rate=0.1)) == ("sgd",)
    assert choose(optimizer.Momentum(learning_rate=0.1), fleet=True) == ("fleet_momentum", 0.9)
    assert choose(optimizer.Momentum(0.1, 0.5, use_nesterov=True), fleet=True) == ("nesterov", 0.5)
    assert choose(optimizer.Ftrl(0.1, 2.0, 3.0)) == ("ftrl", 2.0, 3.0)


def test_rows_have_forms_of_their_own() -> None:
    adagrad = optimizer.Adagrad(0.1, by_row=True, initial_accumulator_value=2.0)
    assert choose(adagrad, rows=True) == ("row_adagrad", 1e-6, 2.0)
    assert choose(adagrad) == ("fleet_adagrad", 1e-6, 2.0)
    lazy = optimizer.Adam(lazy_mode=True)
    assert choose(lazy, fleet=True, rows=True)[0] == "lazy_adam"
    assert choose(lazy, fleet=True)[0] == "fleet_adam"
    with pytest.raises(ValueError, match=r"parameter p: optimizer\.Lamb does not support sparse updates"):
        choose(optimizer.Lamb(), rows=True)


def test_decay_beside_the_gradient_leaves_parameters_out() -> None:
    adamw = optimizer.AdamW(0.1, weight_decay=0.5, apply_decay_param_fun=lambda name: name != "p")
    assert adamw.make_rule(config()).decay == 0.0
    lamb = optimizer.Lamb(0.1, 0.5, exclude_from_weight_decay_fn=lambda config: config.name != "p")
    assert lamb.make_rule(config()).decay == 0.5
    with pytest.raises(ValueError, match=r"parameter p: optimizer\.AdamW does not support regularizers"):
        adamw.make_rule(config(decay=0.1))


def test_l1_is_the_optimizers_or_the_parameters_own() -> None:
    made = optimizer.SGD(weight_decay=L1Decay(0.25))
    assert (made.make_rule(config()).l1, made.make_rule(config()).decay) == (0.25, 0.0)
    assert optimizer.SGD().make_rule(config(l1=0.5)).l1 == 0.5


def test_adagrad_has_no_momentum() -> None:
    with pytest.raises(ValueError, match=r"parameter p: optimizer\.AdaGrad does not support momentum"):
        optimizer.AdaGrad().make_rule(config(momentum=0.9))


def test_norms_are_clipped_at_a_trainers_share_of_the_loss() -> None:
    one, other = np.array([3.0, 0.0], np.float32), np.array([[0.0, 4.0]], np.float32)
    ClipGradByNorm(4.0).clip([one, other], 0.5)
    assert (one.tolist(), other.tolist()) == ([2.0, 0.0], [[0.0, 2.0]])
    one, other = np.array([3.0, 0.0], np.float32), np.array([[0.0, 4.0]], np.float32)
    ClipGradByGlobalNorm(5.0).clip([one, other], 0.5)
    assert (one.tolist(), other.tolist()) == ([1.5, 0.0], [[0.0, 2.0]])
    ClipGradByGlobalNorm(5.0).clip([one, other], 0.5)  # as long as it may be
    assert other.tolist() == [[0.0, 2.0]]


def test_values_are_clipped_at_the_parameters_own_threshold() -> None:
    made = optimizer.SGD(grad_clip=ClipGradByValue(3.0))
    assert made.make_rule(config()).clip == 3.0
    assert made.make_rule(config(clip=0.0)).clip == 0.0
    attr = ParamAttr(gradient_clipping_threshold=2.0)
    assert made.make_rule(make_config("p", 1, 1, attr, bias=False)).clip == 2.0
    with pytest.raises(ValueError, match=r"nn\.ClipGradByValue: max=1, min=0: expected"):
        ClipGradByValue(1, 0)
    with pytest.raises(
        TypeError, match=r"optimizer\.SGD: grad_clip=1, expected ClipGradByNorm or ClipGradByGlobalNorm or"
    ):
        optimizer.SGD(grad_clip=1)
