"""Reports of progress survive their encoding, and any datagram is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslaunch.runtime.shared import reports

floats = st.floats(0, 1e30, allow_subnormal=False)


def test_other_numbers_are_read_by_their_names() -> None:
    sent = reports.format_progress(**{"batch": 1, "metric.auc": 0.75, "metric.bad": float("nan")})
    odd = b" metric.c=x metric=2 state.x=y why.y=z batch.1=2 metrics=1"
    assert reports.parse_progress(sent + odd) == [{"batch": 1, "metric.auc": 0.75, "metric": 2.0}]


@given(st.integers(0, 10**9), st.integers(0, 10**9), floats, floats)
def test_progress_survives_its_encoding(pass_id: int, batch: int, cost: float, rate: float) -> None:
    numbers: dict[str, int | float | str] = {"pass": pass_id, "batch": batch, "cost": cost}
    sent = reports.format_progress(**numbers, samples_per_s=rate, state="two words")
    [found] = reports.parse_progress(sent)
    assert (found["pass"], found["batch"], found["state"]) == (pass_id, batch, "two_words")
    assert found["cost"] == pytest.approx(cost, rel=1e-6)
    assert found["samples_per_s"] == pytest.approx(rate, rel=1e-6)


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e999"])
def test_progress_is_finite_or_absent(number: str) -> None:
    assert reports.format_progress(batch=1, cost=float(number)) == b"batch=1"
    assert reports.parse_progress(f"batch=1 cost={number}".encode()) == [{"batch": 1}]


@given(st.text(max_size=100))
def test_reason_survives_without_its_unprintable_characters(text: str) -> None:
    [found] = reports.parse_progress(reports.format_progress(why=text, batch=1))
    kept = text.encode("utf-8", "replace").decode()
    assert found == {"why": "".join(c if c.isprintable() else " " for c in kept), "batch": 1}


@given(st.text(min_size=150))
def test_reason_is_bounded_and_ends_with_a_whole_character(text: str) -> None:
    sent = reports.format_progress(why=text * 5, batch=1)
    assert len(sent) <= reports.MAX_WHY_BYTES + len("why= batch=1") <= reports.MAX_PROGRESS_BYTES
    [found] = reports.parse_progress(sent)
    kept = (text * 5).encode("utf-8", "replace").decode()
    whole = "".join(c if c.isprintable() else " " for c in kept)
    assert whole.startswith(str(found["why"]))
    assert found["why"]


def test_reason_is_one_quoted_word_of_the_progress() -> None:
    assert reports.format_progress(why="100% of\nit") == b"why=100%25%20of%0Ait"
    assert reports.parse_progress(b"why=50%zz%20%C3%A4%") == [{"why": "50%zz \u00e4%"}]


@given(st.binary(max_size=3000))
def test_any_datagram_is_read_without_an_error(datagram: bytes) -> None:
    for report in reports.parse_progress(datagram):
        assert {n for n in report if n[:7] != "metric."} <= reports.PROGRESS_FIELDS.keys()
