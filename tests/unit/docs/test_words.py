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

Named = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def list_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def find_nodes(path: Path) -> Iterator[ast.Module | Named]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return (node for node in ast.walk(tree) if isinstance(node, ast.Module | Named))


def find_names(path: Path) -> list[str]:
    """Return each name in a file that begins with a question word, with its line."""
    return [
        f"{path.name}:{node.lineno}: the name {node.name}"
        for node in find_nodes(path)
        if isinstance(node, Named)
        and node.name.strip("_").lower().split("_")[0] in QUESTIONS
        and node.name not in ALLOWED
    ]


def find_docstrings(path: Path) -> list[str]:
    """Return each docstring in a file that begins with a question word or a conjunction, with its line."""
    return [
        f"{path.name}:{node.body[0].lineno}: {words[0]}…"
        for node in find_nodes(path)
        if (words := re.findall(r"\w+", ast.get_docstring(node) or ""))
        and words[0].lower() in (*QUESTIONS, "as", "that", "when", "who", "why")
    ]


@pytest.mark.parametrize(
    "path", list_files("launcher", "runtime"), ids=lambda path: str(path.relative_to(ROOT))
)
def test_names_begin_without_a_question_word(path: Path) -> None:
    assert find_names(path) == []


@pytest.mark.parametrize("folder", ["launcher", "runtime", "tests", "bench", "examples"])
def test_docstrings_begin_without_a_question_word(folder: str) -> None:
    assert [found for path in list_files(folder) for found in find_docstrings(path)] == []


def test_question_words_are_found(tmp_path: Path) -> None:
    source = tmp_path / "x.py"
    source.write_text(
        '"""How."""\ndef _what_it_is():\n    """Whether."""\ndef show():\n    """Return it."""\n'
    )
    assert find_names(source) == ["x.py:2: the name _what_it_is"]
    assert find_docstrings(source) == ["x.py:1: How…", "x.py:3: Whether…"]
