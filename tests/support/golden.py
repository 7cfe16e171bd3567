"""Golden files: what a command gives, each value by its path; REGOLD=1 writes them.

A process has its differences to the first one of its role, a node those to node 0. A file may have those to
another file alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "golden"
NONE, NO_LINE = "(none)", "(no line)"  # what the first one, or the other file, has alone


def check_golden(name: str, got: Any, other: str = "") -> None:
    """Compare with the file of this name, which may have the differences to the file `other`."""
    values = dict(_list_values(got))
    if other:
        values = _differ(json.loads((GOLDEN / f"{other}.json").read_text()), values, NO_LINE)
    path = GOLDEN / f"{name}.json"
    if os.environ.get("REGOLD"):
        lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(values.items())]
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    assert values == json.loads(path.read_text())


def _list_values(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all values, but for dicts and lists of them, with their paths."""
    if isinstance(value, dict) and value:
        for key, one in value.items():
            yield from _list_values(one, f"{path} {key}".strip())
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        firsts = dict[str, dict[str, Any]]()
        for one in value:
            name = one.get("process") or f"node {one['id']}"
            role, values = name[:4], dict(_list_values(one))
            differences = _differ(firsts.setdefault(role, {}), values, NONE)
            firsts[role] = firsts[role] or values
            yield from ((f"{path} {name} {key}", difference) for key, difference in differences.items())
    else:
        yield path, value


def _differ(base: dict[str, Any], got: dict[str, Any], lacking: str) -> dict[str, Any]:
    """Return the values that differ; `lacking` for those that are only in the base."""
    gone = dict.fromkeys(base.keys() - got.keys(), lacking)
    return {**gone, **{key: value for key, value in got.items() if key not in base or base[key] != value}}
