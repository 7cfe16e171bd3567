"""MPI_Init and one allreduce by the ranks of a node, for `pslaunch check mpi`."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping

from pslaunch.runtime.shared import env

from .loan import Loan

_DONE = b"pslaunch: added up\n"
_PROGRAM = f"from mpi4py import MPI; MPI.COMM_WORLD.allreduce(1); import os; os.write(1, {_DONE!r})"
MAX_SHOWN_BYTES = 400


def try_allreduce(loans: Iterable[Loan], python: str, own: Mapping[str, str], limit_s: float) -> str:
    """Run it; return why it failed, or "". own: further variables. Raises OSError."""
    argv, said, end_s = [python, "-c", _PROGRAM], b"", time.monotonic() + limit_s
    read_fd, write_fd = os.pipe()
    runs = [
        subprocess.Popen(
            argv, env=env.compose(loan.make_environ(argv), own, {}), stdin=subprocess.DEVNULL,
            stdout=write_fd, stderr=write_fd, start_new_session=True,
        )
        for loan in loans
    ]  # fmt: skip
    os.close(write_fd)
    with open(read_fd, "rb", buffering=0) as f:  # our reaper may take their exit codes
        while select.select([f], [], [], max(0.0, end_s - time.monotonic()))[0] and (piece := f.read(4096)):
            said += piece
    for run in runs:
        with contextlib.suppress(OSError):
            os.killpg(run.pid, signal.SIGKILL)
        run.returncode = 0  # not waited for here
    if said.count(_DONE) == len(runs):
        return ""
    words = said.replace(_DONE, b"").decode("utf-8", "replace").split()
    late = f"MPI_Init and an allreduce do not end within {limit_s:g} s" if time.monotonic() >= end_s else ""
    return ": ".join(filter(None, (late, " ".join(words)[-MAX_SHOWN_BYTES:]))) or "it ended without a word"
