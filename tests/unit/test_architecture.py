"""docs/architecture.md and the directions of imports that it promises, compared with the code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text()
MODULES = sorted(
    p.relative_to(ROOT)
    for folder in ("launcher", "runtime")
    for p in (ROOT / folder).rglob("*.py")
    if p.name not in ("__init__.py", "__main__.py")
)
# Who may import whom in the launcher, lowest first: each may import what stands before it.
LAYERS = (
    *("errors", "args", "kinds", "hosts", "detect", "options", "settings", "conf", "given", "locate", "spec"),
    "fabric_spec",
    "plan",
    "backends",
    "view",
    "session",
    "commands",
    "cli",
)


def test_every_module_is_on_the_page() -> None:
    missing = [
        str(m) for m in MODULES if m.parent.name not in ("reader", "dataset") and f"{m.name}`" not in PAGE
    ]
    assert not missing


def test_every_file_on_the_page_is_there() -> None:
    names = set(re.findall(r"`(?:[a-z/]*/)?(\w+\.py)`", PAGE))
    assert (
        not names
        - {m.name for m in MODULES}
        - {"__init__.py", "test_node_alone.py", "test_clint.py", "conftest.py"}
    )


def test_every_room_of_the_core_is_on_the_page() -> None:
    rooms = {p.stem for p in (ROOT / "runtime/csrc").glob("*.c")}
    assert not {room for room in rooms if f"`{room}`" not in PAGE}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_knowledge_goes_one_way(module: Path) -> None:
    ours = {name for name in imports(module) if name.startswith("pslaunch.")}
    if module.parts[0] == "runtime":
        assert not {
            name for name in ours if not name.startswith(("pslaunch.runtime", "pslaunch.__version__"))
        }
        return
    runtime = {name for name in ours if name.startswith("pslaunch.runtime.")}
    shared = (
        "pslaunch.runtime.env",
        "pslaunch.runtime.busyport",
        "pslaunch.runtime.nics",
        "pslaunch.runtime.prove",
    )
    allowed = (*shared, *(("pslaunch.runtime._core",) if module.name == "cli.py" else ()))
    assert not {name for name in runtime if not name.startswith(allowed)}
    layer = module.parts[1].removesuffix(".py")
    if layer in LAYERS:
        above = LAYERS[LAYERS.index(layer) + 1 :]
        assert not {name for name in ours if name.split(".")[1] in above}


def test_help_and_the_runtimes_name_load_nothing_heavy() -> None:
    code = "import pslaunch.cli, pslaunch.runtime, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "rich", "fabric", "kubernetes", "asyncio"} & set(done.stdout.split())
