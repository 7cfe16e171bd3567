"""docs/troubleshooting.md quotes messages that the program has."""

from __future__ import annotations

import ast
import functools
import re

import pytest

from pslaunch.backends.k8s.cluster_check import CLUSTER_FINDING_KINDS
from pslaunch.check.findings import FINDING_KINDS
from support.pages import DOCS, rows, words

PAGE = "troubleshooting.md"
GROUPS = re.findall(r"^## (.+)$", (DOCS / PAGE).read_text(), re.MULTILINE)
FINDING = re.compile(r"(PROBLEM|warning) …: ([\w ]+):")
HOLE = "\0"


def join(node: ast.JoinedStr | ast.Constant) -> str:
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else HOLE for part in parts)


@functools.cache
def read_texts() -> str:
    """Return all strings of the program, one a line, with a mark for each value in them."""
    found: list[str] = []
    for folder in ("launcher", "runtime"):
        for path in sorted((DOCS.parent / folder).rglob("*.py")):
            nodes = [*ast.walk(ast.parse(path.read_text()))]
            docstrings = {n.value for n in nodes if isinstance(n, ast.Expr)}
            found += [
                join(n) for n in nodes if isinstance(n, ast.JoinedStr | ast.Constant) and n not in docstrings
            ]
        for path in sorted((DOCS.parent / folder).rglob("*.c")):
            found += re.findall(r'"((?:[^"\\\n]|\\.)*)"', path.read_text())
    return "\n".join(text.replace("\n", HOLE) for text in found)


@pytest.mark.parametrize("group", GROUPS)
def test_messages_of_the_page_are_those_of_the_program(group: str) -> None:
    table = rows(PAGE, group)
    assert table
    for says, _means, _remedy in table:
        assert words(says), f"{says} quotes no message"
        for message in words(says):
            if finding := FINDING.match(message):
                level, kind = finding.groups()
                assert {**FINDING_KINDS, **CLUSTER_FINDING_KINDS}[kind].level == level.lower(), message
                continue
            fixed = [re.escape(part.strip()) for part in message.split("…") if part.strip()]
            assert re.search(".*".join(fixed), read_texts()), f"no string of the program has {message!r}"
