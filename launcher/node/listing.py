"""Files of the state folder in a workspace, listings of folders that reveal changes, short lists of names."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterable, Iterator, Sequence

# Files of the state folder: the job that owns logs and output, also once it has ended; and the contents of
# output/ before it, after a line with that job.
OWNER = "job"
EARLIER = "earlier"
KEPT_JOBS = "kept"  # jobs whose logs are kept in EARLIER_LOGS of the log folder, oldest first
EARLIER_LOGS = "earlier"
CHOSEN_PYTHON = "python"  # path of that of the last setup; empty for the node's own
UNFETCHED = "unfetched-"  # and a mode of relay.py: its answer was not given yet, and the agent waits for that


def refuse_foreign_link(path: str) -> None:
    """Raise PermissionError for a link of another user than root and this one: it could lead anywhere."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode) and status.st_uid not in (0, os.geteuid()):
            raise PermissionError(errno.EPERM, "it is a link of another user", path)


def make_own_folder(path: str) -> None:
    """Make a folder that git ignores."""
    os.makedirs(path, exist_ok=True)
    # No failure: it exists already, or the disk is full, which the job itself will report.
    with contextlib.suppress(OSError), open(os.path.join(path, ".gitignore"), "x") as f:
        f.write("*\n")


def replace_file(path: str, beside: str, lines: Iterable[str]) -> None:
    """Replace a file by one made beside it: others may read it meanwhile."""
    with name_file(path), open(beside, "w", encoding="utf-8") as f:
        f.writelines(lines)
    os.replace(beside, path)


def write_text(path: str, text: str, mode: int = 0o644) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
    with name_file(path), os.fdopen(fd, "w", encoding="utf-8") as f:
        f.write(text)


def read_text(path: str) -> str:
    """Return the text of a file, such as one of the kernel; "" where it can't be read."""
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as f:
        return f.read()
    return ""


def read_lines(state_dir: str, name: str) -> list[str]:
    """Return the lines of a file of the state folder; [] if either is missing."""
    path = os.path.join(os.path.expanduser(state_dir), name)
    with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8") as f:
        return list(f)
    return []


def mark_unfetched(state_dir: str, *, with_output: bool) -> list[str]:
    """Write a mark for each part of a node's files that is to be fetched; return their paths."""
    paths = [os.path.join(state_dir, UNFETCHED + mode) for mode in ("pack", "results")[: 1 + with_output]]
    for path in paths:
        write_text(path, "")
    return paths


@contextlib.contextmanager
def name_file(path: str) -> Iterator[None]:
    """Add the file's name to write errors, which lack it."""
    try:
        yield
    except OSError as e:
        e.filename = e.filename or path
        raise


def show_few(names: Sequence[str], most: int, between: str = ", ") -> str:
    """Return the first of many names, and the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return between.join(names[:most]) + more


def list_folder(folder: str) -> Iterator[str]:
    """Yield a line of JSON for each entry below a folder: path, kind, and signs of a changed file.

    Entries that vanish meanwhile are skipped.
    """
    folders = [folder]
    while folders:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    kind = stat.filemode(status.st_mode)[0]  # as ls has it
                    entry_facts: list[object] = [os.path.relpath(entry.path, folder), kind]
                    if kind == "d":
                        folders.append(entry.path)
                    else:
                        entry_facts += status.st_ino, status.st_size, status.st_mtime_ns
                    yield json.dumps(entry_facts) + "\n"
