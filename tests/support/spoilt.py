"""Data as a hostile node may send it: with what a terminal obeys in every text."""

from __future__ import annotations

import re
from typing import Any

CONTROLS = "".join(map(chr, (*range(32), *range(127, 160))))
OBEYED = f"{CONTROLS}\x1b]0;title\x07\x1b[2J\x1bc\u2028"
_OF_VIEWS = re.compile(r"\x1b\[[0-9;?]*[mKAhl]|[\r\n]")  # colours, and the table that is drawn again


def spoil(value: Any) -> Any:
    """Return data whose texts all have every control character."""
    if isinstance(value, str):
        return value + OBEYED
    if isinstance(value, dict):
        return {k: v if k == "event" else spoil(v) for k, v in value.items()}
    return [spoil(v) for v in value] if isinstance(value, (list, tuple)) else value


def find_obeyed(shown: str) -> set[str]:
    """Return what a terminal would obey of what was shown, without what views write of themselves."""
    return set(_OF_VIEWS.sub("", shown)) & {*OBEYED[: len(CONTROLS)], "\u2028"} - {"\t"}
