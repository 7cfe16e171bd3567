"""docs/architecture.md and the directions of imports that it promises, compared with the code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/architecture.md").read_text()
NAMES = {"launcher": "pslaunch", "runtime": "pslaunch.runtime"}
MODULES = {
    ".".join([NAMES[folder], *path.relative_to(ROOT / folder).with_suffix("").parts]).removesuffix(
        ".__init__"
    ): path
    for folder in NAMES
    for path in sorted((ROOT / folder).rglob("*.py"))
}
# Who may import whom, lowest first: a folder, or a module that lies in none, imports what stands before it.
ORDER = (
    "runtime.shared",
    *("node.messages", "node.codes", "node.listing", "node.logs", "node.ports", "node.procs", "node.shapes"),
    *("node.silence", "node.loop"),
    *("node.ending", "node.job", "node.beginning", "node.line", "node.link", "node.later"),
    *("node.dispatch", "node.head", "node.agent", "node.__main__"),
    *("errors", "options", "views", "ship", "plan", "ssh", "backends", "check", "run", "place"),
    *("cli", "__main__"),
)


def find_imports(module: str) -> dict[str, ast.ImportFrom]:
    """Return what a module imports from pslaunch, those for types and those in functions included."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            name = ".".join(filter(None, (base, node.module)))
            for alias in node.names:
                whole = f"{name}.{alias.name}"
                found[whole if whole in MODULES else name] = node
    return {name: node for name, node in found.items() if name in MODULES and name != module}


IMPORTS = {module: find_imports(module) for module in MODULES}


def room(module: str) -> str:
    """Return the folder of a module, or the module where it lies in none, as ORDER has them."""
    name = module.removeprefix("pslaunch.")
    return next((r for r in ORDER if name == r or name.startswith(f"{r}.")), name)


def side(module: str) -> str:
    return "runtime" if f"{module}.".startswith("pslaunch.runtime.") else "launcher"


def test_every_module_of_the_launcher_has_its_place_in_the_order() -> None:
    inits = {"pslaunch", "pslaunch.node"}  # a number or two: anybody may import them
    assert {room(m) for m in MODULES if side(m) == "launcher" and m not in inits} == {*ORDER} - {
        "runtime.shared"
    }


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_from_below(module: str) -> None:
    if side(module) == "runtime":
        above = {name for name in IMPORTS[module] if side(name) == "launcher" and name != "pslaunch"}
    else:
        allowed = ORDER[: ORDER.index(room(module)) + 1] if room(module) in ORDER else []
        # `pslaunch version` shows what the core was built with
        core = {"pslaunch.runtime"} if module == "pslaunch.cli" else set()
        free = {"pslaunch", "pslaunch.node", *core}
        above = {name for name in IMPORTS[module] if room(name) not in allowed} - free
    assert not above


def test_whole_packages_are_imported_only_to_find_their_files() -> None:
    found = {
        module: {alias.name for alias in node.names}
        for module, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import) and any(alias.name.startswith("pslaunch") for alias in node.names)
    }
    assert set(found) == {"pslaunch.ship.wheel", "pslaunch.ship.zipapp"}


def test_no_module_imports_itself_by_a_circle() -> None:
    try:
        TopologicalSorter({m: [*found] for m, found in IMPORTS.items()}).prepare()
    except CycleError as e:
        pytest.fail(f"a circle: {' -> '.join(e.args[1])}")


@pytest.mark.parametrize("module", MODULES)
def test_imports_are_relative_inside_and_absolute_across(module: str) -> None:
    """Editors and drawing tools follow relative ones, although folder and import name differ."""
    wrong = {
        name
        for name, node in IMPORTS[module].items()
        if (node.level > 0) != (side(name) == side(module)) and not (name == "pslaunch" and node.level == 0)
    }
    assert not wrong


def test_a_folder_holds_at_most_twenty_modules() -> None:
    folders = {path.parent for path in MODULES.values()} - {ROOT / "runtime"}
    assert not {f for f in folders if len([*f.glob("[!_]*.py")]) > 20}


def test_every_module_is_on_the_page() -> None:
    unnamed = ("__init__.py", "__main__.py")
    missing = [
        name
        for name, m in MODULES.items()
        if m.parent.name not in ("reader", "dataset") and m.name not in unnamed and f"{m.name}`" not in PAGE
    ]
    assert not missing


def test_every_file_on_the_page_is_there() -> None:
    names = set(re.findall(r"`(?:[a-z/]*/)?(\w+\.py)`", PAGE))
    tests = {path.name for path in (ROOT / "tests").rglob("*.py")}
    assert not names - {m.name for m in MODULES.values()} - tests


def test_every_room_of_the_core_is_on_the_page() -> None:
    rooms = {p.stem for p in (ROOT / "runtime/csrc").glob("*.c")}
    assert not {room for room in rooms if f"`{room}`" not in PAGE}


def test_help_and_the_runtimes_name_load_nothing_heavy() -> None:
    code = "import pslaunch.cli, pslaunch.runtime, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "rich", "fabric", "kubernetes", "asyncio"} & set(done.stdout.split())
