"""The zipapp runs alone: standard library only, regardless of installed packages."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pslaunch.ship.zipapp import list_sources, make_zipapp


def greet(keeper: Sequence[str]) -> tuple[bytes, bytes]:
    """Start a keeper, close its line once it has greeted; its greeting, and what it said at its end."""
    pipe = subprocess.PIPE
    with subprocess.Popen(keeper, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0) as process:
        assert process.stdout is not None
        greeting = process.stdout.read(4096)
        _, said = process.communicate(timeout=30)
    return greeting, said


def imported(name: str, path: Path) -> Iterator[str]:
    package = name.removesuffix(".py").split("/")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            yield ".".join([*base, *([node.module] if node.module else [])])


def test_imports_only_the_standard_library_and_itself() -> None:
    itself = re.compile(r"pslaunch(\.runtime)?$|pslaunch\.(node|runtime\.shared)")
    for name, path in list_sources().items():
        others = {found for found in imported(name, path) if not itself.match(found)}
        if name == "pslaunch/__init__.py":
            others -= {"pslaunch.api", "pslaunch.errors"}  # when they are used, which no node does
        assert {found.partition(".")[0] for found in others} <= sys.stdlib_module_names, (name, others)


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """Return the zipapp as a file."""
    (tmp_path / "app.pyz").write_bytes(make_zipapp())
    return tmp_path / "app.pyz"


def test_keeper_of_the_zipapp_greets(app: Path) -> None:
    greeting, said = greet([sys.executable, "-I", "-S", str(app), "keeper", "5", "1"])
    assert b'"type":"hello"' in greeting and b"the head is gone" in said


def test_it_loads_no_numpy_and_none_of_the_launcher(app: Path) -> None:
    code = "import pslaunch.node.agent.run_agent, pslaunch.node.head.head, sys; print(*sorted(sys.modules))"
    code = f"import sys; sys.path.insert(0, {str(app)!r}); {code}"
    argv = [sys.executable, "-I", "-S", "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    slow = {"numpy", "typer", "rich", "pslaunch.cli", "pslaunch.options", "asyncio", "tempfile", "logging"}
    assert not loaded & slow


# Prints the kind of the loaded modules and a traceback.
FROM = """
import sys
sys.path.insert(0, sys.argv[1])
{first}
from pslaunch.node.dispatch import manifest
import traceback
print(zipimport._compile_source is not compile_source or not compiled, bool(manifest.__file__))
try:
    manifest.compute_digest(None)
except TypeError:
    print(traceback.format_exc())
"""
WATCH = """
import zipimport
compiled, compile_source = [], zipimport._compile_source
zipimport._compile_source = lambda *args: compiled.append(args[0]) or compile_source(*args)
"""
ANOTHER_PYTHON = "import _frozen_importlib_external as e; e.MAGIC_NUMBER = e._RAW_MAGIC_NUMBER = b'none'"


@pytest.mark.parametrize("first", ["", ANOTHER_PYTHON], ids=["our Python", "another Python"])
def test_a_python_of_our_version_compiles_nothing(app: Path, first: str) -> None:
    code = f"{WATCH}{FROM.format(first=first)}\nprint('compiled:', len(compiled))"
    argv = [sys.executable, "-I", "-S", "-c", code, str(app)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert ("compiled: 0" in done.stdout) == (not first)
    assert "pslaunch/node/dispatch/manifest.py" in done.stdout and "return blake2b(data" in done.stdout
