"""Our own folder in a workspace, the contents of a folder in lines that tell later what was added to it,
and few of many names."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator, Sequence

# Files of the state folder: whose logs and output there are, also once the job has ended; and what was in
# output/ before it, after a line that says before which job.
OWNER = "job"
EARLIER = "earlier"


def make_own_folder(path: str) -> None:
    """Make a folder of ours in somebody's workspace, which git leaves alone."""
    os.makedirs(path, exist_ok=True)
    # It is there, or no job is to fail for it: on a full disk what that needs is named.
    with contextlib.suppress(OSError), open(os.path.join(path, ".gitignore"), "x") as f:
        f.write("*\n")


def show_few(names: Sequence[str], most: int, between: str = ", ") -> str:
    """Return the first of many names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return between.join(names[:most]) + more


def list_folder(folder: str) -> Iterator[str]:
    """Return lines of JSON about all in a folder: path there, kind, and the signs that tell files apart.

    What goes away meanwhile is passed over.
    """
    folders = [folder]
    while folders:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    kind = stat.filemode(status.st_mode)[0]  # as ls has it
                    what: list[object] = [os.path.relpath(entry.path, folder), kind]
                    if kind == "d":
                        folders.append(entry.path)
                    else:
                        what += status.st_ino, status.st_size, status.st_mtime_ns
                    yield json.dumps(what) + "\n"
