"""Bad data of a reader is refused: the error names layer, sample, value, and the remedy."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pslaunch.runtime import data_type, layer
from pslaunch.runtime.data_type import InputType
from pslaunch.runtime.feeder import Feeder


def feeder(*types: InputType) -> Feeder:
    """Data layers d0, d1, … of these types."""
    return Feeder([layer.data(name=f"d{i}", type=kind).value for i, kind in enumerate(types)])


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
    with pytest.raises(ValueError, match=rf"data layer d1: sample 1 of .* the id {wrong}, expected 0 to 2"):
        feeder(*types)([(first, 2), (first, wrong)])


@pytest.mark.parametrize("first", [VECTOR, LABEL])
@pytest.mark.parametrize("wrong", [1.7, "1", "cat", None, np.float32(1.0), [1, 2], 2**70])
def test_an_item_that_is_no_id_is_named_with_layer_and_sample(first: InputType, wrong: Any) -> None:
    item = [1.0, 2.0] if first is VECTOR else 0
    found = re.escape(f"the id {wrong}" if wrong == 2**70 else f"the item {wrong!r}")
    with pytest.raises(
        ValueError, match=rf"data layer d1: sample 1 of the batch has {found}, expected .*0 to 2"
    ):
        feeder(first, LABEL)([(item, 2), (item, wrong)])


@pytest.mark.parametrize("first", [VECTOR, LABEL])
@pytest.mark.parametrize("kind", [int, bool, np.bool_, np.int8, np.uint8, np.int32, np.uint64, np.array])
def test_whole_numbers_of_any_kind_are_ids(first: InputType, kind: Callable[[int], Any]) -> None:
    item = [1.0, 2.0] if first is VECTOR else 0
    found = feeder(first, LABEL)([(item, kind(0)), (item, kind(1))])["d1"]
    assert found.dtype == np.int64
    assert found.tolist() == [0, 1]


def test_items_without_a_layer_are_ignored() -> None:
    layers = [layer.data(name=f"d{i}", type=LABEL).value for i in range(2)]
    found = Feeder(layers, {"d0": 0, "d1": 2})([(1, "a", 2), (0, "b", 1)])
    assert found["d1"].tolist() == [2, 1]


def test_a_short_sample_names_the_layer_that_lacks_its_item() -> None:
    with pytest.raises(ValueError, match="data layer d1: a sample has no item 1"):
        feeder(LABEL, LABEL)([(1, 2), (1,)])
