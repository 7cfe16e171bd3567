"""The C sources keep their rules: who may know Python, what may never be called, what is listed where."""

from __future__ import annotations

import re
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CSRC = ROOT / "runtime" / "csrc"
SOURCES = sorted(CSRC.rglob("*.c"))
HEADERS = sorted(CSRC.rglob("*.h"))
# A file includes those of its room and of rooms before it; a shard and a client know nothing of each other.
ORDER = {"base": 0, "kernels": 1, "tables": 2, "wire": 3, "shard": 4, "client": 4, "bindings": 5}
ALL = SOURCES + HEADERS

NOT_CODE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.DOTALL)
ENDS_OR_TALKS = re.compile(r"\b(v?f?printf|puts|fputs|putchar|perror|_?exit|quick_exit|abort|raise)\s*\(")
EXTENSION = re.compile(r"__attribute__|__builtin_\w+|__asm__|_mm\w*_\w+\(|\btypeof\b")
FUNCTION = re.compile(
    r"^(?!#|typedef|enum|struct \w+ \{|extern \"C\")[A-Za-z_][\w \t*]*?\b(\w+)\([^;{]*[;{]", re.MULTILINE
)


def code(text: str) -> str:
    """`text` without comments and strings; places and line numbers stay."""
    return NOT_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def lines_with(pattern: re.Pattern[str], path: Path) -> list[str]:
    numbered = enumerate(code(path.read_text()).splitlines(), 1)
    return [f"{path.name}:{number}: {line.strip()}" for number, line in numbered if pattern.search(line)]


def functions(header: str) -> list[tuple[str, bool]]:
    """Name of each function in a header, and whether a comment ends on the line above it."""
    above = header.splitlines()
    found = []
    for match in FUNCTION.finditer(code(header)):
        line = header.count("\n", 0, match.start())
        found.append((match[1], line > 0 and above[line - 1].rstrip().endswith("*/")))
    return found


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.name)
def test_only_the_binding_knows_python(path: Path) -> None:
    if not path.name.startswith("py_"):
        assert path.name.startswith("ps_")
        assert not lines_with(re.compile(r"\bPy\w*_\w+|\bPyObject\b"), path)
        assert "Python.h" not in path.read_text()
        assert "bindings/" not in path.read_text()


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.name)
def test_nothing_ends_the_process_or_writes_to_its_output(path: Path) -> None:
    assert not lines_with(ENDS_OR_TALKS, path)


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.name)
def test_compiler_extensions_are_behind_names(path: Path) -> None:
    if path.name not in ("ps_cpu.h", "ps_tiles.c"):
        assert not lines_with(EXTENSION, path)


@pytest.mark.parametrize("path", HEADERS, ids=lambda path: path.name)
def test_every_function_of_a_header_has_its_contract_and_prefix(path: Path) -> None:
    text = path.read_text()
    found = functions(text)
    assert [name for name, said in found if not said] == []
    assert [name for name, _ in found if not name.startswith(path.name[:3])] == []
    assert text.startswith("/* "), "a header begins with what it is"
    guard = path.name.upper().replace(".", "_")
    assert f"#ifndef {guard}\n#define {guard}\n" in text


def test_checker_finds_all_functions() -> None:
    """The checks above are worth what this finds."""
    assert functions("/* Good. */\nint ps_a(int x);\nvoid *ps_b(\n    int y);\n") == [
        ("ps_a", True),
        ("ps_b", False),
    ]
    assert functions("/* A. */\nstatic inline int ps_c(void) {\n    return ps_d(1);\n}\n") == [("ps_c", True)]
    assert ("ps_sparse_add", True) in functions((CSRC / "tables/ps_sparse.h").read_text())


def test_every_file_is_listed_in_pyproject() -> None:
    [module] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
    assert module["sources"] == [str(path.relative_to(ROOT)) for path in SOURCES]
    assert module["depends"] == [str(path.relative_to(ROOT)) for path in HEADERS]


CODE = {path.name: code(path.read_text()) for path in SOURCES}


def find_definitions() -> dict[str, str]:
    """Return the file of each function and table that other files of the core can use."""
    pattern = r"^(?!static|extern|typedef)\w[\w \*]*?\b((?:ps|py)_\w+)(?:\([^;{}]*\)\s*\{|(?:\[\w*\])*\s*=)"
    return {name: file for file, text in CODE.items() for name in re.findall(pattern, text, re.MULTILINE)}


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.name)
def test_a_file_includes_those_of_its_room_and_those_below(path: Path) -> None:
    room = path.parent.name
    for other in re.findall(r'#include "(\w+)/', path.read_text()):
        assert other == room or ORDER[other] < ORDER[room]


def test_modules_of_the_core_include_each_other_without_a_circle() -> None:
    arrows: dict[str, set[str]] = {path.stem: set() for path in ALL}
    for path in ALL:
        arrows[path.stem] |= set(re.findall(r'#include "\w+/(\w+)\.h"', path.read_text())) - {path.stem}
    TopologicalSorter(arrows).prepare()


def test_a_room_of_the_core_has_at_most_twenty_modules() -> None:
    assert {path.parent.name for path in ALL} == ORDER.keys()
    assert not [room for room in ORDER if len({path.stem for path in (CSRC / room).iterdir()}) > 20]


def test_files_of_the_core_use_each_other_without_a_circle() -> None:
    places = find_definitions()
    assert places["ps_client_run"] == "ps_client_run.c"
    uses = {
        file: {places[name] for name in re.findall(r"\bp[sy]_\w+", text) if name in places} - {file}
        for file, text in CODE.items()
    }
    TopologicalSorter(uses).prepare()
