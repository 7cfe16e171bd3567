"""Fill a node's workspace from a folder of the same machine: a node of a simulated cluster.

What programs of earlier jobs wrote there under `log/` and `output/` stays; all else is as in the folder.
"""

from __future__ import annotations

import errno
import os
import shutil

KEPT = frozenset({"log", "output", "nodefile", "nodes", ".pslaunch"})  # a node's own, never part of a package


def fill(workspace: str, source: str) -> None:
    """Make `workspace` a copy of `source`. Raises OSError.

    Links that lead out of the source lead to the same place from the copy. What is neither file, folder
    nor link is refused. A folder that holds the workspace itself (the job's logs) is left out.
    """
    os.makedirs(workspace, exist_ok=True)
    for name in set(os.listdir(workspace)) - KEPT:
        path = os.path.join(workspace, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    root = os.path.realpath(source)
    for name in sorted(set(os.listdir(root)) - KEPT):
        _copy(os.path.join(root, name), os.path.join(workspace, name), root, os.path.realpath(workspace))


def _copy(path: str, target: str, root: str, workspace: str) -> None:
    if os.path.islink(path):
        end = os.path.realpath(path)
        inside = end == root or end.startswith(root + os.sep)
        os.symlink(os.readlink(path) if inside else end, target)
    elif os.path.isfile(path):
        shutil.copy2(path, target)
    elif not os.path.isdir(path):
        raise OSError(errno.EINVAL, "neither file, folder nor link: it can't be copied to a node", path)
    elif not workspace.startswith(path + os.sep):
        os.mkdir(target)
        for name in sorted(os.listdir(path)):
            _copy(os.path.join(path, name), os.path.join(target, name), root, workspace)
        shutil.copystat(path, target)
