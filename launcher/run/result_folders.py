"""Folders of this machine for the results of jobs. While one job has a folder, no other writes there.

A lock in the user's state folder marks it: the folder itself is the user's own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ..errors import SpecError
from ..node import codes
from ..node.dispatch.manifest import compute_digest
from ..node.later import record

MAX_HOLDER_BYTES = 400


@contextlib.contextmanager
def hold_folders(folders: Mapping[str, Path], job_id: str, warn: Callable[[str], object]) -> Iterator[None]:
    """Make and hold the folders for a job's results, given by their names in messages.

    The kernel frees them with this process, however that ends. Raises SpecError for a folder that another
    job has or that can't be made. warn: gets the reason if a folder can't be held.
    """
    with contextlib.ExitStack() as held:
        for shown, folder in folders.items():
            try:
                holder = _hold(folder, job_id, held)
            except OSError as e:
                holder = ""
                why = codes.describe_error(e)
                warn(f"another job with its results in {folder} would not be noticed: {why}")
            if holder not in ("", job_id):
                text = f"{shown}: the results of job {holder}, which is not over, go there"
                raise SpecError(f"{text}; give another folder, or wait for its end")
            try:  # before the training, not after it
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as e:
                raise SpecError(f"{shown}: the folder can't be made: {e.strerror}") from None
        yield


def _hold(folder: Path, job_id: str, held: contextlib.ExitStack) -> str:
    """Lock a folder until `held` is closed; return "", or the id of the job that has it. Raises OSError."""
    locks = Path(record.get_folder()).with_name("results")
    path = locks / compute_digest(os.fsencode(os.path.realpath(folder)))[:32]
    locks.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd, is_ours = _lock(path)
    held.callback(os.close, fd)
    if not is_ours:
        return os.pread(fd, MAX_HOLDER_BYTES, 0).decode("utf-8", "replace") or "(unknown)"
    held.callback(path.unlink, missing_ok=True)
    os.pwrite(fd, job_id.encode(), 0)
    return ""


def _lock(path: Path) -> tuple[int, bool]:
    """Return the open file of a lock, and False if another process has it. Raises OSError."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return fd, False
        if os.fstat(fd).st_nlink:
            return fd, True
        os.close(fd)  # the last holder has removed it since
