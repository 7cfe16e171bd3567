"""A program of MPI: all ranks add their numbers, then end as the first argument says. No package needed."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

mpi = ctypes.CDLL(sys.argv[2], mode=ctypes.RTLD_GLOBAL)


def find(name: str) -> object:
    return ctypes.byref(ctypes.c_char.in_dll(mpi, f"ompi_mpi_{name}"))


assert mpi.MPI_Init(None, None) == 0
rank, total = ctypes.c_int(), ctypes.c_int()
mpi.MPI_Comm_rank(find("comm_world"), ctypes.byref(rank))
one = ctypes.c_int(rank.value + 1)
mpi.MPI_Allreduce(ctypes.byref(one), ctypes.byref(total), 1, find("int"), find("op_sum"), find("comm_world"))
assert os.environ["OMPI_COMMAND"] == sys.executable and "mpi_train.py" in os.environ["OMPI_ARGV"]
assert rank.value == int(os.environ["PADDLE_TRAINER_ID"])
print("sum", total.value, flush=True)
if sys.argv[1] == "long":  # a message that is not copied through a small buffer
    text = ctypes.create_string_buffer(1 << 20)
    size, world, byte = len(text), find("comm_world"), find("byte")
    if rank.value == 0:
        mpi.MPI_Send(text, size, byte, 1, 0, world)
    if rank.value == 1:
        mpi.MPI_Recv(text, size, byte, 0, 0, world, None)
if rank.value == 1 and sys.argv[1] == "abort":
    mpi.MPI_Abort(find("comm_world"), 7)
if rank.value == 1 and sys.argv[1] in ("raise", "raise-unseen"):
    if sys.argv[1] == "raise-unseen":  # until the test lets the agent go on
        os.kill(os.getppid(), signal.SIGSTOP)
    raise RuntimeError("of one rank")
if sys.argv[1] in ("abort", "wait"):
    signal.pause()
if sys.argv[1] in ("raise", "raise-unseen"):
    mpi.MPI_Barrier(find("comm_world"))
mpi.MPI_Finalize()
