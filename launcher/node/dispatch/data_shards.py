"""Data shards: files of a package that are one trainer's, by their number, as in `data/*-{:05d}`. Pure."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Collection, Sequence

from .manifest import Entry

_GLOB = {"*": "[^/]*", "?": "[^/]"}


class DataShards:
    """Patterns of the data shards of a job; a file that none fits is everybody's."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """Each with one place for a number, as `str.format` has it, and `*` and `?` as a shell has them."""
        self._patterns = [_compile(pattern) for pattern in patterns]

    def number(self, path: str) -> int | None:
        """Return the number of a data shard, None for a file that is everybody's."""
        for pattern, place in self._patterns:
            found = pattern.fullmatch(path)
            if found and place.format(int(found[1])) == found[1]:
                return int(found[1])
        return None

    def split(self, entries: Sequence[Entry], count: int) -> Callable[[Collection[int]], list[Entry]]:
        """Return a function that gives the entries for a node with these of `count` trainers.

        Each path is matched once for all nodes.
        """
        everybodys: list[int] = []
        of: dict[int, list[int]] = {}
        for i, e in enumerate(entries):
            number = self.number(e.path) if e.kind != "d" else None
            (everybodys if number is None or not count else of.setdefault(number % count, [])).append(i)

        def part(trainers: Collection[int]) -> list[Entry]:
            places = [*everybodys, *(i for trainer in trainers for i in of.get(trainer, ()))]
            return [entries[i] for i in sorted(places)]

        return part


def _compile(pattern: str) -> tuple[re.Pattern[str], str]:
    text, place = "", ""
    for literal, name, form, _ in string.Formatter().parse(pattern):
        text += "".join(_GLOB.get(c, re.escape(c)) for c in literal)
        if name is not None:
            text += "([0-9]{1,18})"
            place = f"{{:{form}}}"
    return re.compile(text), place
