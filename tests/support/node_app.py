"""What travels to a node: the files, and the zipapp made of them."""

from __future__ import annotations

import shutil
import subprocess
import zipapp
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARED = ("env", "busyport", "prove")  # modules of the runtime that the launcher's nodes need too
FILES = [
    *("launcher/__init__.py", "runtime/__init__.py"),
    *(f"runtime/{name}.py" for name in SHARED),
    *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "launcher/node").glob("*.py"))),
]
MAIN = "import runpy; runpy.run_module('pslaunch.node', run_name='__main__')\n"


def copy_tree(folder: Path) -> None:
    """Put the files that travel below `folder`, under their import names, with a main of their own."""
    for file in FILES:
        target = folder / file.replace("launcher/", "pslaunch/").replace("runtime/", "pslaunch/runtime/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, target)
    (folder / "__main__.py").write_text(MAIN)


def make_zipapp(tree: Path, app: Path) -> None:
    """Pack a tree of `copy_tree`."""
    zipapp.create_archive(tree, app, compressed=True)


def greet(keeper: Sequence[str]) -> tuple[bytes, bytes]:
    """Start a keeper, close its line once it has greeted; its greeting, and what it said at its end."""
    pipe = subprocess.PIPE
    with subprocess.Popen(keeper, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0) as process:
        assert process.stdout is not None
        greeting = process.stdout.read(4096)
        _, said = process.communicate(timeout=30)
    return greeting, said
