"""Readers by their v2 names: a reader is a function that returns an iterator over samples."""

from __future__ import annotations

from . import creator
from .decorator import (
    ComposeNotAligned,
    batch,
    buffered,
    cache,
    chain,
    compose,
    firstn,
    map_readers,
    shuffle,
    xmap_readers,
)

__all__ = [
    "ComposeNotAligned", "batch", "buffered", "cache", "chain", "compose", "creator", "firstn", "map_readers",
    "shuffle", "xmap_readers",
]  # fmt: skip
