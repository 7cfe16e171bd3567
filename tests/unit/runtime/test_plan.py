"""Steps of whole networks of layers: dropout, small numbers, shows and clicks."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pslaunch.runtime as paddle
from pslaunch.runtime import _core
from pslaunch.runtime.engine import entry
from pslaunch.runtime.engine.arrays import F32, Ids, Sequences
from pslaunch.runtime.engine.columns import Feeds
from pslaunch.runtime.engine.graph import BATCH, Graph, Value
from pslaunch.runtime.engine.ops import Draw, make_value
from pslaunch.runtime.engine.ops.sequence import Pool, PooledLookup
from pslaunch.runtime.engine.param_config import ParamConfig
from pslaunch.runtime.engine.plan import Plan, StepResult
from pslaunch.runtime.layer import Layer
from pslaunch.runtime.v2.building import make_program
from support.models import make_vector, make_word

pytestmark = pytest.mark.asan

SAMPLES = 7
DRAW = Draw(seed=1, trainer=0, step=3)


def regression() -> Layer:
    act = paddle.activation.Linear()
    hidden = paddle.layer.fc(input=[make_vector("x", 4), make_vector("y", 3)], size=5, act=act, name="h")
    out = paddle.layer.fc(input=hidden, size=2, act=act, name="o")
    return paddle.layer.square_error_cost(input=out, label=make_vector("t", 2))


def make_plan(cost: Layer, threads: int = 1) -> Plan:
    return Plan(make_program([cost]), [cost.value], cost.value, threads)


def make_feeds(cost: Layer, rng: np.random.Generator) -> dict[str, F32 | Ids]:
    found: dict[str, F32 | Ids] = {}
    for value in make_program([cost]):
        if value.op == "data" and value.kind == "id":
            found[value.name] = rng.integers(0, value.attrs["below"], SAMPLES)
        elif value.op == "data":
            found[value.name] = rng.standard_normal((SAMPLES, value.size)).astype(np.float32)
    return found


def run_step(plan: Plan, feeds: Feeds, params: dict[str, F32], draw: Draw | None = DRAW) -> StepResult:
    batch = plan.prepare(feeds)
    tables = {name: params[name][own] for name, own in batch.keys.items()}
    return plan.compute(batch, params, tables, draw, {})


@pytest.mark.parametrize("tied", [False, True])
def test_gradients_are_complete_once_and_their_values_not_read_any_more(tied: bool) -> None:
    """`between` spoils the values of each parameter whose gradient is complete."""
    shared = paddle.attr.Param(name="shared") if tied else None
    act = paddle.activation.Tanh()
    hidden: Layer = make_vector("x", 4)
    for name in ("a", "b", "c"):
        hidden = paddle.layer.fc(input=hidden, size=4, act=act, name=name, param_attr=shared)
    plan = make_plan(paddle.layer.square_error_cost(input=hidden, label=make_vector("t", 4)))
    rng = np.random.default_rng(1)
    params = {name: rng.standard_normal(c.shape).astype(np.float32) for name, c in plan.params.items()}
    feeds = {name: rng.standard_normal((SAMPLES, 4)).astype(np.float32) for name in ("x", "t")}
    expected = run_step(plan, feeds, params)
    copies = {name: grad.copy() for name, grad in expected.dense.items()}
    order: list[str] = []

    def spoil(grads: Mapping[str, F32]) -> None:
        for name, grad in grads.items():
            order.append(name)
            np.testing.assert_array_equal(grad, copies[name])
            params[name][:] = np.nan

    result = plan.compute(plan.prepare(feeds), params, {}, DRAW, {}, spoil)
    assert sorted(order) == sorted(plan.dense)
    assert order.index("shared" if tied else "_a.w0") > order.index("_b.wbias")
    np.testing.assert_array_equal(result.values[0], expected.values[0])
    for name, grad in result.dense.items():
        np.testing.assert_array_equal(grad, copies[name])


def find_cost(step: StepResult) -> float:
    return float(step.values[0].sum(dtype=np.float64))


def test_dropout_is_that_of_v2() -> None:
    hidden = paddle.layer.fc(
        input=make_vector("x", 4),
        size=4096,
        act=paddle.activation.Linear(),
        bias_attr=paddle.attr.Param(initial_mean=1.0, initial_std=0.0),
        layer_attr=paddle.attr.Extra(drop_rate=0.25),
    )
    plan = make_plan(paddle.layer.square_error_cost(input=hidden, label=make_vector("t", 4096)))
    params = {name: np.full(c.shape, c.mean, np.float32) for name, c in plan.params.items()}
    feeds = {"x": np.zeros((1, 4), np.float32), "t": np.zeros((1, 4096), np.float32)}

    def cost(draw: Draw | None) -> float:
        return find_cost(run_step(plan, feeds, params, draw))

    assert cost(DRAW) == cost(DRAW) == pytest.approx(0.75 * 4096, rel=0.05)  # 1 where kept
    assert cost(DRAW) != cost(Draw(seed=1, trainer=1, step=3))
    assert cost(None) == pytest.approx(0.75**2 * 4096)  # all scaled


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the number is of this processor")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_library_that_flushes_small_numbers_changes_no_bit(threads: int) -> None:
    cost = regression()
    plan = make_plan(cost, threads)
    feeds = make_feeds(cost, np.random.default_rng(1))
    tiny = np.random.default_rng(2)
    params = {
        name: (tiny.standard_normal(config.shape) * 2.0**-70).astype(np.float32)
        for name, config in plan.params.items()
    }
    feeds["t"] = np.zeros_like(feeds["t"])
    before = _core.set_floats(0x8040)
    try:
        flushed = run_step(plan, feeds, params)
    finally:
        _core.set_floats(before)
    kept = {name: grad.copy() for name, grad in flushed.dense.items()}
    plain = run_step(plan, feeds, params)
    for name, grad in plain.dense.items():
        assert grad.tobytes() == kept[name].tobytes()
    assert any(np.any((grad != 0) & (np.abs(grad) < 2.0**-126)) for grad in plain.dense.values())


def make_scored(*, show: paddle.data_type.InputType, sequence: bool) -> Plan:
    """Return a plan with a table that admits ids by shows and clicks; `b` has sequences of ids if asked."""
    rule = entry.ShowClickEntry("show", "click")
    attr = paddle.attr.Param(name="table", sparse_update=True, entry=rule)
    kind = paddle.data_type.integer_value_sequence if sequence else paddle.data_type.integer_value
    words = [make_word("a", 9), paddle.layer.data(name="b", type=kind(9))]
    first, second = (paddle.layer.embedding(input=one, size=2, param_attr=attr) for one in words)
    if sequence:
        second = paddle.layer.pooling(input=second, pooling_type=paddle.pooling.Sum())
    cost = paddle.layer.square_error_cost(
        input=paddle.layer.concat(input=[first, second]), label=make_vector("t", 4)
    )
    numbers = [paddle.layer.data(name="show", type=show), make_vector("click", 1)]
    return Plan(make_program([cost, *numbers]), [cost.value], cost.value)


@pytest.mark.parametrize("sequence", [False, True])
def test_each_use_of_an_id_counts_the_shows_and_clicks_of_its_sample(sequence: bool) -> None:
    plan = make_scored(show=paddle.data_type.integer_value(100), sequence=sequence)
    b: Ids | Sequences = np.array([2, 8, 5])
    if sequence:
        b = Sequences(np.array([5, 5, 3, 8, 5]), np.array([0, 2, 2, 5]))
    feeds = {
        "a": np.array([3, 5, 3]),
        "b": b,
        "t": np.zeros((3, 4), np.float32),
        "show": np.array([1, 10, 20]),
        "click": np.array([[0], [0.5], [2]], np.float32),
    }
    keys, rows = run_step(plan, feeds, {"table": np.ones((9, 2), np.float32)}).sparse["table"]
    got = dict(zip(keys.tolist(), rows.tolist(), strict=True))
    want = {3: [21, 2], 5: [30, 2.5], 2: [1, 0], 8: [10, 0.5]}
    if sequence:
        want = {3: [41, 4], 5: [10 + 2 + 20, 0.5 + 2], 8: [20, 2]}
    assert {key: row[:2] for key, row in got.items()} == want
    assert {len(row) for row in got.values()} == {4}


class Pools:
    """A program with two pooled lookups of one table, the second one's rows perhaps times weights."""

    def __init__(self, *, by: str, padding: int | None, dim: int, weighted: bool, scored: bool) -> None:
        self.program = Graph()
        table = ParamConfig(
            name="table",
            rows=5,
            cols=dim,
            sparse=True,
            entry=entry.ShowClickEntry("show", "click") if scored else entry.ANY,
        )
        for name in ("show", "click"):
            self.program.add(Value(name=name, op="data", shape=(BATCH, 1)))
        ids = self.program.add(Value(name="ids", op="data", shape=(BATCH, 1), kind="id", is_sequence=True))
        weight = self.program.add(Value(name="weight", op="data", shape=(BATCH, 1, 1), is_sequence=True))
        self.rows = [
            self._add("lookup", [ids], {"dim": dim, "padding": own}, [table]) for own in (None, padding)
        ]
        items = [self.rows[0], self._add("multiply", [self.rows[1], weight]) if weighted else self.rows[1]]
        pools = [self._add("pool", [one], {"by": by}) for one in reversed(items)]
        self.joined = self._add("concat", pools, {"axis": 2})
        squares = self._add("multiply", [self.joined, self.joined])
        self.loss = self._add("sum", [squares], {"axis": None, "keepdim": False})

    def _add(self, op: str, inputs: list[Value], attrs: Any = None, params: Any = ()) -> Value:
        name = f"{op} {len(self.program)}"
        return self.program.add(make_value(op, inputs, name=name, attrs=attrs, params=params))


@given(
    texts=st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=1, max_size=5),
    by=st.sampled_from(["sum", "average", "sqrt"]),
    padding=st.sampled_from([None, 0, -1]),
    dim=st.integers(1, 3),
    weighted=st.booleans(),
    scored=st.booleans(),
    watched=st.booleans(),
)
def test_pools_of_lookups_have_the_bits_of_separate_operations(
    texts: list[list[int]], watched: bool, **options: Any
) -> None:
    rng, n = np.random.default_rng(len(texts)), len(texts)
    offsets = np.cumsum([0, *map(len, texts)])
    numbers = rng.standard_normal((offsets[-1], 1, 1)).astype(np.float32)
    feeds: Feeds = {
        "ids": Sequences(np.array([i for text in texts for i in text], np.int64).reshape(-1, 1), offsets),
        "weight": Sequences(numbers, offsets),
        "show": rng.integers(0, 9, (n, 1)).astype(np.float32),
        "click": rng.integers(0, 9, (n, 1)).astype(np.float32),
    }
    model = Pools(**options)
    params = {"table": rng.standard_normal((5, options["dim"])).astype(np.float32)}
    targets = [model.joined, *model.rows[:watched]]
    found = []
    for apart in (False, True):
        keep = mock.patch.object(Pool, "choose", lambda value, program, trains: (Pool, value.inputs))
        with keep if apart else nullcontext():
            made = Plan(model.program, targets, model.loss)
        pooled = sum(isinstance(op, PooledLookup) for op in made._ops)
        assert pooled == (0 if apart else 2 - (options["weighted"] and options["scored"]))
        used = {key: feeds[key] for key in feeds if any(op.value.name == key for op in made.data)}
        result = run_step(made, used, params)
        keys, grads = result.sparse["table"]
        found.append([keys.tobytes(), grads.tobytes(), *(value.tobytes() for value in result.values)])
    assert found[0] == found[1]


def test_data_with_several_numbers_are_no_shows() -> None:
    with pytest.raises(ValueError, match=r"parameter table: .* a number for each sample, not show"):
        make_scored(show=paddle.data_type.dense_vector(2), sequence=False)
