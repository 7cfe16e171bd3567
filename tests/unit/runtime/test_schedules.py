"""Schedules of the learning rate: the core against its oracle, the oracle against numpy, and v2's options."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslaunch.runtime import _core
from pslaunch.runtime.engine import optimizer
from pslaunch.runtime.engine.kernel_numbers import SCHEDULES, Schedule
from pslaunch.runtime.engine.param_config import ParamConfig
from support import reference

pytestmark = pytest.mark.asan

numbers = st.floats(1e-9, 1e3)
factors = st.floats(0, 10)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Schedules of all kinds."""
    kind = draw(st.sampled_from(SCHEDULES))
    if kind in ("manual", "pass_manual"):
        ends = sorted(draw(st.sets(st.integers(0, 2**40), min_size=1, max_size=8)))
        return Schedule(kind=kind, segments=tuple((end, draw(factors)) for end in ends))
    if kind == "constant":
        return Schedule()
    return Schedule(kind=kind, a=draw(numbers), b=draw(numbers))


def find_with_numpy(schedule: Schedule, lr: float, n: int, passes: int) -> float:
    """Return the rate by numpy's functions, in double precision."""
    a, b = np.float64(schedule.a), np.float64(schedule.b)
    with np.errstate(all="ignore"):
        if schedule.kind == "poly":
            return float(lr * np.power(1 + a * n, -b))
        if schedule.kind == "exp":
            return float(lr * np.power(a, n / b))
        if schedule.kind == "discexp":
            return float(lr * np.power(a, np.floor(n / b)))
        if schedule.kind == "linear":
            return float(np.maximum(lr - a * n, b))
    if schedule.kind == "constant":
        return lr
    at = passes if schedule.kind == "pass_manual" else n
    segment = np.searchsorted([last for last, _ in schedule.segments], at)
    return lr * [*schedule.segments, schedule.segments[-1]][int(segment)][1]


@given(schedules(), st.floats(0, 10, width=32), st.integers(0, 2**45), st.integers(0, 1000))
def test_schedule_has_the_bits_of_its_oracle(schedule: Schedule, lr: float, n: int, passes: int) -> None:
    with np.errstate(all="ignore"):
        want = reference.find_scheduled_rate(schedule, lr, n, passes)
    got = np.float32(_core.find_rate(schedule.pack(), lr, n, passes))
    assert got.tobytes() == want.tobytes()


@given(schedules(), st.floats(0.125, 10, width=32), st.integers(0, 2**45), st.integers(0, 1000))
def test_oracle_agrees_with_numpy(schedule: Schedule, lr: float, n: int, passes: int) -> None:
    want = find_with_numpy(schedule, lr, n, passes)
    if not 1e-30 < want < 1e30:
        return
    with np.errstate(all="ignore"):
        assert float(reference.find_scheduled_rate(schedule, lr, n, passes)) == pytest.approx(want, rel=1e-6)


def name_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return options by the names that optimizers have for them."""
    return {f"learning_rate_{name}": value for name, value in options.items()}


@pytest.mark.parametrize(
    ("options", "samples", "passes", "rate"),
    [
        ({}, 10**9, 9, 0.5),
        ({"decay_a": 0.1, "decay_b": 2.0}, 10, 0, 0.125),
        ({"schedule": "constant"}, 10, 0, 0.5),
        ({"schedule": "exp", "decay_a": 0.25, "decay_b": 100}, 50, 0, 0.25),
        ({"schedule": "discexp", "decay_a": 0.5, "decay_b": 100}, 299, 0, 0.125),
        ({"schedule": "linear", "decay_a": 0.125, "decay_b": 0.125}, 2, 0, 0.25),
        ({"schedule": "manual", "args": "10:1.0,20:0.5"}, 11, 0, 0.25),
        ({"schedule": "manual", "args": "10:1.0,20:0.5"}, 1000, 0, 0.25),
        ({"schedule": "pass_manual", "args": "0:1.0,1:0.5"}, 1000, 0, 0.5),
        ({"schedule": "pass_manual", "args": "0:1.0,1:0.5"}, 1000, 1, 0.25),
    ],
)
def test_rates_follow_the_options(options: dict[str, Any], samples: int, passes: int, rate: float) -> None:
    made = optimizer.Momentum(learning_rate=0.5, **name_options(options))
    for factor in (1.0, 2.0):
        config = ParamConfig(name="p", rows=1, cols=1, learning_rate=factor)
        rule = made.make_rule(config).pack_at(samples, passes, 1.0)
        assert rule[1] == pytest.approx(rate * factor, rel=1e-7)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"schedule": "discex"}, "schedule='discex'; did you mean discexp?"),
        ({"schedule": 7}, "schedule=7, expected one of constant, poly"),
        ({"decay_a": float("nan")}, "decay_a nan, expected 0 to 1e30"),
        ({"decay_b": -1}, "decay_b -1, expected 0 to 1e30"),
        ({"schedule": "exp"}, "decay_a 0, expected 1e-30 to 1e30"),
        ({"schedule": "manual"}, "args='', expected text as '1000:1.0,2000:0.5'"),
        ({"args": "1:1"}, "args='1:1', which has no effect with the schedule poly"),
        ({"schedule": "manual", "args": "10:1,x:2"}, "'x:2', expected the end of a segment, a colon and a"),
        ({"schedule": "manual", "args": "10:1,5:2"}, "the end of a segment 5, expected ascending ones"),
        ({"schedule": "manual", "args": "-1:1"}, "the end of a segment is negative"),
        ({"schedule": "manual", "args": "10:inf"}, "a segment's factor inf, expected a finite number"),
        ({"schedule": "constant", "decay_a": 0.1}, r"decay_a 0\.1, expected none, or 0"),
    ],
)
def test_wrong_options_of_a_schedule_are_errors(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=rf"optimizer\.Adam: .*{text}"):
        optimizer.Adam(**name_options(options))
