"""Trainers are present, gone or finished: the roster is fed with events and times."""

from __future__ import annotations

from pslaunch.runtime.pserver.roster import Roster


def roster(*trainers: int) -> Roster:
    """A pserver of two ports for two trainers, with these connected to both."""
    found = Roster(expected=2, ports=2, trainer_timeout_s=60.0)
    for t in trainers:
        assert found.admit(t, 10 + t, f"10.0.0.{t}:5") == ""
        found.note_connected(t, 0)
        found.note_connected(t, 1)
    return found


def test_a_trainer_counts_when_every_port_has_it() -> None:
    found = roster(0)
    found.admit(1, 11, "10.0.0.1:5")
    found.note_connected(1, 0)
    assert found.present == 1
    found.note_connected(1, 1)
    assert found.present == 2


def test_another_process_of_the_same_id_is_refused_with_both_addresses() -> None:
    why = roster(0).admit(0, 99, "10.0.0.9:7")
    assert "10.0.0.0:5" in why
    assert "10.0.0.9:7" in why


def test_gone_for_too_long_is_a_verdict_that_names_the_trainer() -> None:
    found = roster(0, 1)
    assert found.note_lost(1, 0, now_s=100.0)
    assert found.note_lost(1, 1, now_s=130.0)
    assert found.find_failure(159.9) == ""
    assert "trainer 1 at 10.0.0.1:5" in found.find_failure(160.0)


def test_back_at_every_port_is_back() -> None:
    found = roster(0)
    found.note_lost(0, 0, now_s=100.0)
    found.note_lost(0, 1, now_s=100.0)
    found.note_connected(0, 0)
    assert found.find_failure(200.0)
    found.note_connected(0, 1)
    assert found.find_failure(200.0) == ""


def test_a_trainer_that_finished_may_go() -> None:
    found = roster(0, 1)
    for t in (0, 1):
        assert not found.all_finished
        for port in (0, 1):
            found.note_finished(t, port)
            assert not found.note_lost(t, port, now_s=1.0)
    assert found.all_finished
    assert found.find_failure(1000.0) == ""


def test_a_trainer_that_finished_at_one_port_is_gone_until_it_is_back_at_the_other() -> None:
    found = roster(0)
    found.note_finished(0, 0)
    found.note_lost(0, 0, now_s=100.0)
    found.note_lost(0, 1, now_s=100.0)
    assert found.find_failure(200.0)
    found.note_connected(0, 1)
    assert found.find_failure(200.0) == ""


def test_a_trainer_that_finished_everywhere_is_not_gone() -> None:
    found = roster(0)
    found.note_lost(0, 0, now_s=100.0)
    for port in (0, 1):
        found.note_finished(0, port)
    assert found.find_failure(200.0) == ""
