"""The pages of docs/ as tests read them: sections, and the tables in them."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def section(page: str, heading: str) -> str:
    """Return the text below the heading that begins with these words, up to the next heading."""
    text = (DOCS / page).read_text()
    begin = re.search(rf"^#+ {re.escape(heading)}.*$", text, re.MULTILINE)
    assert begin, f"{page} has no heading {heading!r}"
    return re.split(r"^#+ ", text[begin.end() :], maxsplit=1, flags=re.MULTILINE)[0]


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of every table row of a section, without the table's head."""
    lines = [line for line in section(page, heading).splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    rules = [i for i, row in enumerate(cells) if set("".join(row)) == {"-"}]
    heads = {i for rule in rules for i in (rule - 1, rule)}
    return [row for i, row in enumerate(cells) if i not in heads]


def words(cell: str) -> list[str]:
    """Return the words between backticks in a cell."""
    return re.findall(r"`([^`]+)`", cell)


def read_name_tables() -> dict[str, dict[str, str]]:
    """Return the tables of docs/fleet.md by modules of PaddlePaddle: each name with its state."""
    page = (DOCS / "fleet.md").read_text()
    headings = re.findall(r"^### (paddle\S*)$", page, re.MULTILINE)
    tables: dict[str, dict[str, str]] = {name: {} for name in headings}
    for module, table in tables.items():
        for names, state in rows("fleet.md", module):
            for name in words(names):
                assert name not in table, f"{module} has {name} in two rows"
                table[name] = state
    return tables


def list_blocks(text: str) -> list[tuple[str, str]]:
    """Return the fenced blocks of a page: the words after the fence, and the lines."""
    return re.findall(r"^```(.*)\n((?s:.*?))^```$", text, re.MULTILINE)
