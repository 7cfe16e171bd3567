"""Node code travels alone: standard library only, whatever is installed where it lands."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from support.node_app import FILES, ROOT, SHARED, copy_tree, greet, make_zipapp

MAX_ZIPAPP_BYTES = 60 * 1024  # in base64 it must fit into one argument of 128 KiB


def names(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            found.add(str(node.module))
    return found


@pytest.mark.parametrize("file", FILES)
def test_imports_only_the_standard_library_and_itself(file: str) -> None:
    for name in names(ROOT / file):
        runtime = ("pslaunch.runtime", *(f"pslaunch.runtime.{shared}" for shared in SHARED))
        ours = name in ("pslaunch", *runtime) or name.startswith("pslaunch.node")
        assert ours or name.partition(".")[0] in sys.stdlib_module_names, name


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The files that travel, under their import names."""
    copy_tree(tmp_path / "app")
    return tmp_path / "app"


def test_the_zipapp_is_small_and_its_keeper_greets(tree: Path, tmp_path: Path) -> None:
    app = tmp_path / "app.pyz"
    make_zipapp(tree, app)
    assert app.stat().st_size <= MAX_ZIPAPP_BYTES
    argv = [sys.executable, "-I", "-S", str(app), "keeper", "5", "1"]
    greeting, said = greet(argv)
    assert b'"type":"hello"' in greeting
    assert b"the head is gone" in said


def test_it_loads_no_numpy_and_none_of_the_launcher(tree: Path) -> None:
    code = "import pslaunch.node.agent, pslaunch.node.head, sys; print(*sorted(sys.modules))"
    code = f"import sys; sys.path.insert(0, {str(tree)!r}); {code}"
    argv = [sys.executable, "-I", "-S", "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {
        "numpy",
        "typer",
        "rich",
        "pslaunch.cli",
        "pslaunch.spec",
        "asyncio",
        "tempfile",
        "logging",
    }
