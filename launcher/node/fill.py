"""Fill a node's workspace from a folder of the same machine: a node of a simulated cluster.

What programs of earlier jobs wrote there under `log/` and `output/` stays; all else is as in the folder.
"""

from __future__ import annotations

import os
import shutil

KEPT = frozenset({"log", "output", "nodefile", "nodes", ".pslaunch"})  # a node's own, never part of a package


def fill(workspace: str, source: str) -> None:
    """Make `workspace` a copy of `source`, symbolic links as links. Raises OSError (shutil.Error)."""
    os.makedirs(workspace, exist_ok=True)
    for name in set(os.listdir(workspace)) - KEPT:
        path = os.path.join(workspace, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)

    def left_out(folder: str, names: list[str]) -> set[str]:
        return set(KEPT & set(names)) if os.path.samefile(folder, source) else set()

    shutil.copytree(source, workspace, symlinks=True, ignore=left_out, dirs_exist_ok=True)
