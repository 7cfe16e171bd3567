"""What a malicious host may send: values in place of what is expected, and texts that a terminal obeys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st


class Nest(list[Any]):
    """Lists within a list: the parser of JSON takes them, a function that calls itself may not."""

    def __init__(self, depth: int) -> None:
        inner: list[Any] = []
        for _ in range(depth - 2):
            inner = [inner]
        super().__init__([inner])

    def __repr__(self) -> str:
        return "a nest"

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text("a nest")


BLOCK = 512  # of a tar file
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**70, -(10**30), 1e308, 5e-324, "", "x" * 300, "\x1b[2J", "trainer/²", [], {}, 256])
    | st.sampled_from([2**50, 2**64, -(2**64), 2.0**64, -(2.0**64), "nan", "inf", "1e999"])
    | st.sampled_from([150, 300, 450, 600, 900]).map(Nest)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@st.composite
def spoilt(draw: st.DrawFn, right: Mapping[str, Any]) -> dict[str, Any]:
    """Draw data unchanged, or with one field missing or replaced."""
    changed = dict(right)
    field = draw(st.sampled_from(sorted(set(right) - {"type", "event"}) or [""]))
    how = draw(st.sampled_from(["right", "missing", "other", "inner"]))
    if how == "missing":
        changed.pop(field, None)
    elif how == "inner" and isinstance(changed.get(field), dict):
        changed[field] = draw(spoilt(changed[field]))
    elif how != "right" and field:
        changed[field] = draw(ANYTHING)
    return changed


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Draw content of a file: changed bits, other bytes in place of some, a piece that comes twice, a cut."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        how = draw(st.sampled_from(["bit", "bytes", "twice", "cut"]))
        if how == "bit" and data:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif how == "bytes":
            new = draw(st.binary(max_size=9) | st.sampled_from([b"\xff" * 8, bytes(8), b"-1", b"1e999"]))
            data[at : at + len(new)] = new
        elif how == "twice":
            data[at:at] = data[at : at + draw(st.integers(1, 2 * BLOCK))]
        else:
            del data[at : at + draw(st.integers(1, 2 * BLOCK))]
    return bytes(data)


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
