"""Folders of this machine for the results of jobs. While one job has a folder, no other writes there.

A lock in the user's state folder marks it: the folder itself is the user's own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import SpecError
from ..node import codes
from ..node.dispatch.manifest import compute_digest
from ..node.later import record
from ..options.spec import JobSpec

MAX_HOLDER_BYTES = 400


@contextlib.contextmanager
def hold_folders(spec: JobSpec, job_id: str) -> Iterator[tuple[JobSpec, list[str]]]:
    """Make and hold the folders for a job's results; yield the job with its folders, and warnings.

    In a default folder that another job has, this one gets a folder of its own. Raises SpecError for a given
    one, and for a folder that can't be made.
    """
    warnings: list[str] = []
    with contextlib.ExitStack() as held:
        for name in ("fetch_output", "fetch_logs"):
            folder: Path | None = getattr(spec, name)
            if folder is None:
                continue
            holder = held.enter_context(hold(folder, job_id, warnings.append))
            if holder and name not in spec.default_folders:
                raise make_held_error(f"--{name}={folder}", holder)
            if holder:
                own = folder / job_id
                warnings.append(f"{_explain(str(folder), holder)}; those of this job come into {own}")
                changed: dict[str, Any] = {name: own}
                spec, folder = spec._replace(**changed), own
            try:  # before the training, not after it
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as e:
                raise SpecError(f"--{name}={folder}: the folder can't be made: {e.strerror}") from None
        yield spec, warnings


@contextlib.contextmanager
def hold(folder: Path, job_id: str, warn: Callable[[str], object]) -> Iterator[str]:
    """Hold a folder for a job's results; yield "", or the id of the other job that has it.

    The kernel frees it with this process, however that ends. warn: gets the reason if it can't be held.
    """
    locks = Path(record.get_folder(os.environ)).with_name("results")
    path = locks / compute_digest(os.fsencode(os.path.realpath(folder)))[:32]
    with contextlib.ExitStack() as held:
        holder = ""
        try:
            locks.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd, is_ours = _lock(path)
            held.callback(os.close, fd)
            if is_ours:
                held.callback(path.unlink, missing_ok=True)
                os.pwrite(fd, job_id.encode(), 0)
            else:
                holder = os.pread(fd, MAX_HOLDER_BYTES, 0).decode("utf-8", "replace") or "(unknown)"
        except OSError as e:
            warn(f"another job with its results in {folder} would not be noticed: {codes.describe_error(e)}")
        yield "" if holder == job_id else holder


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


def make_held_error(shown: str, holder: str) -> SpecError:
    """Return the error for a given folder that another job has."""
    return SpecError(f"{_explain(shown, holder)}; give another folder, or wait for its end")


def _explain(shown: str, holder: str) -> str:
    return f"{shown}: the results of job {holder} come there, which is not over"
