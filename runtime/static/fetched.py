"""Fetched values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Number(np.ndarray[Any, Any]):
    """A fetched value of one number: an array without axes, as in PaddlePaddle since 2.5.

    [0] is the number too: before, it had one axis of size 1, and many programs are of that time.
    """

    def __getitem__(self, key: Any) -> Any:
        whole = not self.ndim and isinstance(key, int) and key in (0, -1)
        return super().__getitem__(() if whole else key)


def make_fetched(values: Iterable[Array]) -> list[Array]:
    """Return values as programs get them; they share the memory."""
    return [one if one.ndim else one.view(Number) for one in values]
