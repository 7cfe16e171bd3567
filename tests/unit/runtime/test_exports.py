"""When trainer 0 asks for a base, and what a manifest says of the chain."""

from __future__ import annotations

from pslaunch.runtime.client.snapshots import ALL, EXPORT, MOST_DELTAS, _Exports
from pslaunch.runtime.files.exports import name_export


def names(*steps: int) -> list[str]:
    return [name_export(7, step) for step in steps]


def test_a_base_comes_first_after_larger_deltas_and_after_a_failure() -> None:
    exports = _Exports(1, 7)
    assert exports.flags == EXPORT | ALL
    assert exports.add(1, 100) == {"chain": names(1), "before": []}
    assert exports.flags == EXPORT
    exports.add(2, 60)
    assert exports.add(3, 40) == {"chain": names(1, 2, 3), "before": []}
    assert exports.flags == EXPORT
    exports.add(4, 1)
    assert exports.flags == EXPORT | ALL
    assert exports.add(5, 90) == {"chain": names(5), "before": names(1, 2, 3, 4)}
    assert exports.add(6, 1) == {"chain": names(5, 6), "before": names(1, 2, 3, 4)}
    exports.bytes = []  # one was lost
    assert exports.flags == EXPORT | ALL
    assert exports.add(8, 9) == {"chain": names(8), "before": names(5, 6)}


def test_a_base_has_a_limited_number_of_deltas() -> None:
    exports = _Exports(1, 7)
    exports.add(0, 1000)
    for step in range(1, MOST_DELTAS + 1):
        assert exports.flags == EXPORT
        exports.add(step, 1)
    assert exports.flags == EXPORT | ALL
