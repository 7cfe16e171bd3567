"""Node code travels alone: standard library only, whatever is installed where it lands."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import zipapp
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHARED = ("env", "busyport", "prove")  # modules of the runtime that the launcher's nodes need too
FILES = [
    *("launcher/__init__.py", "runtime/__init__.py"),
    *(f"runtime/{name}.py" for name in SHARED),
    *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "launcher/node").glob("*.py"))),
]
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
    for file in FILES:
        target = (
            tmp_path / "app" / file.replace("launcher/", "pslaunch/").replace("runtime/", "pslaunch/runtime/")
        )
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, target)
    (tmp_path / "app/__main__.py").write_text(
        "import runpy; runpy.run_module('pslaunch.node', run_name='__main__')\n"
    )
    return tmp_path / "app"


def test_the_zipapp_is_small_and_its_keeper_greets(tree: Path, tmp_path: Path) -> None:
    app = tmp_path / "app.pyz"
    zipapp.create_archive(tree, app, compressed=True)
    assert app.stat().st_size <= MAX_ZIPAPP_BYTES
    argv = [sys.executable, "-I", "-S", str(app), "keeper", "5", "1"]
    done = subprocess.run(argv, input=b"", capture_output=True, timeout=30)
    assert b'"type":"hello"' in done.stdout  # then its line was closed, and it ended
    assert b"the head is gone" in done.stderr


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
