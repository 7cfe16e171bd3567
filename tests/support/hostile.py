"""Values that a malicious host may send in place of what is expected, for Hypothesis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**70, -(10**30), 1e308, 5e-324, "", "x" * 300, "\x1b[2J", "trainer/²", [], {}, 256])
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
