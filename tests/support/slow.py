"""`make slow` writes the table of tests/README.md: files with tests over 3 s, by build/durations.txt."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "tests/README.md"
MARKS = "<!-- slow -->\n", "<!-- end -->\n"
LIMIT_S = 3.0


def render(durations: str) -> str:
    """Return the rows: file, number of slow tests, the slowest of them, and what the file says it finds."""
    found: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for line in durations.splitlines():
        seconds, _, name = line.split(maxsplit=2)
        if float(seconds) >= LIMIT_S and not name.endswith(" (asan)"):
            file, _, test = name.partition("::")
            found[file].append((float(seconds), re.sub(r"\[.*", "", test)))
    rows = []
    for file, tests in sorted(found.items()):
        says = (ast.get_docstring(ast.parse((ROOT / file).read_text())) or "").splitlines()[0]
        most_s, slowest = max(tests)
        name = file.removeprefix("tests/")
        rows.append(
            f"| `{name}` | {len(tests)} | {most_s:.0f} s `{slowest.removeprefix('test_')}` | {says} |\n"
        )
    return "".join(rows)


if __name__ == "__main__":
    head, _, rest = PAGE.read_text().partition(MARKS[0])
    table = "| file | tests | slowest | what they alone can find |\n|---|---|---|---|\n"
    table += render((ROOT / "build/durations.txt").read_text())
    PAGE.write_text(head + MARKS[0] + table + MARKS[1] + rest.partition(MARKS[1])[2])
