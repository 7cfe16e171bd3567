"""Every kernel against its numpy oracle, bit for bit, in every build of it; and what it refuses."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pslaunch.runtime import _core
from support import optimizers, reference

pytestmark = pytest.mark.asan

F32 = npt.NDArray[np.float32]
TABLE = _core.list_methods()
METHODS = range(len(TABLE))
BUILDS = (1, 2, 0)  # baseline, AVX2 if available, the best

floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
rates = st.floats(0, 4, width=32)
vectors = hnp.arrays(np.float32, st.integers(0, 75), elements=floats, fill=st.nothing())
u64 = st.integers(0, 2**64 - 1)


def same_bits(a: F32, b: F32) -> bool:
    """Return True if all bits are equal, except for those of a NaN."""
    nan = np.isnan(a) & np.isnan(b)
    return bool(np.all((a.view(np.uint32) == b.view(np.uint32)) | nan))


def arrays(n: int, seed: int = 1) -> tuple[F32, F32, F32]:
    """Value, one slot (not negative) and gradient of n items."""
    rng = np.random.default_rng(seed)
    value, slots, grad = rng.standard_normal((3, n)).astype(np.float32)
    return value.copy(), np.abs(slots), grad.copy()


def get_usual(method: int) -> tuple[float, ...]:
    return tuple(usual for name, usual in TABLE[method][4] if name is not None)


def make_rule(method: int, *, lr: float = 0.1, l1: float = 0.0, clip: float = 0.0) -> reference.Rule:
    """Return a rule with the usual numbers of its method."""
    return reference.Rule(method=method, lr=lr, l1=l1, l2=1e-3, clip=clip, numbers=get_usual(method))


@st.composite
def rules(draw: st.DrawFn, method: int) -> reference.Rule:
    """Rules of a method, with and without L1 and clipping."""
    below_one, names = st.floats(0, 0.875, width=32), [name for name, _ in TABLE[method][4]]
    return reference.Rule(
        method=method,
        lr=draw(rates),
        l1=draw(st.just(0.0) | rates),
        l2=draw(rates),
        clip=draw(st.just(0.0) | rates),
        numbers=tuple(draw(below_one if name.startswith("beta") else rates) for name in names if name),
    )


@pytest.mark.parametrize("build", BUILDS)
@given(values=hnp.arrays(np.float32, st.integers(0, 75), elements=st.floats(width=32) | floats))
@pytest.mark.usefixtures("builds")
def test_values_that_are_not_finite_are_found(build: int, values: F32) -> None:
    _core.choose_build(build)
    assert _core.is_finite(values) == np.isfinite(values).all()
    assert _core.is_finite(np.where(np.isfinite(values), values, np.float32(0)))


@pytest.mark.parametrize("method", METHODS)
@given(value=vectors.filter(lambda value: value.size), data=st.data(), step=st.integers(1, 2**40))
def test_optimizer_is_its_oracle(value: F32, method: int, data: st.DataObject, step: int) -> None:
    rule = data.draw(rules(method))
    grad = data.draw(hnp.arrays(np.float32, value.shape, elements=floats))
    value, grad = value[None], grad[None]
    shape = reference.get_state_shape(rule.method, *value.shape)
    slots = np.abs(data.draw(hnp.arrays(np.float32, shape, elements=floats)))
    want_value, want_slots = value.copy(), slots.copy()
    with np.errstate(all="ignore"):
        reference.apply_optim(rule, step, want_value, want_slots, grad)
    for build in BUILDS:
        _core.choose_build(build)
        got_value, got_slots = value.copy(), slots.copy()
        _core.apply_optim(rule.pack(), step, got_value, got_slots, grad)
        assert same_bits(got_value, want_value)
        assert same_bits(got_slots, want_slots)


def test_methods_are_those_of_the_oracle() -> None:
    own = [
        (name, -1 if by_row else slots, len(get_usual(i)))
        for i, (name, slots, by_row, *_) in enumerate(TABLE)
    ]
    assert own == [(name, slots, numbers) for name, slots, numbers, _ in optimizers.METHODS]


def test_kernels_keep_subnormal_numbers_in_a_thread_that_flushes_them() -> None:
    acc, tiny = np.full(40, 2.0**-149, np.float32), np.full(40, 2.0**-149, np.float32)
    flushing = {"x86_64": 0x8040, "aarch64": 1 << 24}.get(platform.machine(), 0)
    before = _core.set_floats(flushing)
    try:
        _core.add(acc, tiny)
        assert _core.set_floats(flushing) == flushing  # the caller's own treatment is back
    finally:
        _core.set_floats(before)
    assert acc.view(np.uint32).tolist() == [2] * 40


@given(acc=vectors, data=st.data())
def test_add_is_its_oracle(acc: F32, data: st.DataObject) -> None:
    g = data.draw(hnp.arrays(np.float32, acc.shape, elements=floats))
    want = acc.copy()
    with np.errstate(over="ignore"):
        reference.add(want, g)
    for build in BUILDS:
        _core.choose_build(build)
        got = acc.copy()
        _core.add(got, g)
        assert same_bits(got, want)


def call(value: Any, slots: Any, grad: Any, *, method: int = 2, lr: float = 0.1) -> None:
    own = 1e-6 if method == 2 else 0.0
    _core.apply_optim((method, lr, 0.0, 0.0, 0.0, own, 0.0, 0.0), 1, value, slots, grad)


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize(
    "wrong", [np.zeros(8), np.zeros(8, "i4"), np.zeros(8, ">f4"), b"x" * 32, None, 1.0, [1.0]]
)
def test_wrong_items_are_refused(place: int, wrong: Any) -> None:
    given_arrays: list[Any] = list(arrays(8))
    given_arrays[place] = wrong
    read_only = isinstance(wrong, bytes) and place < 2  # comes first
    with pytest.raises(BufferError if read_only else TypeError):
        call(*given_arrays)


@pytest.mark.parametrize("place", range(3))
def test_wrong_layouts_are_refused(place: int) -> None:
    raw = np.zeros(33, np.uint8)[1:]
    strided, short, misaligned = np.zeros(16, "f4")[::2], np.zeros(7, "f4"), raw.view("f4")
    if misaligned.ctypes.data % 4 == 0:
        misaligned = np.zeros(36, np.uint8)[2:34].view("f4")
    for wrong in (strided, short, misaligned):
        given_arrays = list(arrays(8))
        given_arrays[place] = wrong
        with pytest.raises((ValueError, BufferError)):
            call(*given_arrays)


def test_read_only_results_are_refused_and_read_only_gradients_are_fine() -> None:
    value, slots, grad = arrays(8)
    grad.flags.writeable = False
    call(value, slots, grad)
    value.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        call(value, slots, grad)


def test_overlapping_arrays_are_refused() -> None:
    memory = np.arange(24, dtype=np.float32)
    a, b, c = memory[:8], memory[7:15], memory[15:23]
    with pytest.raises(ValueError, match="value and slots share memory"):
        call(a, b, c)
    with pytest.raises(ValueError, match="slots and grad share memory"):
        call(c, a, b)
    with pytest.raises(ValueError, match="acc and g share memory"):
        _core.add(a, a)
    with pytest.raises(ValueError, match="out and keys share memory"):
        _core.init_rows(memory[:8].reshape(4, 2), memory[:8].view(np.uint64), 1, 2, 0, 0.0, 1.0)
    assert memory.tolist() == list(range(24))
    call(memory[:8], memory[8:16], memory[16:])  # neighbours are no overlap


def test_bad_numbers_are_refused() -> None:
    value, slots, grad = arrays(8)
    with pytest.raises(ValueError, match="unknown optimizer method 23"):
        call(value, slots, grad, method=23)
    with pytest.raises(ValueError, match="unknown"):
        call(value, slots, grad, method=-1)
    with pytest.raises(ValueError, match="learning_rate nan, expected a finite number"):
        call(value, slots, grad, lr=float("nan"))
    with pytest.raises(ValueError, match="epsilon -1, expected a finite number, not negative"):
        _core.apply_optim((2, 0.1, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0), 1, value, slots, grad)
    with pytest.raises(ValueError, match="isa 4"):
        _core.choose_build(4)
    with pytest.raises(ValueError, match="slots has 8 items, but value with this method needs 0"):
        call(value, slots, grad, method=0)


@given(keys=st.lists(u64, max_size=9), dim=st.integers(0, 19), seed=u64, table=u64, kind=st.integers(0, 1))
def test_initializer_is_its_oracle(keys: list[int], dim: int, seed: int, table: int, kind: int) -> None:
    numbers = np.array(keys, dtype=np.uint64)
    got, want = np.full((2, len(keys), dim), np.nan, np.float32)
    for mean, std in ((0.0, 1.0), (-0.3, 0.02), (7.0, 0.0)):
        _core.init_rows(got, numbers, seed, table, kind, mean, std)
        reference.init_rows(want, numbers, seed, table, kind, mean, std)
        assert same_bits(got, want)


def initial(n: int, dim: int, *, kind: int, seed: int = 1, name: str = "w") -> F32:
    out = np.empty((n, dim), np.float32)
    _core.init_rows(out, np.arange(n, dtype=np.uint64), seed, _core.hash_name(name), kind, 0.0, 1.0)
    return out


@pytest.mark.parametrize(("kind", "std", "fourth"), [(0, 1.0, 2.9), (1, 3**-0.5, 1.8)])
def test_initial_values_are_spread_as_promised(kind: int, std: float, fourth: float) -> None:
    out = initial(4000, 50, kind=kind).astype(np.float64)
    assert abs(out.mean()) < 0.01
    assert abs(out.std() - std) < 0.01
    assert abs((out**4).mean() / std**4 - fourth) < 0.05  # Irwin-Hall of 12: 3 - 1.2/12
    assert np.abs(np.corrcoef(out[:, :6].T) - np.eye(6)).max() < 0.06  # columns are independent
    assert abs(np.corrcoef(out[:-1].ravel(), out[1:].ravel())[0, 1]) < 0.01  # and so are rows
    assert len(np.unique(out[:, 0])) > 3900


def test_initial_values_never_change() -> None:
    """Bits of saved models hang on these: a change here is a break."""
    assert initial(2, 2, kind=0).ravel().tolist() == NORMAL_BITS
    assert initial(2, 2, kind=1).ravel().tolist() == UNIFORM_BITS


NORMAL_BITS = [0.1837158203125, 0.06488037109375, 0.260406494140625, 1.411163330078125]
UNIFORM_BITS = [0.5597113370895386, 0.5898596048355103, 0.7888609170913696, 0.5399359464645386]


def test_initializer_refuses_invalid_arguments() -> None:
    out, keys = np.zeros((4, 3), np.float32), np.arange(4, dtype=np.uint64)
    with pytest.raises(ValueError, match="kind 4"):
        _core.init_rows(out, keys, 0, 0, 4, 0.0, 1.0)
    with pytest.raises(ValueError, match="std -1"):
        _core.init_rows(out, keys, 0, 0, 0, 0.0, -1.0)
    with pytest.raises(ValueError, match="mean nan"):
        _core.init_rows(out, keys, 0, 0, 0, float("nan"), 1.0)
    with pytest.raises(ValueError, match="keys has 3 items"):
        _core.init_rows(out, keys[:3], 0, 0, 0, 0.0, 1.0)
    assert not out.any()


@pytest.mark.parametrize("kind", [2, 3])
def test_late_rows_are_zeros_until_they_are_made(kind: int) -> None:
    out = np.ones((4, 3), np.float32)
    _core.init_rows(out, np.arange(4, dtype=np.uint64), 0, 0, kind, 1.0, 1.0)
    assert not out.any()


@pytest.mark.parametrize(
    ("name", "number"),
    [("", 0xCBF29CE484222325), ("a", 0xAF63DC4C8601EC8C), ("foobar", 0x85944171F73967E8)],
)
def test_table_id_is_fnv1a(name: str, number: int) -> None:
    assert _core.hash_name(name) == reference.hash_name(name) == number


@given(st.text())
def test_table_id_is_its_oracle(name: str) -> None:
    assert _core.hash_name(name) == reference.hash_name(name)


def test_features_are_true_of_this_machine() -> None:
    flags = Path("/proc/cpuinfo").read_text().split()
    assert _core.get_features()["avx2"] is (platform.machine() == "x86_64" and "avx2" in flags)
