"""Readers of simple sources: an array, a text file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["np_array", "text_file"]


def np_array(x: npt.ArrayLike) -> Callable[[], Iterator[Any]]:
    """Return a reader of the elements of an array's first axis."""
    values = np.asarray(x)
    return lambda: iter(values)


def text_file(path: str | Path) -> Callable[[], Iterator[str]]:
    """Return a reader of the lines of a text file, without line ends."""

    def read() -> Iterator[str]:
        with Path(path).open(encoding="utf-8") as f:
            for line in f:
                yield line.rstrip("\n")

    return read
