"""Places of connections that have not proved themselves: who has to go when more come."""

from __future__ import annotations

import pytest

from pslaunch.runtime.shared.places import PATIENCE_S, Places, find_source


def test_a_silent_one_goes_at_once_and_one_of_the_job_is_waited_for() -> None:
    places: Places[str] = Places()
    places.add("trainer", "10.0.0.1", 0.0)
    places.add("stranger", "10.0.0.1", 0.0)
    places.keep("trainer")
    assert places.find_next_to_go(0.0) == "stranger"
    places.remove("stranger")
    assert places.find_next_to_go(PATIENCE_S / 2) is None
    assert places.find_next_to_go(PATIENCE_S) == "trainer"
    places.remove("trainer")
    assert places.find_next_to_go(PATIENCE_S) is None


def test_a_source_with_many_places_leaves_the_only_one_of_another() -> None:
    places: Places[int] = Places()
    places.add(0, "10.0.0.1", 0.0)
    for i in range(1, 4):
        places.add(i, f"127.0.0.{i}", float(i))
    for gone in (1, 2):
        assert places.find_next_to_go(9.0) == gone
        places.remove(gone)
    assert list(places) == [0, 3]


@pytest.mark.parametrize(
    "hosts",
    [
        ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"),
        ("10.0.0.1", "::ffff:10.0.0.1"),
        ("fd00::1", "fd00::2:0:0:1%eth0"),
    ],
)
def test_addresses_that_one_stranger_has_are_one_source(hosts: tuple[str, ...]) -> None:
    assert len(set(map(find_source, hosts))) == 1
    assert find_source("10.0.0.2") not in map(find_source, hosts)
