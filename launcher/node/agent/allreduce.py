"""MPI_Init and one allreduce by the ranks of a node, for `pslaunch check mpi`."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress

from pslaunch.runtime.shared import env

from .loan import Loan

_DONE = b"pslaunch: added up\n"
_PROGRAM = f"from mpi4py import MPI; MPI.COMM_WORLD.allreduce(1); import os; os.write(1, {_DONE!r})"


def try_allreduce(loans: Iterable[Loan], python: str, own: Mapping[str, str], limit_s: float) -> str:
    """Run it; return why it failed, or "". own: further variables. Raises OSError."""
    argv, said, end_s, pids = [python, "-c", _PROGRAM], b"", time.monotonic() + limit_s, list[int]()
    read_fd, write_fd = os.pipe()
    for loan in loans:
        environ, out = env.compose(loan.make_environ(argv), own, {}), write_fd
        one = subprocess.Popen(argv, env=environ, stdout=out, stderr=out, start_new_session=True)
        one.returncode = 0  # our reaper waits for it
        pids.append(one.pid)
    os.close(write_fd)
    with open(read_fd, "rb", buffering=0) as f:
        while select.select([f], [], [], max(0.0, end_s - time.monotonic()))[0] and (piece := f.read(4096)):
            said += piece
    for pid in pids:
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
    if said.count(_DONE) == len(pids):
        return ""
    late = f"MPI_Init and an allreduce do not end within {limit_s:g} s" if time.monotonic() >= end_s else ""
    words = " ".join(said.replace(_DONE, b"").decode("utf-8", "replace").split())
    return ": ".join(filter(None, (late, words[-400:]))) or "its Python ended without a word"
