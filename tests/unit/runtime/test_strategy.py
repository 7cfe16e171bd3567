"""Modes by their v2 options, and the number of updates from which a gradient is late."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslaunch.runtime.strategy import Strategy, make_v2_strategy


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
    "numbers",
    [
        {"mode": "async", "pending": 0},
        {"mode": "half_async", "pending": 2},
        {"mode": "geo"},
        {"mode": "geo", "k_steps": -1},
        {"mode": "sync", "k_steps": 3},
        {"mode": "geo", "k_steps": 3, "discard_ratio": 1.6},
        {"mode": "sync", "discard_ratio": 1.6},
    ],
)
def test_numbers_without_effect_are_errors(numbers: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^Strategy\("):
        Strategy(**numbers)


@given(st.integers(101, 9999), st.integers(1, 4096))
def test_the_product_of_a_decimal_ratio_is_exact(hundredths: int, trainers: int) -> None:
    strategy = Strategy(mode="half_async", discard_ratio=hundredths / 100)
    assert strategy.count_discard(trainers) == math.floor(Fraction(hundredths * trainers, 100))
