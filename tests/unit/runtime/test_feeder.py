"""Bad data of a reader is refused: the error names layer, sample, value, and the remedy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pslaunch.runtime import data_type, layer
from pslaunch.runtime.data_type import InputType
from pslaunch.runtime.feeder import Feeder


def feeder(*types: InputType) -> Feeder:
    """Data layers d0, d1, … of these types."""
    return Feeder([layer.data(name=f"d{i}", type=kind) for i, kind in enumerate(types)])


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
def test_a_sample_in_place_of_a_batch_is_told_of_paddle_batch(
    types: tuple[InputType, ...], sample: Any
) -> None:
    with pytest.raises(ValueError, match=r"paddle\.batch\(reader, size\)"):
        feeder(*types)(sample)


@pytest.mark.parametrize("types", [(LABEL, LABEL), (VECTOR, LABEL)])
@pytest.mark.parametrize("wrong", [3, -1])
def test_a_label_out_of_range_is_named_with_layer_and_range(types: tuple[InputType, ...], wrong: int) -> None:
    first = [1.0, 2.0] if types[0] is VECTOR else 0
    with pytest.raises(ValueError, match=rf"data layer d1: sample 1 of .* the id {wrong}, expected 0 to 2"):
        feeder(*types)([(first, 2), (first, wrong)])


def test_a_label_that_is_no_number_names_its_layer() -> None:
    with pytest.raises(ValueError, match=r"data layer d1: its items are not single ids: .*'cat'"):
        feeder(VECTOR, LABEL)([([1.0, 2.0], "cat")])
