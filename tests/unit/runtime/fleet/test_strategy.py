"""Modes by Fleet's names, and errors for options without effect."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from pslaunch.runtime.engine.strategy import Strategy
from pslaunch.runtime.paddle2.fleet import DistributedStrategy, StrategyFactory
from pslaunch.runtime.paddle2.fleet.distributed_strategy import resolve_strategy


@pytest.mark.parametrize(
    ("fields", "mode"),
    [
        ({}, Strategy()),
        ({"a_sync": False}, Strategy()),
        ({"a_sync": True}, Strategy(mode="async")),
        ({"a_sync": True, "a_sync_configs": {"k_steps": 0}}, Strategy(mode="async")),
        ({"a_sync": True, "a_sync_configs": {"k_steps": -1}}, Strategy(mode="async")),
        ({"a_sync_configs": {"k_steps": 50}, "a_sync": True}, Strategy(mode="geo", k_steps=50)),
        ({"a_sync_configs": {"launch_barrier": True}}, Strategy()),
        ({"a_sync": True, "a_sync_configs": {"send_queue_size": 32}}, Strategy(mode="async")),
    ],
)
def test_a_sync_chooses_the_mode(fields: dict[str, Any], mode: Strategy) -> None:
    strategy = DistributedStrategy()
    for name, value in fields.items():
        setattr(strategy, name, value)
    assert resolve_strategy(strategy) == mode


def test_older_names_choose_the_same_modes() -> None:
    make = StrategyFactory
    assert resolve_strategy(make.create_sync_strategy()) == Strategy() == resolve_strategy(None)
    assert make.create_half_async_strategy() == Strategy(mode="half_async")
    assert make.create_async_strategy() == Strategy(mode="async")
    assert make.create_geo_strategy(7) == Strategy(mode="geo", k_steps=7)


def set_field(name: str, value: object) -> Callable[[], object]:
    def act() -> object:
        strategy = DistributedStrategy()
        setattr(strategy, name, value)
        return strategy.make_strategy()

    return act


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (set_field("a_sync_configs", {"k_steps": 5}), "{'k_steps': 5} has no effect without a_sync=True"),
        (set_field("async", True), "async=True has no effect in this runtime; did you mean a_sync?"),
        (set_field("amp", True), "DistributedStrategy.amp=True has no effect in this runtime; remove it"),
        (set_field("a_sync", 1), "a_sync=1, expected True or False"),
        (set_field("a_sync_configs", 5), 'expected a dict, as {"k_steps": 100}'),
        (set_field("a_sync_configs", {"ksteps": 5}), "ksteps=5 has no effect in this runtime; did you mean"),
        (set_field("a_sync_configs", {"use_ps_gpu": 1}), "use_ps_gpu=1 has no effect"),
        (set_field("a_sync_configs", {"k_steps": -2}), "k_steps=-2: expected 0 to"),
        (lambda: resolve_strategy("async"), "strategy='async', expected fleet.DistributedStrategy()"),
    ],
)  # fmt: skip
def test_options_without_effect_are_named(act: Callable[[], object], text: str) -> None:
    with pytest.raises((AttributeError, TypeError, ValueError), match=re.escape(text)):
        act()


def test_option_set_in_the_dict_itself_is_checked() -> None:
    strategy = DistributedStrategy()
    strategy.a_sync = True
    strategy.a_sync_configs["kstep"] = 100  # type: ignore[index]  # as PaddlePaddle's programs do
    with pytest.raises(ValueError, match=r"kstep=100 has no effect in this runtime; did you mean k_steps\?"):
        resolve_strategy(strategy)
