"""Poolings of sequences by their v2 names; ops/sequence.py computes them."""

from __future__ import annotations

from . import publish

__all__ = ["Avg", "BasePoolingType", "Max", "Sum"]
publish(__name__, __all__)


class BasePoolingType:
    """One vector of all items of a sequence; `Sum()` and the class `Sum` are both accepted."""

    name = ""

    def __repr__(self) -> str:
        return f"pooling.{type(self).__name__}()"


class Max(BasePoolingType):
    """The highest of each column."""

    name = "max"


class Avg(BasePoolingType):
    """The mean."""

    name = "average"


class Sum(BasePoolingType):
    """The sum."""

    name = "sum"


def get_pooling_name(pooling: object) -> str:
    """Return the name of a pooling; raises TypeError if it is none, or has none."""
    one = pooling() if isinstance(pooling, type) else pooling
    if not isinstance(one, BasePoolingType) or not one.name:
        raise TypeError(f"pooling_type={pooling!r}, expected one of pooling, such as pooling.Sum()")
    return one.name
