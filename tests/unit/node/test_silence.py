"""Silence of others, and pauses of our own."""

from __future__ import annotations

import pytest

from pslaunch.node.silence import Silence


@pytest.mark.parametrize("between_s", [0.05, 1.0, 2.0, 3.0, 6.0])
def test_lost_peer_is_noticed_at_any_period(between_s: float) -> None:
    silence, count = Silence(0.0), 1
    while silence.measure(between_s * count) < 30:
        count += 1
    assert between_s * count < 30 + 2 * between_s


def test_a_pause_of_our_own_leaves_others_the_time_they_had() -> None:
    silence = Silence(0.0)
    assert silence.measure(1.0) == 1
    assert silence.measure(100.0) == 1
    assert silence.measure(101.0) == 2
    silence.hear(101.5)
    assert silence.heard_s == 101.5
    assert silence.measure(102.0) == 0.5
    assert silence.measure(200.0) == 0.5
