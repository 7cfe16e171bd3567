"""The compiled core, for type checkers: kernels here; csrc/py_*.c is behind them.

Arrays are C-contiguous, aligned, of the item type named, and never share memory with another one of the
same call. TypeError: not such items. ValueError: shapes, overlap, numbers; then nothing was written.
"""

from typing import TypedDict

import numpy as np
import numpy.typing as npt

_F32 = npt.NDArray[np.float32]
_U64 = npt.NDArray[np.uint64]

class _Features(TypedDict):
    avx2: bool
    gpu: bool
    double: bool
    rdma: bool

# -- kernels: py_kernels.c; runtime/reference.py is their specification

def optim_apply(
    method: int,  # 0 SGD, 1 Momentum, 2 AdaGrad
    value: _F32,  # in place
    slots: _F32 | None,  # in place; of value's size with Momentum and AdaGrad, else None; zero at first
    grad: _F32,  # of value's size
    lr: float,
    momentum: float,
    decay: float,
    epsilon: float,
    isa: int = 0,  # for tests: 0 the best there is, 1 baseline, 2 AVX2 where there is one
) -> None: ...
def sparse_apply(
    method: int,
    value: _F32,  # [rows, dim], in place
    slots: _F32 | None,  # as value
    rows: _U64,  # [k], no number twice; ascending is fastest
    grad: _F32,  # [k, dim]
    lr: float,
    momentum: float,
    decay: float,
    epsilon: float,
) -> None: ...
def add(acc: _F32, g: _F32, isa: int = 0) -> None: ...
def init_rows(
    out: _F32,  # [n, dim]
    keys: _U64,  # [n], may repeat
    seed: int,  # 0 to 2**64-1
    table: int,  # table_id of the parameter's name
    kind: int,  # 0 normal, 1 uniform in (mean - std, mean + std)
    mean: float,
    std: float,  # 0: all are mean
) -> None: ...
def table_id(name: str, /) -> int: ...
def features() -> _Features: ...
