"""Functions and classes are small, a public name has one meaning, and tests lie beside their modules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

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


# Of each backend under one name; `main` begins a program, T is any type.
OF_EACH: Final = {"FACE", "FAILURES", "OPTIONS", "OURS", "PATTERNS", "REFUSED", "T", "describe_start", "main"}
FACES: Final = ("runtime/v2/", "runtime/paddle2/", "runtime/torch/")  # names of PaddlePaddle and PyTorch


@pytest.mark.parametrize("side", ["launcher", "runtime"])
def test_a_public_name_of_a_module_is_that_of_no_other(side: str) -> None:
    homes: dict[str, set[str]] = {}
    for path in (ROOT / side).rglob("*.py"):
        home = str(path.relative_to(ROOT))
        for node in ast.parse(path.read_text()).body if not home.startswith(FACES) else ():
            targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
            for name in [getattr(node, "name", ""), *(getattr(target, "id", "") for target in targets)]:
                homes.setdefault(name, set()).add(home)
    public = homes.keys() - {name for name in homes if name.startswith("_")} - OF_EACH - {""}
    assert {name: homes[name] for name in public if len(homes[name]) > 1} == {}


def test_unit_tests_of_the_launcher_lie_beside_their_modules() -> None:
    units, lost = ROOT / "tests/unit", []
    for path in units.rglob("test_*.py"):
        folder = ROOT / "launcher" / path.parent.relative_to(units)
        modules = {module.stem for module in folder.glob("*.py")}
        words = path.stem.removeprefix("test_").split("_")
        beginnings = {"_".join(words[: n + 1]) for n in range(len(words))}
        if folder.is_dir() and path.parent != units and not modules & beginnings:
            lost.append(str(path.relative_to(ROOT)))
    assert lost == []
