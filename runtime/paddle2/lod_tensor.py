"""`create_lod_tensor`, at its place in PaddlePaddle: sequences for a variable with lod_level=1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine.arrays import Sequences, find_offsets

__all__ = ["create_lod_tensor"]


def create_lod_tensor(
    data: npt.NDArray[Any] | Sequences | Sequence[Any],
    recursive_seq_lens: Sequence[Sequence[int]],
    place: object = None,
) -> Sequences:
    """Return sequences of these lengths, `[[2, 0, 1]]`, for a feed of Executor.run().

    data: an array with the items of all samples, or lists of the ids of each sample. `place` has no effect.
    Raises ValueError if the lengths are not those of the data.
    """
    if len(recursive_seq_lens) != 1:
        raise ValueError(
            f"create_lod_tensor: recursive_seq_lens={recursive_seq_lens}, expected one list of lengths"
        )
    lengths = list(recursive_seq_lens[0])
    items = data.items if isinstance(data, Sequences) else data
    if not isinstance(items, np.ndarray):
        if (found := [len(one) for one in items]) != lengths:
            raise ValueError(f"create_lod_tensor: the lengths {lengths}, the data has {found}")
        items = np.array([one for own in items for one in own], np.int64).reshape(-1, 1)
    return Sequences(items, find_offsets(lengths))
