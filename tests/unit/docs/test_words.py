"""Names and docstrings begin with a verb or a noun, not with a question word."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[3]
QUESTIONS: Final = ("what", "whether", "where", "how", "which")
ALLOWED: Final[frozenset[str]] = frozenset()  # names that a protocol or standard fixes

FILES: Final = sorted(path for folder in ("launcher", "runtime") for path in (ROOT / folder).rglob("*.py"))

Named = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def find_nodes(path: Path) -> Iterator[Named]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return (node for node in ast.walk(tree) if isinstance(node, Named))


def find_questions(path: Path) -> list[str]:
    """Return each name and docstring of a file that begins with a question word, with its line."""
    found = []
    for node in find_nodes(path):
        first_name = node.name.strip("_").lower().split("_")[0]
        if first_name in QUESTIONS and node.name not in ALLOWED:
            found.append(f"{path.name}:{node.lineno}: the name {node.name}")
        words = re.findall(r"\w+", ast.get_docstring(node) or "")
        if words and words[0].lower() in (*QUESTIONS, "that"):
            found.append(f"{path.name}:{node.lineno}: the docstring of {node.name}")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_and_docstrings_begin_without_a_question_word(path: Path) -> None:
    assert find_questions(path) == []


def test_question_words_are_found(tmp_path: Path) -> None:
    source = tmp_path / "x.py"
    source.write_text('def _what_it_is():\n    """Whether it is."""\ndef show():\n    """Return it."""\n')
    assert find_questions(source) == ["x.py:1: the name _what_it_is", "x.py:1: the docstring of _what_it_is"]
