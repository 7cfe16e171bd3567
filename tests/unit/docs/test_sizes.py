"""Functions and classes stay small enough to be read at once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MAX_LINES, MAX_ATTRIBUTES = 50, 25  # of a function; of a class
Function = (ast.FunctionDef, ast.AsyncFunctionDef)
PATHS = sorted(path for side in ("launcher", "runtime") for path in (ROOT / side).rglob("*.py"))


def list_attributes(cls: ast.ClassDef) -> Iterator[str]:
    """Yield the fields of a class and the attributes that its methods set."""
    for node in cls.body:
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        yield from (target.id for target in targets if isinstance(target, ast.Name))
    for found in ast.walk(cls):
        if isinstance(found, ast.Attribute) and isinstance(found.ctx, ast.Store):
            yield from [found.attr] if isinstance(found.value, ast.Name) and found.value.id == "self" else []


def find_large(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, Function) and (lines := (node.end_lineno or 0) - node.lineno + 1) > MAX_LINES:
            yield f"{node.name} has {lines} lines"
        elif isinstance(node, ast.ClassDef) and (count := len({*list_attributes(node)})) > MAX_ATTRIBUTES:
            yield f"{node.name} has {count} attributes"


@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_and_classes_are_small(path: Path) -> None:
    assert [*find_large(path)] == []
