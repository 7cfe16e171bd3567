"""Modes by their v2 options, and the number of updates from which a gradient is late."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslaunch.runtime.engine.strategy import Strategy, make_v2_strategy


def test_without_is_async_steps_are_synchronous() -> None:
    assert make_v2_strategy(False, None, "o") == (Strategy(mode="sync"), "")
    assert Strategy().count_discard(4) == 0


def test_is_async_drops_by_the_given_ratio() -> None:
    strategy, note = make_v2_strategy(True, 1.6, "o")
    assert strategy == Strategy(mode="half_async", discard_ratio=1.6) and not note
    assert [strategy.count_discard(n) for n in (1, 2, 4, 5)] == [1, 3, 6, 8]


@pytest.mark.parametrize(
    ("ratio", "text"), [(None, "is not given"), (1.0, "1.0 is not above 1"), (0, "0 is not")]
)
def test_small_ratios_become_v2s_with_a_warning(ratio: float | None, text: str) -> None:
    strategy, note = make_v2_strategy(True, ratio, "optimizer.SGD")
    assert strategy == Strategy(mode="half_async", discard_ratio=1.5)
    assert f"optimizer.SGD: async_lagged_grad_discard_ratio {text}" in note and "1.5 is used" in note


@pytest.mark.parametrize("ratio", [-1, math.inf, math.nan, "1.6"])
def test_impossible_ratios_are_errors(ratio: object) -> None:
    with pytest.raises(ValueError, match=r"o: async_lagged_grad_discard_ratio=.*, expected a finite number"):
        make_v2_strategy(True, ratio, "o")


def test_ratio_without_is_async_is_an_error() -> None:
    with pytest.raises(
        ValueError, match=r"o: async_lagged_grad_discard_ratio=1\.6 has no effect without is_async"
    ):
        make_v2_strategy(False, 1.6, "o")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mode": "gio"}, "Strategy(mode='gio'): expected sync, half_async, async or geo"),
        ({"mode": "geo"}, 'Strategy(k_steps=0): mode="geo" needs k_steps of at least 1'),
        ({"mode": "geo", "k_steps": -1}, 'Strategy(k_steps=-1): mode="geo" needs k_steps of at least 1'),
        ({"mode": "async", "pending": 0}, "Strategy(pending=0): expected at least 1"),
        ({"mode": "half_async", "pending": 2}, "Strategy(pending=2): pending has no effect"),
        ({"mode": "sync", "k_steps": 3}, "Strategy(k_steps=3): k_steps has no effect in mode sync"),
        ({"mode": "geo", "k_steps": 3, "discard_ratio": 1.6}, "discard_ratio has no effect in mode geo"),
        ({"mode": "sync", "discard_ratio": 1.6}, "Strategy(discard_ratio=1.6): discard_ratio has no effect"),
        ({"mode": "async", "k_steps": 3}, "Strategy(k_steps=3): k_steps has no effect in mode async"),
        ({"mode": "geo", "k_steps": 2.5}, "Strategy(k_steps=2.5): expected a whole number"),
        ({"mode": "async", "discard_ratio": 0}, "discard_ratio=0): expected a finite number above 0"),
        ({"mode": "async", "discard_ratio": math.inf}, "expected a finite number above 0"),
        ({"mode": "async", "discard_ratio": "2"}, "discard_ratio='2'): expected a finite number above 0"),
    ],
)
def test_errors_name_the_remedy(options: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(text)):
        Strategy(**options)


@pytest.mark.parametrize(("ratio", "count"), [(0.1, 1), (1e300, 2**32 - 1)])
def test_extreme_ratios_keep_their_meaning_in_the_core(ratio: float, count: int) -> None:
    """0 would be "never", and greater counts do not fit into 32 bits."""
    assert Strategy(mode="async", discard_ratio=ratio).count_discard(2) == count


def test_a_strategy_shows_its_mode_and_the_numbers_of_this_mode() -> None:
    strategies = [
        Strategy(),
        Strategy(mode="half_async", discard_ratio=1.5),
        Strategy(mode="async"),
        Strategy(mode="geo", k_steps=10),
    ]
    assert [str(one) for one in strategies] == [
        "mode sync",
        "mode half_async, discard_ratio 1.5",
        "mode async, pending 1",
        "mode geo, k_steps 10",
    ]


@given(st.integers(101, 9999), st.integers(1, 4096))
def test_the_product_of_a_decimal_ratio_is_exact(hundredths: int, trainers: int) -> None:
    strategy = Strategy(mode="half_async", discard_ratio=hundredths / 100)
    assert strategy.count_discard(trainers) == math.floor(Fraction(hundredths * trainers, 100))
