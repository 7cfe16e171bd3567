"""The C core's sparse table, called as C, against its numpy oracle: any calls in any order, bit for bit."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_bool, c_char, c_float, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pslaunch.runtime import _core
from support import reference

pytestmark = pytest.mark.asan

F32 = npt.NDArray[np.float32]
U64 = npt.NDArray[np.uint64]
EINVAL = -1


def make_struct(**fields: Any) -> Any:
    return type("Struct", (ctypes.Structure,), {"_fields_": list(fields.items())})


Err = make_struct(code=c_int, sys=c_int, text=c_char * 256)
Optim = make_struct(
    method=c_uint32, learning_rate=c_float, l1=c_float, l2=c_float, clip=c_float, numbers=c_float * 3
)
Init = make_struct(seed=c_uint64, table=c_uint64, kind=c_uint32, mean=c_float, std=c_float)
Entry = make_struct(rule=c_uint32, numbers=c_float * 2)
Row = make_struct(key=c_void_p, values=c_void_p, counts=c_void_p)
Shrink = make_struct(decay=c_float, score=c_float, unseen=c_uint32)

# Result and arguments of ps_sparse_new() and so on, without the table that comes first.
ROWS = c_void_p, c_void_p, c_size_t
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "new": (c_int, c_uint32, POINTER(Optim), POINTER(Init), POINTER(Entry), c_bool, POINTER(Err)),
    "free": (None,),
    "begin": (None, c_float, c_uint64),
    "add": (c_int, *ROWS, POINTER(Err)),
    "load": (c_int, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, POINTER(Err)),
    "commit": (None, c_uint64),
    "read": (None, c_void_p, c_size_t, c_void_p),
    "shrink": (c_size_t, POINTER(Shrink)),
    "keep": (c_int, POINTER(Err)),
    "kept": (c_bool, c_bool, c_bool, POINTER(c_uint32), POINTER(Row)),
    "forget": (c_bool,),
    "rows": (c_size_t,),
    "waiting": (c_size_t,),
}


def load() -> ctypes.CDLL:
    """The core's own functions: the extension module is a shared library like any other."""
    assert _core.__file__ is not None
    lib = ctypes.CDLL(_core.__file__)
    for name, (result, *args) in FUNCTIONS.items():
        function = getattr(lib, f"ps_sparse_{name}")
        function.restype, function.argtypes = result, [c_void_p, *args]
    return lib


LIB = load()


class Table:
    """A C table with the arguments of its oracle."""

    def __init__(self, like: reference.SparseTable) -> None:
        self.dim, self.at, self.err, self.steps = like.dim, c_void_p(), Err(), 0
        method, *rates, a, b, c = like.rule.pack()
        optim = Optim(method, *rates, (a, b, c))
        init = Init(like.seed, like.table, like.kind, like.mean, like.std)
        entry, self.lr = Entry(like.entry[0], like.entry[1:]), like.rule.lr
        code = LIB.ps_sparse_new(
            byref(self.at), like.dim, byref(optim), byref(init), byref(entry), False, byref(self.err)
        )
        if code != 0:
            raise ValueError(code, self.err.text.decode())

    def read(self, keys: U64) -> F32:
        out = np.empty((len(keys), self.dim), np.float32)
        LIB.ps_sparse_read(self.at, keys.ctypes.data, len(keys), out.ctypes.data)
        return out

    def begin(self) -> None:
        LIB.ps_sparse_begin(self.at, self.lr, self.steps + 1)

    def shrink(self, decay: float, score: float, unseen: int) -> int:
        return int(LIB.ps_sparse_shrink(self.at, byref(Shrink(decay, score, unseen))))

    def keep(self) -> None:
        assert LIB.ps_sparse_keep(self.at, byref(self.err)) == 0

    def walk(self, at: c_uint32) -> tuple[int, bytes] | None:
        """Return the next kept key, with its row, and pass it; None at the end."""
        row = Row()
        if not LIB.ps_sparse_kept(self.at, False, True, byref(at), byref(row)):
            LIB.ps_sparse_forget(self.at)
            return None
        return c_uint64.from_address(row.key).value, ctypes.string_at(row.values, 4 * self.dim)

    def waiting(self) -> int:
        return int(LIB.ps_sparse_waiting(self.at))

    def add(self, keys: U64, grads: F32) -> None:
        assert (
            LIB.ps_sparse_add(self.at, keys.ctypes.data, grads.ctypes.data, len(keys), byref(self.err)) == 0
        )

    def set(self, keys: U64, values: F32) -> None:
        arrays = keys.ctypes.data, values.ctypes.data, self.dim, None
        assert LIB.ps_sparse_load(self.at, *arrays, len(keys), byref(self.err)) == 0

    def commit(self) -> None:
        self.steps += 1
        LIB.ps_sparse_commit(self.at, self.steps)

    def rows(self) -> int:
        return int(LIB.ps_sparse_rows(self.at))

    def free(self) -> None:
        LIB.ps_sparse_free(self.at)


# A few keys that meet often, the extremes, and any others.
one_key = st.integers(0, 40) | st.sampled_from([2**32, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)
some_keys = st.lists(one_key, max_size=80).map(lambda keys: np.array(keys, dtype=np.uint64))


METHODS = [i for i, (*_, whole, _) in enumerate(_core.list_methods()) if not whole]


def rule_of(method: int) -> reference.Rule:
    """Return a rule of the method with L1, L2 and clipping."""
    numbers = tuple(usual for name, usual in _core.list_methods()[method][4] if name is not None)
    return reference.Rule(method=method, lr=0.1, l1=1e-3, l2=1e-3, clip=2.0, numbers=numbers)


entries = st.one_of(
    st.just((reference.ANY, 0.0, 0.0)),
    st.tuples(st.just(reference.COUNT), st.integers(1, 4).map(float), st.just(0.0)),
    st.tuples(st.just(reference.PROBABILITY), st.floats(0.125, 1, width=32), st.just(0.0)),
    st.tuples(st.just(reference.SHOW_CLICK), st.floats(0, 8, width=32), st.floats(0, 1, width=32)),
)

PLAIN_6 = reference.Rule(method=23, lr=0.1)
PLAIN_NAN = reference.Rule(method=0, lr=np.nan)


class SparseMachine(RuleBasedStateMachine):
    """Does the same to a C table and to its oracle."""

    table: Table | None = None

    @initialize(
        dim=st.integers(1, 40),
        method=st.sampled_from(METHODS),
        kind=st.integers(0, 3),
        seed=st.integers(0, 9),
        entry=entries,
    )
    def create(self, dim: int, method: int, kind: int, seed: int, entry: tuple[int, float, float]) -> None:
        self.model = reference.SparseTable(
            dim=dim, rule=rule_of(method), seed=seed, table=77, kind=kind, std=0.5, entry=entry
        )
        self.kept: tuple[c_uint32, dict[int, bytes]] | None = None  # place, rows that are not met yet
        self.table = Table(self.model)
        self.rng = np.random.default_rng(seed)

    def floats(self, keys: U64) -> F32:
        return self.rng.standard_normal((len(keys), self.model.dim)).astype(np.float32)

    @rule(keys=some_keys)
    def push(self, keys: U64) -> None:
        assert self.table
        grads = self.floats(keys)
        if self.model.extra:
            said = self.rng.integers(0, 3, (len(keys), 2)).astype(np.float32)
            grads = np.concatenate([said, grads], axis=1)
        self.table.begin()
        self.table.add(keys, grads)
        self.model.add(keys, grads)

    @rule(keys=some_keys)
    def set(self, keys: U64) -> None:
        assert self.table
        values = self.floats(keys)
        self.table.begin()
        self.table.set(keys, values)
        self.model.set(keys, values)

    @rule()
    def commit(self) -> None:
        assert self.table
        self.table.commit()
        self.model.commit()

    @precondition(lambda self: self.model.entry[0] and not self.model.sum)
    @rule(
        decay=st.sampled_from([0.0, 0.5, 0.98, 1.0]),
        score=st.floats(0, 3, width=32),
        unseen=st.integers(0, 3),
    )
    def shrink(self, decay: float, score: float, unseen: int) -> None:
        """Rows go, also while a walk is on its way."""
        assert self.table
        gone = self.table.shrink(decay, score, unseen)
        assert gone == self.model.shrink(decay, score, unseen)

    @rule(n=st.integers(1, 30))
    def walk(self, n: int) -> None:
        """All rows are met once, as they were when the walk began."""
        assert self.table
        if self.kept is None:
            keys = np.array(sorted(self.model.rows), np.uint64)
            rows = self.model.read(keys)
            self.kept = c_uint32(), {int(key): row.tobytes() for key, row in zip(keys, rows, strict=True)}
            self.table.keep()
        at, left = self.kept
        for _ in range(n):
            if (found := self.table.walk(at)) is None:
                assert not left
                self.kept = None
                return
            key, row = found
            assert left.pop(key) == row

    @rule(keys=some_keys)
    def read(self, keys: U64) -> None:
        assert self.table
        assert self.table.read(keys).tobytes() == self.model.read(keys).tobytes()

    @invariant()
    def same_rows(self) -> None:
        if self.table:
            assert self.table.rows() == len(self.model.rows)
            waiting = set(self.model.counts) - set(self.model.rows)
            assert self.table.waiting() == len(waiting)
            keys = np.array(list(self.model.rows), dtype=np.uint64)
            assert self.table.read(keys).tobytes() == self.model.read(keys).tobytes()

    def teardown(self) -> None:
        if self.table:
            self.table.free()


SparseMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=15, deadline=None)
TestSparseTable = SparseMachine.TestCase


def adagrad(**other: Any) -> reference.SparseTable:
    usual: dict[str, Any] = {"dim": 8, "rule": rule_of(reference.ADAGRAD), "std": 0.1}
    return reference.SparseTable(**usual | other)


def test_reads_during_a_step_see_the_values_from_before_it() -> None:
    table, keys = Table(adagrad()), np.array([5, 6], dtype=np.uint64)
    before = table.read(keys)
    assert table.rows() == 0  # reading makes no row
    table.add(keys, np.ones((2, 8), np.float32))
    assert table.read(keys).tobytes() == before.tobytes()
    table.commit()
    assert np.all(table.read(keys) < before)
    after = table.read(keys)
    table.commit()  # an empty step
    assert table.read(keys).tobytes() == after.tobytes()
    table.free()


def test_many_rows_stay_findable() -> None:
    table, n = Table(adagrad(rule=reference.Rule(method=reference.SGD, lr=0.1), std=0.0)), 100_000
    keys = np.arange(n, dtype=np.uint64) * np.uint64(2**20)  # low bits alone would all collide
    ones = np.ones((n, 8), np.float32)
    table.add(keys, ones)
    table.commit()
    assert table.rows() == n
    assert np.all(table.read(keys) == np.float32(-0.1))
    table.free()


@pytest.mark.parametrize(
    "wrong",
    [{"dim": 0}, {"dim": 2**20 + 1}, {"rule": PLAIN_6}, {"rule": PLAIN_NAN}, {"std": -1.0}, {"kind": 4}],
)
def test_tables_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError) as caught:
        Table(adagrad(**wrong))
    assert caught.value.args[0] == EINVAL
    assert caught.value.args[1]
