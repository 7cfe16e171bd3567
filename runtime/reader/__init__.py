"""Readers by their v2 names: a reader is a function that returns an iterator over samples."""

from __future__ import annotations

from pslaunch.runtime import publish
from pslaunch.runtime.reader import creator
from pslaunch.runtime.reader.decorator import (
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
    "ComposeNotAligned",
    "batch",
    "buffered",
    "cache",
    "chain",
    "compose",
    "creator",
    "firstn",
    "map_readers",
    "shuffle",
    "xmap_readers",
]

publish(__name__, __all__)
