"""The event loop: descriptors before timers, signals from the loop, nothing kept; silence of others."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from pslaunch.node.loop import Loop, Silence


def test_readable_descriptors_come_before_due_timers_and_cancelled_ones_never(loop: Loop) -> None:
    seen: list[str] = []
    read_fd, write_fd = os.pipe()
    os.write(write_fd, b"x")

    def read() -> None:
        seen.append(os.read(read_fd, 9).decode())
        loop.watch(read_fd)

    loop.watch(read_fd, read=read)
    loop.call_after(0.0, lambda: seen.append("cancelled")).cancel()
    loop.call_after(0.0, lambda: seen.append("timer"))
    loop.run(lambda: len(seen) == 2)
    assert seen == ["x", "timer"]
    os.close(read_fd)
    os.close(write_fd)


def test_signals_are_handled_in_the_loop_and_handlers_are_given_back() -> None:
    seen: list[int] = []
    with contextlib.closing(Loop()) as loop:
        loop.handle_signals({signal.SIGUSR1: lambda: seen.append(signal.SIGUSR1)})
        os.kill(os.getpid(), signal.SIGUSR1)
        loop.run(lambda: bool(seen))
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_an_ignored_signal_stays_ignored(loop: Loop) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        loop.handle_signals({signal.SIGHUP: lambda: None})
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_pause_is_known_for_a_while_though_its_clock_stood_too() -> None:
    uptime_s = 0.0
    with contextlib.closing(
        Loop(clock=lambda: 7.0, uptime=lambda: uptime_s)
    ) as loop:  # a machine that sleeps
        loop.run_once(0.0)
        assert loop.describe_pause(5) == ""
        uptime_s = 60.0
        loop.run_once(0.0)
        assert "did not run for 60 s" in loop.describe_pause(5)
        uptime_s = 66.0
        assert loop.describe_pause(5) == ""


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
