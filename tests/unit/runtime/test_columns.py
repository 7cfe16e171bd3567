"""Bad data of a reader is refused: the error names layer, sample, value, and the remedy."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslaunch.runtime import _core
from pslaunch.runtime.engine.arrays import Sequences
from pslaunch.runtime.engine.columns import IDS, Column, Feeder, take_columns
from pslaunch.runtime.engine.graph import BATCH, Kind, Value
from pslaunch.runtime.engine.hashing import estimate_collisions, hash_text
from pslaunch.runtime.v2 import data_type, layer
from pslaunch.runtime.v2.data_type import InputType
from support import reference

pytestmark = pytest.mark.asan


Reader = Callable[[Any], dict[str, Column]]


def read_with(data: list[Value]) -> Reader:
    """Return what a batch goes through, from a reader to a plan."""
    return lambda batch: take_columns(data, Feeder(data)(batch))


def feeder(*types: InputType) -> Reader:
    """Data layers d0, d1, … of these types."""
    return read_with([layer.data(name=f"d{i}", type=kind).value for i, kind in enumerate(types)])


def read(feeder: Reader, batch: Any, name: str) -> npt.NDArray[Any]:
    """Return the column of a data that is no sequence."""
    found = feeder(batch)[name]
    assert isinstance(found, np.ndarray)
    return found


VECTOR, LABEL = data_type.dense_vector(2), data_type.integer_value(3)


@pytest.mark.parametrize(
    ("types", "sample"),
    [
        ((VECTOR, LABEL), (np.ones(2, np.float32), 1)),
        ((VECTOR, LABEL), ([1.0, 2.0], [1])),
        ((VECTOR,), [1.0, 2.0]),
        ((LABEL, LABEL), (1, 2)),
        ((LABEL,), 1),
    ],
)
def test_sample_in_place_of_a_batch_names_paddle_batch(types: tuple[InputType, ...], sample: Any) -> None:
    with pytest.raises(ValueError, match=r"paddle\.batch\(reader, size\)"):
        feeder(*types)(sample)


@pytest.mark.parametrize("types", [(LABEL, LABEL), (VECTOR, LABEL)])
@pytest.mark.parametrize("wrong", [3, -1])
def test_a_label_out_of_range_is_named_with_layer_and_range(types: tuple[InputType, ...], wrong: int) -> None:
    first = [1.0, 2.0] if types[0] is VECTOR else 0
    with pytest.raises(ValueError, match=rf"data d1: sample 1 of .* the id {wrong}, expected .* 0 to 2"):
        feeder(*types)([(first, 2), (first, wrong)])


@pytest.mark.parametrize("first", [VECTOR, LABEL])
@pytest.mark.parametrize("wrong", [1.7, "1", "cat", None, np.float32(1.0), [1, 2], 2**70])
def test_an_item_that_is_no_id_is_named_with_layer_and_sample(first: InputType, wrong: Any) -> None:
    item = [1.0, 2.0] if first is VECTOR else 0
    found = re.escape(f"the item {wrong!r}")
    with pytest.raises(ValueError, match=rf"data d1: sample 1 of the batch has {found}, expected .*0 to 2"):
        feeder(first, LABEL)([(item, 2), (item, wrong)])


@pytest.mark.parametrize("first", [VECTOR, LABEL])
@pytest.mark.parametrize("kind", [int, bool, np.bool_, np.int8, np.uint8, np.int32, np.uint64, np.array])
def test_whole_numbers_of_any_kind_are_ids(first: InputType, kind: Callable[[int], Any]) -> None:
    item = [1.0, 2.0] if first is VECTOR else 0
    found = read(feeder(first, LABEL), [(item, kind(0)), (item, kind(1))], "d1")
    assert found.dtype == np.int64
    assert found.tolist() == [0, 1]


def test_items_without_a_layer_are_ignored() -> None:
    layers = [layer.data(name=f"d{i}", type=LABEL).value for i in range(2)]
    found = Feeder(layers, {"d0": 0, "d1": 2})([(1, "a", 2), (0, "b", 1)])["d1"]
    assert np.asarray(found).tolist() == [2, 1]


def test_a_short_sample_names_the_layer_that_lacks_its_item() -> None:
    with pytest.raises(ValueError, match="data d1: a sample has no item 1"):
        feeder(LABEL, LABEL)([(1, 2), (1,)])


def test_arrays_by_layer_are_taken_as_they_are() -> None:
    vectors, labels = np.ones((3, 2), np.float32), np.array([0, 1, 2])
    found = feeder(VECTOR, LABEL)({"d0": vectors, "d1": labels, "unused": labels})
    assert list(found) == ["d0", "d1"]
    assert np.shares_memory(np.asarray(found["d0"]), vectors)
    assert np.shares_memory(np.asarray(found["d1"]), labels)


def test_arrays_of_other_kinds_and_strides_are_converted() -> None:
    batch = {"d0": np.arange(8).reshape(2, 4)[:, ::2], "d1": np.array([[1], [2]], np.uint8)}
    vectors, labels = (read(feeder(VECTOR, LABEL), batch, name) for name in batch)
    assert vectors.dtype == np.float32
    assert labels.dtype == np.int64
    assert vectors.tolist() == [[0, 2], [4, 6]]
    assert labels.tolist() == [1, 2]


def test_arrays_with_an_id_out_of_range_name_layer_and_sample() -> None:
    for wrong in (3, -1):
        with pytest.raises(
            ValueError, match=f"data d1: sample 2 of the batch has the id {wrong}, expected .* 0 to 2"
        ):
            feeder(LABEL, LABEL)({"d0": np.zeros(3, int), "d1": np.array([0, 1, wrong])})


def test_a_batch_of_arrays_without_a_layer_names_it() -> None:
    with pytest.raises(ValueError, match="data d1: expected an array"):
        feeder(LABEL, LABEL)({"d0": np.zeros(3, int), "e": np.zeros(3, int)})


def sequence_feeder(kind: Kind, below: int = 5) -> Reader:
    """A data value `s`: a sequence of ids or of vectors of 2."""
    shape = (BATCH,) if kind == "id" else (BATCH, 2)
    attrs = {"below": below if kind == "id" else None}
    return read_with([Value(name="s", op="data", shape=shape, kind=kind, is_sequence=True, attrs=attrs)])


FORMS: list[Callable[[list[int]], Any]] = [
    list,
    tuple,
    np.array,
    lambda ids: np.array(ids, np.int32),
    lambda ids: [np.int8(one) for one in ids],
    lambda ids: [np.array([one]) for one in ids],
]


@given(st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=1, max_size=6), st.sampled_from(FORMS))
def test_sequences_of_ids_are_one_array_with_offsets(
    samples: list[list[int]], form: Callable[[list[int]], Any]
) -> None:
    found = sequence_feeder("id")([(form(ids),) for ids in samples])["s"]
    assert isinstance(found, Sequences)
    assert found.items.dtype == np.int64
    assert found.items.tolist() == [one for ids in samples for one in ids]
    assert np.diff(found.offsets).tolist() == [len(ids) for ids in samples]


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=6),
    st.sampled_from([np.float32, np.float64, np.float16, np.int64, list]),
)
def test_sequences_of_vectors_are_one_array_with_offsets(lengths: list[int], form: Any) -> None:
    whole = np.arange(2 * sum(lengths)).reshape(-1, 2)
    parts = np.split(whole, np.cumsum(lengths)[:-1])
    samples = [(part.tolist() if form is list else part.astype(form),) for part in parts]
    found = sequence_feeder("float")(samples)["s"]
    assert isinstance(found, Sequences)
    assert found.items.dtype == np.float32
    assert found.items.tolist() == whole.tolist()
    assert np.diff(found.offsets).tolist() == lengths


@pytest.mark.parametrize(
    "batch", [[([1],), ([2, 5],)], {"s": Sequences(np.array([1, 2, 5]), np.array([0, 1, 3]))}]
)
def test_an_id_of_a_sequence_out_of_range_names_the_sample(batch: Any) -> None:
    with pytest.raises(ValueError, match=r"data s: sample 1 of the batch has the id 5, expected .* 0 to 4"):
        sequence_feeder("id")(batch)


@pytest.mark.parametrize("wrong", [3, None, "12", b"12", np.float32(1.0), [1, None], [1.5]])
def test_an_item_that_is_no_sequence_of_ids_is_named(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"data s: sample 1 of the batch has the item .*, expected a"):
        sequence_feeder("id")([([1],), (wrong,)])


@pytest.mark.parametrize("wrong", [[[1.0]], [[1.0, 2.0], [3.0]], [1.0], ["a"]])
def test_vectors_of_a_sequence_with_another_size_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="data s: "):
        sequence_feeder("float")([([[1.0, 2.0]],), (wrong,)])


@pytest.mark.parametrize("wrong", [[1.0], [[1.0], [2.0], [3.0]], ["a", "b"], {1.0, 2.0}])
def test_a_vector_of_another_size_is_named_with_its_sample(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"data d0: sample 1 .* the item .*, expected 2 times a number"):
        feeder(VECTOR)([([1.0, 2.0],), (wrong,)])


class Clearing:
    """An id that empties the batch while it is read."""

    def __init__(self, batch: list[Any]) -> None:
        self.batch = batch

    def __index__(self) -> int:
        self.batch.clear()
        return 1


def test_a_batch_that_changes_while_it_is_read_is_no_crash() -> None:
    batch: list[Any] = []
    batch += [(Clearing(batch), 1), (1, 1)]
    out = np.zeros(2, np.int64)
    assert _core.read_items(batch, 0, IDS, 0, out, None) == 1
    assert out.tolist() == [1, 0]


def test_offsets_that_do_not_fit_are_refused() -> None:
    out = np.zeros(3, np.int64)
    for wrong in ([0, 2], [1, 3], [0, 4], [0, 3, 2, 3], [0, -1, 3]):
        with pytest.raises(ValueError, match="offsets: expected numbers that ascend from 0"):
            _core.read_items([([1, 1, 1],)] * 3, 0, IDS, 0, out, np.array(wrong))


PAIRS = data_type.sparse_float_vector(9)


class Pair:
    """A sequence of two items that is neither list nor tuple."""

    def __init__(self, where: int, number: float) -> None:
        self.items = (where, number)

    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> Any:
        return self.items[i]


def make_feeder_of_pairs() -> Reader:
    x = layer.data(name="x", type=PAIRS)
    assert x.numbers is not None
    return read_with([x.value, x.numbers])


MAKE_PAIR: list[Callable[[int, float], Any]] = [
    lambda where, number: (where, number),
    lambda where, number: [where, number],
    lambda where, number: (np.int64(where), np.float32(number)),
    lambda where, number: np.array([where, number], object),
    Pair,
]


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 8), st.floats(-9, 9, width=32)), max_size=4), min_size=1, max_size=5
    ),
    st.sampled_from(MAKE_PAIR),
    st.sampled_from([list, tuple, lambda pairs: dict(enumerate(pairs)).values()]),
)
def test_pairs_become_places_and_numbers(
    vectors: list[list[tuple[int, float]]], make_pair: Callable[..., Any], make_item: Callable[[Any], Any]
) -> None:
    batch = [(make_item([make_pair(*pair) for pair in vector]),) for vector in vectors]
    places, numbers = make_feeder_of_pairs()(batch).values()
    assert isinstance(places, Sequences)
    assert isinstance(numbers, Sequences)
    pairs = [pair for vector in vectors for pair in vector]
    assert places.items.tolist() == [where for where, _ in pairs]
    assert numbers.items.tolist() == [[number] for _, number in pairs]
    offsets = np.cumsum([0, *map(len, vectors)]).tolist()
    assert places.offsets.tolist() == numbers.offsets.tolist() == offsets


@pytest.mark.parametrize("wrong", [(2,), (1, 2, 3), 1, "ab", None, (9, 0.5), (-1, 0.5), (0.5, 1)])
def test_pairs_that_do_not_fit_are_left_to_the_caller(wrong: Any) -> None:
    places, offsets = np.zeros(3, np.int64), np.array([0, 1, 3])
    batch = [([(1, 0.5)],), ([(2, 0.5), wrong],)]
    is_id = type(wrong) is tuple and type(wrong[0]) is int and len(wrong) == 2  # in or out of its range
    assert _core.read_items(batch, 0, IDS, 0, places, offsets, 0) == 1 + is_id
    assert places[:2].tolist() == [1, 2]
    with pytest.raises(ValueError, match="data x: sample 1 of the batch has the i"):
        make_feeder_of_pairs()(batch)


def test_pairs_that_go_while_they_are_read_are_no_crash() -> None:
    pairs: list[Any] = []
    pairs += [(Clearing(pairs), 0.5), (1, 0.5)]
    out = np.zeros(2, np.int64)
    assert _core.read_items([(pairs,)], 0, IDS, 0, out, np.array([0, 2]), 0) == 0
    assert out.tolist() == [1, 0]


FEEDS: list[Callable[[list[Any]], Any]] = [
    lambda ids: [([one],) for one in ids],
    lambda ids: [(np.array([one]),) for one in ids],
    lambda ids: {"w": [[one] for one in ids]},
    lambda ids: {"w": np.array([[one] for one in ids])},
    lambda ids: {"w": np.array(ids)},
]


@pytest.mark.parametrize("make_feed", FEEDS)
@pytest.mark.parametrize("ids", [[True, False], [2**64 - 1, 2**63], [-1, -(2**63)]])
def test_every_way_takes_the_same_ids(make_feed: Callable[[list[Any]], Any], ids: list[Any]) -> None:
    value = Value(name="w", op="data", shape=(BATCH, 1), kind="id", attrs={"below": None})
    found = read(read_with([value]), make_feed(ids), "w")
    assert found.dtype == np.int64
    assert [one % 2**64 for one in found.reshape(-1).tolist()] == [int(one) % 2**64 for one in ids]


TEXTS = st.lists(st.text(max_size=12), min_size=1, max_size=5)
TEXT_FEEDS: list[Callable[[list[str]], Any]] = [
    lambda texts: [([one],) for one in texts],
    lambda texts: [(one,) for one in texts],
    lambda texts: [([one.encode()],) for one in texts],
    lambda texts: {"w": [[one] for one in texts]},
    lambda texts: {"w": np.array(texts, object).reshape(-1, 1)},
    lambda texts: {"w": texts},
    lambda texts: {"w": np.array([reference.hash_name(f"w\0{one}") for one in texts], np.uint64)},
]


def make_text(**form: Any) -> Reader:
    return read_with([Value(name="w", op="data", kind="id", attrs={"below": None, "salt": "w"}, **form)])


@given(TEXTS, st.sampled_from(TEXT_FEEDS))
def test_texts_are_hashed_with_their_salt_in_every_way(
    texts: list[str], make_feed: Callable[[list[str]], Any]
) -> None:
    found = read(make_text(shape=(BATCH, 1)), make_feed(texts), "w")
    expected = [reference.hash_name(f"w\0{one}") for one in texts]
    assert found.view(np.uint64).reshape(-1).tolist() == expected
    assert [hash_text(one, "w") for one in texts] == expected


@given(st.lists(TEXTS | st.just([]), min_size=1, max_size=4))
def test_sequences_of_texts_are_hashed(samples: list[list[str]]) -> None:
    for batch in ([(one,) for one in samples], {"w": samples}):
        found = make_text(shape=(BATCH, 1), is_sequence=True)(batch)["w"]
        assert isinstance(found, Sequences)
        expected = [reference.hash_name(f"w\0{one}") for own in samples for one in own]
        assert found.items.view(np.uint64).reshape(-1).tolist() == expected
        assert np.diff(found.offsets).tolist() == [len(own) for own in samples]


@pytest.mark.parametrize("wrong", [[5], ["a", "b"], None, [None], 1.5])
def test_items_that_are_no_text_are_named(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"data w: sample 1 of the batch has the item .*, expected text"):
        make_text(shape=(BATCH, 1))([(["a"],), (wrong,)])


def test_text_that_is_no_utf_8_is_refused() -> None:
    with pytest.raises(ValueError, match=r"data w: sample 1 .* '\\ud800', expected text in UTF-8"):
        make_text(shape=(BATCH, 1))([("a",), ("\ud800",)])


def test_hashes_of_many_texts_differ_as_often_as_estimated() -> None:
    texts = [f"{kind}{i}" for kind in ("user", "item_", "") for i in range(60_000)]
    keys = {hash_text(one, "s") for one in texts}
    assert len(texts) - len(keys) == pytest.approx(estimate_collisions(len(texts)), abs=0.5)
    low = {key % 2**24 for key in keys}  # of fewer keys some are equal
    assert len(texts) - len(low) == pytest.approx(estimate_collisions(len(texts), 2**24), rel=0.2)
    assert estimate_collisions(1e9) == pytest.approx(0.0271, rel=0.01)


@pytest.mark.parametrize(("shape", "fits"), [((2, 3, 4), True), ((2, 12), True), ((2, 4, 3), False)])
def test_a_feed_with_its_axes_in_another_order_is_refused(shape: tuple[int, ...], fits: bool) -> None:
    image = Value(name="image", op="data", shape=(BATCH, 3, 4), kind="float")
    given = np.arange(24, dtype=np.float32).reshape(shape)
    if not fits:
        with pytest.raises(ValueError, match=r"image: expected an array .*; the feed has an array"):
            take_columns([image], {"image": given})
        return
    found = take_columns([image], {"image": given})["image"]
    assert np.array_equal(np.asarray(found), given.reshape(2, 3, 4))
