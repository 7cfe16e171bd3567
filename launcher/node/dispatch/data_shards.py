"""Data shards: numbered files of a package, each for one trainer, as in `data/*-{:05d}`. Pure."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

_GLOB = {"*": "[^/]*", "?": "[^/]"}


class DataShards:
    """Patterns of the data shards of a job; a file that matches none is for all nodes."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """Each has one number field as in `str.format`, and `*` and `?` as in a shell."""
        self._patterns = [_compile(pattern) for pattern in patterns]

    def find_number(self, path: str) -> int | None:
        """Return the number of a data shard, None for a file for all nodes."""
        for pattern, place in self._patterns:
            found = pattern.fullmatch(path)
            if found and place.format(int(found[1])) == found[1]:
                return int(found[1])
        return None


def _compile(pattern: str) -> tuple[re.Pattern[str], str]:
    text, place = "", ""
    for literal, name, form, _ in string.Formatter().parse(pattern):
        text += "".join(_GLOB.get(c, re.escape(c)) for c in literal)
        if name is not None:
            text += "([0-9]{1,18})"
            place = f"{{:{form}}}"
    return re.compile(text), place
