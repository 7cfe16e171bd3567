"""Initial values by PaddlePaddle 2's names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pslaunch.runtime.paddle2.program.initializer import (
    Constant,
    KaimingNormal,
    KaimingUniform,
    calculate_gain,
    set_global_initializer,
)
from pslaunch.runtime.paddle2.program.param_attr import make_param


@pytest.fixture
def usual() -> Iterator[None]:
    """Sets the usual initial values back."""
    yield
    set_global_initializer(None)


@pytest.mark.parametrize(
    ("nonlinearity", "slope", "gain"),
    [("relu", 0.0, 2**0.5), ("leaky_relu", 3.0, 0.2**0.5), ("tanh", 0.0, 5 / 3), ("linear", 0.0, 1.0)],
)
def test_kaiming_has_the_gain_of_its_function(nonlinearity: str, slope: float, gain: float) -> None:
    assert calculate_gain(nonlinearity, slope) == pytest.approx(gain)
    normal, uniform = KaimingNormal(None, slope, nonlinearity), KaimingUniform(64, slope, nonlinearity)
    assert make_param(normal, "p", [16, 4], is_bias=False).std == pytest.approx(gain / 4)
    assert make_param(uniform, "p", [16, 4], is_bias=False).std == pytest.approx(3**0.5 * gain / 8)


def test_unknown_function_is_an_error() -> None:
    with pytest.raises(ValueError, match="nonlinearity='relu6', expected one of sigmoid, linear, tanh, relu"):
        KaimingNormal(nonlinearity="relu6")


@pytest.mark.usefixtures("usual")
def test_global_initializer_is_that_of_parameters_without_their_own() -> None:
    set_global_initializer(Constant(2.0), Constant(3.0))
    begun = [make_param(None, "p", [4, 4], is_bias=is_bias) for is_bias in (False, True)]
    assert [(one.mean, one.std) for one in begun] == [(2.0, 0.0), (3.0, 0.0)]
    assert make_param(Constant(1.0), "p", [4, 4], is_bias=True).mean == 1.0
    set_global_initializer(None)
    assert make_param(None, "p", [4, 4], is_bias=False).kind == "uniform"
