"""Functions over all ranks of a job by mpi4py.futures: rank 0 hands them out, the others compute.

pslaunch mpi -hostfile machines -n 3 --server_num 0 examples/mpi4py/squares.py
"""

from __future__ import annotations

from typing import Any

from mpi4py import MPI
from mpi4py.futures import MPICommExecutor


def square(n: int) -> tuple[int, int]:
    """Return the square of a number, and the rank that has computed it."""
    return n * n, MPI.COMM_WORLD.rank


executor: Any  # an Executor of concurrent.futures on rank 0, None on the others
with MPICommExecutor(MPI.COMM_WORLD, root=0) as executor:
    if executor is not None:
        found = list(executor.map(square, range(100)))
        ranks = sorted({rank for _, rank in found})
        print(f"sum of squares {sum(n for n, _ in found)}, computed by ranks {ranks}", flush=True)
