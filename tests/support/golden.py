"""Golden files: what a command gives, whole, or as the difference to a whole one; REGOLD=1 writes them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "golden"


def check_golden(name: str, got: Any, whole: str = "") -> None:
    """Compare with the file of this name, which has all of it, or the difference to the file `whole`."""
    if whole:
        base = json.loads((GOLDEN / f"{whole}.json").read_text())
        lines = [f"{json.dumps(path)}: {json.dumps(value)}" for path, value in list_differences(base, got)]
        text = "{\n" + ",\n".join(lines) + "\n}\n"
    else:
        text = json.dumps(got, indent=1, sort_keys=True) + "\n"
    path = GOLDEN / f"{name}.json"
    if os.environ.get("REGOLD"):
        path.write_text(text)
    assert json.loads(text) == json.loads(path.read_text())


def list_differences(base: Any, got: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and new value of each difference; None for one that is gone.

    A process, or node, that the base lacks is compared with the first of its role, or the first node.
    """
    if base == got:
        return
    base, got = _by_name(base), _by_name(got)
    if not (isinstance(base, dict) and isinstance(got, dict)):
        yield path.strip(), got
        return
    for key in sorted(base.keys() | got.keys()):
        if key not in got:
            yield f"{path} {key}".strip(), None
        else:
            like = next((v for k, v in base.items() if "/" in key and k[:4] == key[:4]), base.get("node 0"))
            yield from list_differences(base.get(key, like), got[key], f"{path} {key}")


def _by_name(value: Any) -> Any:
    """Return a list of nodes or processes by their names; all else as it is."""
    if not (isinstance(value, list) and value and all(isinstance(one, dict) for one in value)):
        return value
    return {one.get("process") or f"node {one['id']}": one for one in value}
