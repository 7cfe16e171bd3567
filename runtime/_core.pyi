"""Types of the compiled core: kernels, shards, client; implemented by csrc/bindings/.

Arrays are C-contiguous, aligned, of the named item type, and never share memory with another one of the
same call. TypeError: wrong items. ValueError: wrong shapes, overlap, numbers; then nothing was written.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_F32 = npt.NDArray[np.float32]
_U64 = npt.NDArray[np.uint64]

# -- kernels: py_kernels.c; tests/support/reference.py is their specification

# Optim.pack() of kernel_numbers.py: method, learning_rate, l1, l2, clip, the method's own numbers, zeros.
_Rule = tuple[int, float, float, float, float, float, float, float]
# Schedule.pack(): kind, a, b, segments of last and factor.
_Schedule = tuple[int, float, float, tuple[tuple[int, float], ...]]

def apply_optim(
    rule: _Rule,
    step: int,  # from 1
    value: _F32,  # in place
    slots: _F32,  # in place; [slots, *value.shape], of a method of rows [1]; zero at first
    grad: _F32,  # value's size
    /,
) -> None: ...

# Name, slots, by row, whole, and the own numbers with their usual values: csrc/kernels/ps_optim.h.
def list_methods() -> list[tuple[str, int, bool, bool, tuple[tuple[str | None, float], ...]]]: ...
def list_schedules() -> list[str]: ...
def find_rate(
    schedule: _Schedule, learning_rate: float, samples: int, passes: int, factor: float = 1.0, /
) -> float: ...
def add(acc: _F32, g: _F32, /) -> None: ...
def sum_squares(values: _F32, /) -> float: ...  # in chains of doubles: the same bits everywhere
def keep_memory() -> None: ...  # that is freed, for the next step, in arrays below 32 MiB
def is_finite(values: _F32, /) -> bool: ...  # no NaN, no infinity
def set_floats(mode: int = 0, /) -> int: ...  # 0: IEEE; returns what restores the treatment before
def init_rows(
    out: _F32,  # [n, dim]
    keys: _U64,  # [n], may repeat
    seed: int,  # 0 to 2**64-1
    table: int,  # hash_name() of the parameter's name
    kind: int,  # 0 normal, 1 uniform in (mean - std, mean + std)
    mean: float,
    std: float,  # 0: all are mean
    /,
) -> None: ...
def hash_name(name: str, /) -> int: ...
def get_features() -> dict[str, bool]: ...  # avx2, gpu, double, rdma

# -- kernels of layers: py_kernels.c; the same bits for any number of threads and in every build

def matmul(
    a: _F32,  # [m, k], any strides
    b: _F32,  # [k, n], any strides
    out: _F32,  # [m, n]
    start: _F32 | None,  # first link of each chain: [1, n], or `out` itself; None: zero
    threads: int,
    /,
) -> None: ...
def activate(act: str, x: _F32, threads: int, /) -> None: ...  # in place; sigmoid, tanh, relu, softmax, exp
def undo_activation(act: str, y: _F32, grad: _F32, out: _F32, threads: int, /) -> None: ...
def cross_entropy(  # scores [n, classes] become their softmax; returns the number of wrong answers
    scores: _F32,
    labels: npt.NDArray[np.int64],  # one out of range is wrong, and costs infinity
    cost: _F32,
    threads: int,
    /,
) -> int: ...
def sum_columns(x: _F32, out: _F32, threads: int, /) -> None: ...  # [n, size] to [1, size]
def dot_rows(x: _F32, y: _F32, out: _F32, threads: int, /) -> None: ...  # twice [n, size] to [n]
def take_logs(x: _F32, threads: int, /) -> None: ...  # [n], in place
def choose_build(isa: int, /) -> None: ...  # for tests: 0 best, 1 baseline, up to 2 AVX2, 3 AVX-512
def get_build() -> str: ...  # "AVX-512", "AVX2", "NEON" or "plain C"

# -- lookups in embedding tables: py_lookup.c; the same results for any number of threads

# Rows [n, dim] of n ids, dense at any distance; or of n bags of ids, with offsets [n + 1], weights of the ids
# or None, and the place of an id whose row counts as zeros and gets zeros, or -1.
_Part = _F32 | tuple[_F32, npt.NDArray[np.int64], _F32 | None, int]

def find_rows(  # returns the number of keys of each table; ValueError has the place of an id out of range
    tables: list[tuple[int, npt.NDArray[np.int64]]],  # rows, ids [n]
    keys: _U64,  # [sum of all n]; of each table the unique ids first, in the order of their first use
    index: npt.NDArray[np.intp],  # [sum of all n]; the place of each id in the keys of its table
    threads: int,
    /,
) -> list[int]: ...
def gather_rows(
    table: _F32,  # [k, dim]
    index: npt.NDArray[np.intp],  # [ids of all parts]
    parts: Sequence[_Part],  # a list; written, so only rows may overlap; those of bags are sums
    threads: int,
    /,
) -> None: ...
def sum_rows(
    sums: _F32,  # [k, dim], written: the sum of the rows of each index, in their order
    index: npt.NDArray[np.intp],  # [ids of all parts]
    parts: Sequence[_Part],  # a list
    threads: int,
    /,
) -> None: ...

# -- samples of a reader as arrays: py_columns.c

def read_items(  # returns the number of samples before the first whose item does not fit
    samples: Sequence[Any],
    place: int,  # of the item in a sample
    kind: int,  # FLOATS, IDS or TEXT of columns.py
    start: int,  # of the hashes of text: hash_name() of what comes before
    out: npt.NDArray[np.int64] | _F32,  # ids [n], or vectors [n, dim]
    offsets: npt.NDArray[np.int64] | None,  # [samples + 1]: each item is a sequence; None: n samples
    half: int = -1,  # of the pair, 0 or 1, that each item of a sequence is; -1: the item itself
    /,
) -> int: ...
def count_items(  # returns the number of samples before the first whose item has no length
    samples: Sequence[Any],
    place: int,
    offsets: npt.NDArray[np.int64],  # [samples + 1], written: the starts of the sequences
    /,
) -> int: ...
def find_outside(  # returns the first column with an id not below its limit, and its place
    columns: list[tuple[npt.NDArray[np.int64], int]], /
) -> tuple[int, int] | None: ...

# -- text of slots as arrays: py_slots.c. A line has a count and so many values for each slot

def read_slots(  # returns the number of lines before the first that does not fit, and the values of each slot
    lines: list[bytes],
    kinds: bytes,  # [slots]: FLOATS, IDS or TEXT of columns.py
    sizes: npt.NDArray[np.int64],  # [slots]: values in a line; negative: any multiple of -size
    starts: _U64,  # [slots]: of the hashes of text
    counts: npt.NDArray[np.int64],  # [slots, lines], written: the number of values
    /,
) -> tuple[int, list[bytearray]]: ...

# -- shards and frames: py_shard.c, documented in csrc/shard/ps_mail.h and ps_frame.h

# Where an object's values in files are: steps, samples and passes before them, slots of state to take, floats
# of a row there, whether counts are there, seed, kind, mean and std of all other rows, shard of so many, and
# the parts, packed as sets.STORED.
_Found = tuple[int, int, int, int, int, bool, tuple[int, int, float, float], int, int, bytes]

def run_shard(
    trainers: int,
    epoch: int,
    mailbox_fd: int,
    event_fd: int,
    stall_after_s: float,
    # Finds values of a new object: name, whether it is a table, dim, total, method; None: there are none.
    find: Callable[[str, bool, int, int, int], _Found | None],
    cut_fd: int,  # write end of a pipe for cuts: ps_mail.h; -1: none
    counters: Any,  # writable, zero: ps_mail.h
    /,
) -> None: ...
def index_keys(keys: Any, places: Any, /) -> None: ...  # u64 [n]; u32 [a power of two above n], all 0
def get_protocol() -> dict[str, int]: ...  # constants that Python has too

# -- table: py_table.c, documented in csrc/tables/ps_sparse.h. A lock serves one thread at a time.

class Table:
    # init: seed, hash_name() of the parameter, kind, mean, std. entry: EntryAttr.pack(). beside: behind its
    # state a row has as many floats as values, its base, which a load of values alone sets to them.
    def __new__(
        cls,
        dim: int,
        rule: _Rule,
        init: tuple[int, int, int, float, float],
        entry: tuple[int, float, float],
        beside: bool,
        /,
    ) -> Table: ...
    def read(self, keys: _U64, out: _F32, /) -> None: ...  # [n], [n, dim]; missing rows: initial values
    # Writes the keys without a row, then the others, to `sorted`, another array; returns the former's number.
    def find_missing(self, keys: _U64, sorted: _U64, /) -> int: ...
    # All rows: [n], (base - values) / share [n, dim].
    def read_changes(self, share: float, keys: _U64, out: _F32, /) -> None: ...
    # [n], [n, dim] or [n, dim + rest], [n, 3] as ps_counts, or none. Without rows the keys only wait.
    def load(self, keys: _U64, rows: _F32, counts: _F32, /) -> None: ...
    # step: from 1. keys: [n], unique. grads: [n, dim], with a ShowClickEntry [n, 2 + dim]
    def learn(self, learning_rate: float, step: int, keys: _U64, grads: _F32, /) -> None: ...
    # The next rows above `number`, at first 0: [n], [n, dim + rest], [n, 3]; without rows the waiting keys.
    # Returns the number of the last one.
    def copy(self, number: int, keys: _U64, rows: _F32, counts: _F32, /) -> int: ...
    def clear(self) -> None: ...
    def count(self) -> tuple[int, int]: ...  # rows, waiting keys

# -- client: py_client.c, documented in csrc/client/ps_client.h. Arrays are borrowed until their call is done.

class Client:
    def __init__(self, shards: int, epoch: int, trainer: int, /) -> None: ...
    def attach(self, shard: int, fd: int, /) -> None: ...
    # mode: 0 sync, 1 half_async, 2 async, 3 geo. discard: drop a push this many updates after its values were
    # read; 0: never. pieces: [n, 3], shard, start, length, by shard; of a table start and length are 0.
    def add(
        self,
        name: str,
        total: int,  # values, or rows
        rule: _Rule,
        schedule: _Schedule,
        mode: int,
        discard: int,
        pieces: _U64,
        # dim, Entry.pack(), seed, kind, mean, std. Without it the object is dense.
        table: tuple[int, tuple[int, float, float], int, int, float, float] = ...,
        /,
    ) -> int: ...
    def init_dense(self, id: int, values: _F32 | None, /) -> None: ...
    def push(
        self, id: int, grad: _F32, out: _F32 | None, samples: int = 0, factor: float = 1.0, /
    ) -> None: ...
    def pull(self, id: int, out: _F32, /) -> None: ...
    def set_rows(self, id: int, keys: _U64, rows: _F32, /) -> None: ...
    def push_rows(
        self, id: int, keys: _U64, rows: _F32, samples: int = 0, factor: float = 1.0, /
    ) -> None: ...
    def pull_rows(self, id: int, keys: _U64, out: _F32, /) -> None: ...
    def shrink(self, id: int, decay: float, score: float, unseen: int, /) -> None: ...
    def count_shrunk(self, id: int, /) -> int: ...
    def tell(self, what: str, number: int, /) -> None: ...
    def mark(self, more: bool, /) -> None: ...
    def cut(self, now: bool, flags: int, /) -> None: ...
    def get_cut_step(self) -> int: ...  # 0: none
    def cancel(self) -> None: ...
    def begin(self) -> int: ...  # after a ValueError, of arrays that share memory, cancel the call
    # None: done; else what, shard, why
    def run(self, timeout_ms: int, call: int = 0, /) -> tuple[str, int, str] | None: ...
    def progress(self) -> tuple[str, int, str] | None: ...
    def is_done(self, call: int, /) -> bool: ...
    def clear(self) -> None: ...
    def get_version(self, id: int, shard: int, /) -> int: ...
    def count_dropped(self, id: int, /) -> int: ...
    def is_sent(self, shard: int, /) -> bool: ...
    def let_go(self, shard: int, /) -> None: ...
    def close(self) -> None: ...
