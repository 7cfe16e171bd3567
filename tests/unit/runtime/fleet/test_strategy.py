"""Modes by Fleet's names, and errors for options without effect."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from pslaunch.runtime.engine.entry import ShowClickEntry
from pslaunch.runtime.engine.param_config import ParamConfig
from pslaunch.runtime.engine.strategy import Strategy
from pslaunch.runtime.paddle2.fleet import DistributedStrategy, StrategyFactory
from pslaunch.runtime.paddle2.fleet.distributed_strategy import make_days, resolve_strategy


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
        (set_field("a_sync_configs", {"k_steps": -2}), "k_steps=-2: expected a whole number from 0 to"),
        (lambda: resolve_strategy("async"), "strategy='async', expected fleet.DistributedStrategy()"),
    ],
)  # fmt: skip
def test_options_without_effect_are_named(act: Callable[[], object], text: str) -> None:
    with pytest.raises((AttributeError, TypeError, ValueError), match=re.escape(text)):
        act()


LONG = "table_parameters.emb.accessor.ctr_accessor_param."
TABLES = {
    "emb": ParamConfig(name="emb", rows=9, cols=2, sparse=True, entry=ShowClickEntry("show", "click")),
    "plain": ParamConfig(name="plain", rows=9, cols=2, sparse=True),
}


def test_tables_end_their_day_with_the_numbers_of_the_accessor() -> None:
    strategy = DistributedStrategy()
    assert make_days(strategy, TABLES) == make_days(None, TABLES)
    strategy.sparse_table_configs = {
        "emb": {f"{LONG}show_click_decay_rate": 0.5, "delete_after_unseen_days": 3, "embedx_threshold": 10}
    }
    assert make_days(strategy, TABLES) == {"emb": {"decay": 0.5, "score": 0.8, "unseen": 3}}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"emb": 5}, "expected a dict of dicts"),
        ({"plain": {}}, "'plain' is no table with an entry rule; give its embedding"),
        ({"em": {}}, "'em' is no table with an entry rule; did you mean emb?"),
        ({"emb": {"base_threshold": 1.5}}, "base_threshold=1.5 has no effect in this runtime; remove it"),
        ({"emb": {"nonclk_coeff": 0.2}}, "nonclk_coeff=0.2, but the table has ShowClickEntry("),
        ({"emb": {LONG + "click_coeff": 2}}, "click_coeff=2, but the table has ShowClickEntry("),
    ],
)
def test_numbers_of_tables_without_effect_are_named(given: Any, text: str) -> None:
    strategy = DistributedStrategy()
    with pytest.raises((TypeError, ValueError), match=re.escape(text)):
        strategy.sparse_table_configs = given
        make_days(strategy, TABLES)


def test_option_set_in_the_dict_itself_is_checked() -> None:
    strategy = DistributedStrategy()
    strategy.a_sync = True
    strategy.a_sync_configs["kstep"] = 100  # type: ignore[index]  # as PaddlePaddle's programs do
    with pytest.raises(ValueError, match=r"kstep=100 has no effect in this runtime; did you mean k_steps\?"):
        resolve_strategy(strategy)
