"""No file but a backend's own, its options and the commands has a backend's name as a word."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pslaunch.backends.base import BUILT_IN

LAUNCHER = Path(__file__).parents[3] / "launcher"
OWN = ("backends/*.py", "options/*_spec.py", "options/options.py", "options/refused.py", "cli.py")
NAMES = frozenset({*BUILT_IN, "mpi", "k8s"})  # those to come included
WORD = r"(?<![\w./])\w+(?![\w/])"  # not as part of a path, such as /usr/local
FILES = sorted(path for path in LAUNCHER.rglob("*.py") if not any(path.match(own) for own in OWN))


def find_words(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield identifiers, and words of texts that are no docstrings, with their lines."""
    prose = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield from ((line, word) for word in re.findall(WORD, node.value))
        for _, value in ast.iter_fields(node) if not isinstance(node, ast.Constant) else ():
            names = value if isinstance(value, list) else [value]
            yield from ((line, part) for name in names if isinstance(name, str) for part in name.split("."))


def test_on_nodes_only_the_rank_process_knows_mpirun() -> None:
    words = re.compile(r"(?i)(?<![a-z])(o?mpi|pmix|prte)(?![a-z])")
    found = {path.name for path in (LAUNCHER / "node").rglob("*.py") if words.search(path.read_text())}
    assert found == {"rank.py"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(LAUNCHER)))
def test_only_a_backends_own_files_name_it(path: Path) -> None:
    library = {"fabric"} if path.parent.name == "ssh" else set()  # which these import
    words = find_words(ast.parse(path.read_text()))
    assert [f"{line}: {word}" for line, word in words if word in NAMES - library] == []
