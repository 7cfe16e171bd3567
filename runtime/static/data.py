"""`static.data`: the inputs of a program."""

from __future__ import annotations

from collections.abc import Sequence

from ..graph import BATCH
from .program import Variable, add_to_main, parse_dtype


def data(name: str, shape: Sequence[int | None], dtype: object = "float32", lod_level: int = 0) -> Variable:
    """Return an input of the default main program: each run takes an array for it.

    The first size may be free, None or -1: the number of samples. lod_level 1: each sample is a sequence of
    items of `shape[1:]`.
    """
    if lod_level not in (0, 1):
        raise ValueError(f"static.data({name!r}): lod_level={lod_level}, expected 0 or 1")
    sizes = tuple(BATCH if size is None else int(size) for size in shape)
    return add_to_main(
        Variable(
            name=name,
            op="data",
            shape=sizes,
            attrs={"below": None},
            kind=parse_dtype(dtype, f"static.data({name!r})"),
            is_sequence=lod_level == 1,
        )
    )
