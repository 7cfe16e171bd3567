"""docs/architecture.md and the directions of imports that it promises, compared with the code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import make_tables
import pytest

from pslaunch.backends import registry

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/architecture.md").read_text()
NAMES = {"launcher": "pslaunch", "runtime": "pslaunch.runtime", "runtime/torch": "pslaunch.torch"}
NAMED = {  # of a file by its innermost folder
    path: ".".join([name, *path.relative_to(ROOT / folder).with_suffix("").parts]).removesuffix(".__init__")
    for folder, name in NAMES.items()
    for path in sorted((ROOT / folder).rglob("*.py"))
}
MODULES = {name: path for path, name in NAMED.items()}
# Who may import whom, lowest first: a folder, or a module that lies in none, imports what stands before it.
ORDER = (
    "runtime.shared",
    *("node.messages", "node.codes", "node.listing", "node.logs", "node.ports", "node.procs", "node.shapes"),
    *("node.marked", "node.run_dir", "node.loop"),
    *("node.ending", "node.job", "node.binding", "node.dealing", "node.line", "node.beginning", "node.link"),
    "node.later",
    *("node.dispatch", "node.head", "node.agent", "node.__main__"),
    *("errors", "options", "views", "ship", "plan", "backends.lines", "backends.base", "follow", "check"),
    *("backends", "run", "cli", "__main__", "api"),
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
    return next(
        (one for one in ("runtime", "torch") if f"{module}.".startswith(f"pslaunch.{one}.")), "launcher"
    )


def test_every_module_of_the_launcher_has_its_place_in_the_order() -> None:
    inits = {"pslaunch", "pslaunch.node"}  # a number or two: anybody may import them
    assert {room(m) for m in MODULES if side(m) == "launcher" and m not in inits} == {*ORDER} - {
        "runtime.shared"
    }


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_from_below(module: str) -> None:
    if side(module) != "launcher":
        above = {name for name in IMPORTS[module] if side(name) == "launcher" and name != "pslaunch"}
    else:
        allowed = ORDER[: ORDER.index(room(module)) + 1] if room(module) in ORDER else []
        # `pslaunch version` shows what the core was built with
        core = {"pslaunch.runtime"} if module == "pslaunch.cli" else set()
        api = {"pslaunch.api", "pslaunch.errors"} if module == "pslaunch" else set()  # at their first use
        free = {"pslaunch", "pslaunch.node", *core, *api}
        above = {name for name in IMPORTS[module] if room(name) not in allowed} - free
    assert not above


def backend(module: str) -> str:
    """Return the backend whose folder has a module, "" if all backends share it."""
    folder = ROOT / "launcher/backends"
    path = MODULES[module]
    return path.relative_to(folder).parts[0] if path.is_relative_to(folder) and path.parent != folder else ""


@pytest.mark.parametrize("module", MODULES)
def test_backends_are_named_by_no_import_outside_their_folders(module: str) -> None:
    assert {backend(name) for name in IMPORTS[module]} <= {"", backend(module)}


def test_faces_are_those_of_the_registry() -> None:
    assert {backend(name) for name in MODULES} - {""} == {*registry.OWN}


def test_faces_are_light() -> None:
    code = "import sys; from pslaunch.backends.registry import OWN, find_face; [*map(find_face, OWN)]"
    words = [sys.executable, "-c", f"{code}; print(*sys.modules)"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if name.startswith("pslaunch.")}
    faces = {f"pslaunch.backends.{name}" for name in registry.OWN}
    shared = {"pslaunch.backends", "pslaunch.backends.face", "pslaunch.backends.registry"}
    errors = {"pslaunch.errors", "pslaunch.node", "pslaunch.node.codes"}
    remedies = {"pslaunch.runtime", "pslaunch.runtime.shared", "pslaunch.runtime.shared.remedies"}
    assert loaded <= {*faces, *shared, *errors, *remedies}


def test_no_module_imports_itself_by_a_circle() -> None:
    # Its error names the circle. The names of the Python API are imported at their first use.
    TopologicalSorter({m: [*found] for m, found in IMPORTS.items() if m != "pslaunch"}).prepare()


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


def test_every_module_has_a_summary_of_one_line() -> None:
    """docs/modules.md has these lines; test_options_docs.py compares it with them."""
    folders = [folder for folder, _ in make_tables.list_rooms()] + [*(ROOT / "runtime/csrc").iterdir()]
    rows = {
        (folder.name, name): task for folder in folders for name, task in make_tables.list_modules(folder)
    }
    rows |= {(folder.name, ""): task for folder, task in make_tables.list_rooms()}
    assert not [name for name, task in rows.items() if not re.search(r"[.?)]$", task)]


def test_every_file_on_the_page_is_there() -> None:
    names = set(re.findall(r"`(?:[a-z/_]*/)?(\w+\.py)`", PAGE))
    tests = {path.name for path in (ROOT / "tests").rglob("*.py")}
    assert not names - {m.name for m in MODULES.values()} - tests
