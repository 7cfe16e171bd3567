"""Entry rules as attributes of parameters."""

from __future__ import annotations

from typing import Any

import pytest

from pslaunch.runtime.engine import attr, entry
from pslaunch.runtime.engine.param_config import make_config


@pytest.mark.parametrize(
    ("rule", "packed"),
    [
        (entry.ANY, (0, 0.0, 0.0)),
        (entry.CountFilterEntry(10), (1, 10.0, 0.0)),
        (entry.CountFilterEntry(0), (1, 1.0, 0.0)),
        (entry.ProbabilityEntry(0.25), (2, 0.25, 0.0)),
        (entry.ShowClickEntry("show", "click"), (3, 10.0, 0.1)),
    ],
)
def test_rules_have_the_numbers_of_the_core(rule: entry.EntryAttr, packed: tuple[int, float, float]) -> None:
    assert rule.pack() == packed


@pytest.mark.parametrize(
    ("make", "args", "text"),
    [
        (entry.CountFilterEntry, (-1,), "expected a whole number from 0"),
        (entry.CountFilterEntry, (1.5,), r"CountFilterEntry\(1\.5\): expected a whole number"),
        (entry.ProbabilityEntry, (0.0,), "expected a number above 0 and below 1"),
        (entry.ProbabilityEntry, (float("nan"),), "expected a number above 0 and below 1"),
        (entry.ShowClickEntry, ("", "click"), r"show_name=''\): expected the name of data"),
        (entry.ShowClickEntry, ("show", "click", float("nan")), "threshold=nan"),
        (entry.ShowClickEntry, ("show", "click", 1.0, -1.0), r"show_weight=-1\.0"),
    ],
)
def test_wrong_numbers_of_a_rule_are_errors(make: Any, args: tuple[Any, ...], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make(*args)


def test_rule_of_an_attribute_is_the_one_of_the_parameter() -> None:
    given = attr.Param(sparse_update=True, entry=entry.CountFilterEntry(2))
    assert make_config("e", 10, 4, given, bias=False).entry == entry.CountFilterEntry(2)
    assert make_config("e", 10, 4, attr.Param(), bias=False).entry == entry.ANY


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"entry": entry.CountFilterEntry(2)}, "has no effect without sparse_update=True"),
        ({"entry": 2, "sparse_update": True}, "expected an entry rule"),
    ],
)
def test_wrong_rules_of_an_attribute_are_errors(options: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        attr.Param(**options)
