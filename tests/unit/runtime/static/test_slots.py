"""Text of slots: samples come back as they were written, and malformed lines are named."""

from __future__ import annotations

import re
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslaunch.runtime import _core
from pslaunch.runtime.engine.arrays import Sequences
from pslaunch.runtime.paddle2 import static
from pslaunch.runtime.paddle2.static.slots import (
    choose_samples,
    count_samples,
    join_columns,
    pack_columns,
    read_columns,
    unpack_columns,
)
from support import reference

pytestmark = pytest.mark.asan

FLOATS = st.floats(-1e30, 1e30).map(lambda x: float(np.float32(x)))
IDS = st.integers(-(2**63), 2**63 - 1)
SAMPLE = st.tuples(
    st.lists(FLOATS, min_size=3, max_size=3), IDS, st.lists(IDS, max_size=3), st.lists(FLOATS, max_size=2)
)
SAMPLES = st.lists(SAMPLE, min_size=1, max_size=6)


def make_slots() -> list[static.Variable]:
    """Return variables of all forms: dense numbers, one id, a sequence of ids, one of pairs of numbers."""
    with static.program_guard(static.Program(), static.Program()):
        return [
            static.data("dense", [None, 3]),
            static.data("word", [None, 1], "int64"),
            static.data("words", [None, 1], "int64", lod_level=1),
            static.data("pairs", [None, 2], lod_level=1),
        ]


def write_lines(samples: list[Any]) -> list[tuple[str, int, bytes]]:
    """Return the lines of samples; each number of the last slot comes twice."""
    lines = []
    for number, (dense, word, words, pairs) in enumerate(samples, 1):
        slots = [dense, [word], words, [one for one in pairs for _ in range(2)]]
        text = " ".join(" ".join(map(str, [len(slot), *slot])) for slot in slots)
        lines.append(("a.txt", number, f"{text}\n".encode()))
    return lines


def list_samples(columns: Any) -> list[Any]:
    def cut(column: Sequences, i: int) -> Any:
        return column.items[column.offsets[i] : column.offsets[i + 1], 0].tolist()

    return [
        (
            columns["dense"][i].tolist(),
            columns["word"][i, 0],
            cut(columns["words"], i),
            cut(columns["pairs"], i),
        )
        for i in range(count_samples(columns))
    ]


@given(SAMPLES)
def test_samples_come_back_as_they_were_written(samples: list[Any]) -> None:
    columns = read_columns(write_lines(samples), make_slots())
    assert list_samples(columns) == samples
    assert columns["dense"].dtype == np.float32  # type: ignore[union-attr]  # an array
    assert columns["word"].dtype == np.int64  # type: ignore[union-attr]  # an array


@given(SAMPLES, st.data())
def test_samples_are_chosen_joined_and_packed(samples: list[Any], data: st.DataObject) -> None:
    slots = make_slots()
    columns = read_columns(write_lines(samples), slots)
    places = data.draw(st.lists(st.integers(0, len(samples) - 1), max_size=8))
    chosen = choose_samples(columns, np.array(places, np.int64))
    assert list_samples(chosen) == [samples[i] for i in places]
    joined = join_columns([columns, read_columns([], slots), chosen], slots)
    assert list_samples(unpack_columns(pack_columns(joined), slots)) == samples + list_samples(chosen)


TEXT = st.text("0123456789 .-+e_naif\0\t", max_size=30).map(str.encode)


@given(st.lists(st.one_of(TEXT, SAMPLES.map(lambda one: write_lines(one)[0][2])), min_size=1, max_size=4))
def test_any_text_is_read_or_its_first_error_is_named(texts: list[bytes]) -> None:
    lines = [("a.txt", number, text) for number, text in enumerate(texts, 1)]
    try:
        assert count_samples(read_columns(lines, make_slots())) == len(texts)
    except ValueError as e:
        assert re.match(r"a\.txt:\d+: ", str(e))  # most texts are wrong


@given(st.lists(st.lists(st.text("ab1 é_", min_size=1), max_size=3), min_size=1, max_size=4))
def test_words_of_text_slots_are_hashed(samples: list[list[str]]) -> None:
    with static.program_guard(static.Program(), static.Program()):
        slot = static.data("tags", [None, 1], "string", lod_level=1, salt="t")
    words = [[one.replace(" ", "_") for one in sample] for sample in samples]
    lines = [("a.txt", i, f"{len(own)} {' '.join(own)}".encode()) for i, own in enumerate(words, 1)]
    found = read_columns(lines, [slot])["tags"]
    assert isinstance(found, Sequences)
    expected = [reference.hash_name(f"t\0{one}") for own in words for one in own]
    assert found.items.view(np.uint64)[:, 0].tolist() == expected
    assert np.diff(found.offsets).tolist() == [len(own) for own in words]


def test_signs_and_spaces_of_numbers_are_read_as_in_c() -> None:
    columns = read_columns(
        [("a.txt", 1, b" 3\t1e1 +5 inf 1 +7 +2 1000 18446744073709551615\r -0 \n")], make_slots()
    )
    assert list_samples(columns) == [([10.0, 5.0, np.inf], 7, [1000, -1], [])]


def test_memory_is_bounded_by_the_text_however_many_slots_there_are() -> None:
    with static.program_guard(static.Program(), static.Program()):
        slots = [static.data(f"s{i}", [None, 1], "int64", lod_level=1) for i in range(200)]
    lines = [("a.txt", 1, b"3 5 6 7 " * len(slots))] * 50
    tracemalloc.start()
    try:
        columns = read_columns(lines, slots)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert columns["s199"].items[:, 0].tolist() == [5, 6, 7] * 50  # type: ignore[union-attr]  # sequences
    assert peak < 16 * sum(len(text) for _, _, text in lines)


SIZE, START, COUNT = np.full(1, -1), np.zeros(1, np.uint64), np.zeros((1, 1), np.int64)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (([b"1 2"], b"\1", np.zeros(1, np.int64), START, COUNT), "sizes: expected numbers other than 0"),
        (([b"1 2"], b"\1", np.full(1, -(2**63)), START, COUNT), "sizes: expected numbers other than 0"),
        (([b"1 2"], b"\1\0", SIZE, START, COUNT), "sizes has 1 items, but kinds needs 2"),
        (([b"1 2", b""], b"\1", SIZE, START, COUNT), "counts has 1 items, but kinds and lines needs 2"),
        ((["1 2"], b"\1", SIZE, START, COUNT), "expected bytes, str found"),
        (((b"1 2",), b"\1", SIZE, START, COUNT), "must be list, not tuple"),
    ],
)
def test_core_refuses_wrong_arguments(arguments: tuple[Any, ...], error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(error)):
        _core.read_slots(*arguments)


def test_core_makes_no_room_for_values_that_a_line_cannot_have() -> None:
    for line in (b"2 1", b"999999999999 1", b"9223372036854775807 1", b"18446744073709551617 1"):
        assert _core.read_slots([line], b"\1", SIZE, START, COUNT) == (0, [bytearray()])
    same = np.full(2, -1)
    assert _core.read_slots([b"2 0 0"] * 2, b"\0", same[:1], START, same.reshape(1, 2))[0] == 2  # no crash


GOOD = "3 0.5 1 -2 1 7 2 8 9 0"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("", "the line ends before slot dense; expected a count and its values"),
        ("3 0.5 1 -2 1 7", "the line ends before slot words; expected"),
        ("3 0.5 1_0 -2 1 7 0 0", "slot dense has the value '1_0', expected a number"),
        ("3 0.5 1 -2 1 7 1_0 0", "slot words begins with '1_0', expected the count of its values"),
        ("3 0.5 1 -2 1 1_0 0 0", "slot word has the value '1_0', expected a whole number of 64 bits"),
        ("3 0.5 1 -2 1 - 0 0", "slot word has the value '-', expected a whole number of 64 bits"),
        ("3 0.5 1 -2 1 + 0 0", "slot word has the value '+', expected a whole number of 64 bits"),
        ("three 1", "slot dense begins with 'three', expected the count of its values"),
        ("2 0.5 1 1 7 0 0", "slot dense has the count 2, expected 3 (shape [-1, 3])"),
        ("3 0.5 1 -2 0 0 0", "slot word has the count 0, expected 1 (shape [-1, 1])"),
        ("3 0.5 1 -2 1 7 -1 0", "slot words has the count -1, expected a multiple of 1"),
        ("3 0.5 1 -2 1 7 0 3 1 2 3", "slot pairs has the count 3, expected a multiple of 2 (shape [-1, 2])"),
        ("3 0.5 1 -2 1 7 4 8 9 10", "slot words has 3 values, expected 4, its count"),
        (GOOD + " 1 5", "'1' follows the last slot, pairs; expected the end of the line"),
        ("3 0.5 one -2 1 7 0 0", "slot dense has the value 'one', expected a number"),
        ("3 0.5 1 -2 1 7.5 0 0", "slot word has the value '7.5', expected a whole number of 64 bits"),
        ("3 0.5 1 -2 1 7 2 8 9- 0", "slot words has the value '9-', expected a whole number of 64 bits"),
        (
            f"3 0.5 1 -2 1 {2**64} 0 0",
            f"slot word has the value '{2**64}', expected a whole number of 64 bits",
        ),
        (f"3 0.5 1 -2 1 7 1 -{2**63 + 1} 0", f"slot words has the value '-{2**63 + 1}', expected a whole"),
        ("3 0.5 1 -2 1 \\xff 0 0", r"slot word has the value '\\xff', expected a whole number"),
    ],
)
def test_malformed_lines_are_named(line: str, text: str) -> None:
    lines = [("a.txt", 6, GOOD.encode()), ("b.txt", 7, line.encode()), ("b.txt", 8, GOOD.encode())]
    with pytest.raises(ValueError, match="^" + re.escape(f"b.txt:7: {text}")):
        read_columns(lines, make_slots())
