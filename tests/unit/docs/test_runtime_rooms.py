"""The rooms of runtime/: who imports whom, and what has which name."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from pslaunch.runtime import PUBLIC

RUNTIME = Path(__file__).parents[3] / "runtime"
# A room imports from itself and from those before it. _core is compiled, and free for all.
RUNTIME_ORDER = (
    *("shared", "process", "files", "engine", "client", "pserver", "v2"),
    *("paddle2.core", "paddle2.program", "paddle2.nn", "paddle2.io", "paddle2.lod_tensor", "paddle2.base"),
    *("paddle2.static", "paddle2.fleet", "paddle2.distributed"),
    "torch",
)
FACES = ("v2.", "paddle2.")


def name_module(path: Path) -> str:
    return ".".join(path.relative_to(RUNTIME).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_module(path): path for path in sorted(RUNTIME.rglob("*.py")) if path.parent != RUNTIME}
TREES = {module: ast.parse(path.read_text()) for module, path in MODULES.items()}


def find_imports(module: str) -> set[str]:
    """Return what a module imports from runtime/, in functions and for types too, with its packages."""
    found = set()
    parts = module.split(".") if MODULES[module].name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.ImportFrom):
            base = ".".join(filter(None, (*parts[: len(parts) - node.level + 1], node.module)))
            if not node.level:  # in runtime/torch/, whose import name is none of the runtime's
                base = (node.module or "").removeprefix("pslaunch.runtime").lstrip(".")
            for alias in node.names:
                whole = f"{base}.{alias.name}".lstrip(".")
                found.add(whole if whole in MODULES else base)
    packages = {name[:at] for name in found for at in range(len(name)) if name[at] == "."}
    return {name for name in found | packages if name in MODULES and not f"{module}.".startswith(f"{name}.")}


IMPORTS = {module: find_imports(module) for module in MODULES}


def find_room(module: str) -> str | None:
    return next((room for room in RUNTIME_ORDER if f"{module}.".startswith(f"{room}.")), None)


def test_every_module_has_a_room() -> None:
    assert {m for m in MODULES if find_room(m) is None} == {"paddle2"}
    assert {find_room(m) for m in MODULES} - {None} == set(RUNTIME_ORDER)


@pytest.mark.parametrize("module", sorted(MODULES.keys() - {"paddle2"}))
def test_a_module_imports_from_its_room_and_those_below(module: str) -> None:
    room = find_room(module)
    assert room is not None
    allowed = RUNTIME_ORDER[: RUNTIME_ORDER.index(room) + 1]
    assert not {name for name in IMPORTS[module] - {"paddle2"} if find_room(name) not in allowed}


def test_no_module_of_the_runtime_imports_itself_by_a_circle() -> None:
    TopologicalSorter(IMPORTS).prepare()


def test_a_pserver_loads_no_numpy() -> None:
    code = "import sys, pslaunch.runtime.pserver.pserver; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_file_names_are_there_once() -> None:
    faces = {place for place in PUBLIC.values() if place.startswith(FACES)}
    own = Counter(
        m.rpartition(".")[2] for m, p in MODULES.items() if not p.name.startswith("_") and m not in faces
    )
    assert not {name for name, n in own.items() if n > 1}


def list_classes() -> Iterator[tuple[str, str]]:
    for module, tree in TREES.items():
        yield from ((module, node.name) for node in tree.body if isinstance(node, ast.ClassDef))


def list_shown(module: str) -> set[str]:
    """Return the names of a module's __all__."""
    for node in TREES[module].body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return {*ast.literal_eval(node.value)}
    return set()


def test_class_names_have_one_meaning() -> None:
    """Names of PaddlePaddle, which its modules have more than once, and of PyTorch aside."""
    shown = {place: list_shown(place) for place in PUBLIC.values()}
    every = set().union(*shown.values())
    public = {
        (m, name) for m, name in list_classes() if name in shown.get(m, every if m.startswith(FACES) else ())
    }
    torchs = {
        (m, name) for m, name in list_classes() if find_room(m) == "torch" and name in list_shown("torch")
    }
    own = [name for m, name in list_classes() if (m, name) not in public | torchs]
    assert not {name for name, n in Counter(own).items() if n > 1}
    assert not {*own} & {name for _, name in public}
