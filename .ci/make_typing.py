"""Makes `build/typing/`, a tree in which the import names are real folders, for mypy and editors.

The public modules of the runtime are stubs there, made from its table of them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from pslaunch import runtime

ROOT = Path(__file__).resolve().parent.parent
TREE = ROOT / "build/typing/pslaunch"


def link_all(source: Path, target: Path) -> None:
    """Make a folder whose entries are links to those of another one."""
    target.mkdir(parents=True)
    for path in source.iterdir():
        if path.name != "__pycache__":
            (target / path.name).symlink_to(path)


def write_stubs(folder: Path) -> None:
    """Write a stub of each public module: the names of the one that it stands for."""
    for name, place in runtime.PUBLIC.items():
        path = folder.joinpath(*name.split("."))
        inner = any(other.startswith(f"{name}.") for other in runtime.PUBLIC)
        stub = path / "__init__.pyi" if inner else path.with_suffix(".pyi")
        stub.parent.mkdir(parents=True, exist_ok=True)
        stub.write_text(f"from pslaunch.runtime.{place} import *\n")


if __name__ == "__main__":
    shutil.rmtree(TREE.parent, ignore_errors=True)
    link_all(ROOT / "launcher", TREE)
    link_all(ROOT / "runtime", TREE / "runtime")
    (TREE / "templates").symlink_to(ROOT / "templates")
    (TREE / "runtime/torch").rename(TREE / "torch")
    write_stubs(TREE / "runtime")
