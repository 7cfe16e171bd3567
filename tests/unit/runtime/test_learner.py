"""Programs of operations by a learner: orders, fetches, lookups, sequences, bits, and errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pslaunch.runtime.engine.arrays import F32, Sequences
from pslaunch.runtime.engine.columns import Feeds
from pslaunch.runtime.engine.graph import BATCH, Graph, Kind, Value
from pslaunch.runtime.engine.learner import Learner
from pslaunch.runtime.engine.ops import make_value
from pslaunch.runtime.engine.optimizer import Momentum
from pslaunch.runtime.engine.param_config import ParamConfig
from pslaunch.runtime.engine.parameters import Parameters
from pslaunch.runtime.engine.updater import LocalUpdater, ParamRules

pytestmark = pytest.mark.asan

ALL: dict[str, Any] = {"axis": None, "keepdim": False}
TABLE = ParamConfig(name="table", rows=7, cols=3, std=0.5, sparse=True)


class Builder(Graph):
    """A program to which values are added by the names of their operations."""

    def data(
        self, name: str, *sizes: int, kind: Kind = "float", is_sequence: bool = False, batch: int = BATCH
    ) -> Value:
        shape = (batch, *sizes)
        attrs = {"below": None}
        return self.add(
            Value(name=name, op="data", shape=shape, kind=kind, attrs=attrs, is_sequence=is_sequence)
        )

    def op(
        self, op: str, *inputs: Value, params: Sequence[ParamConfig] = (), name: str = "", **attrs: Any
    ) -> Value:
        return self.add(make_value(op, inputs, name=name or f"{op}{len(self)}", attrs=attrs, params=params))

    def parameter(self, name: str, rows: int, cols: int) -> Value:
        config = ParamConfig(name=name, rows=rows, cols=cols, std=0.5)
        return self.add(Value(name=name, op="parameter", shape=(rows, cols), params=(config,)))

    def look_up(self, ids: Value, table: ParamConfig = TABLE) -> Value:
        return self.op("lookup", ids, params=[table], dim=table.cols, padding=None)

    def connect(self, x: Value, name: str, size: int) -> Value:
        rows = x.size
        params = [
            ParamConfig(name=f"{name}.w", rows=rows, cols=size, std=0.3),
            ParamConfig(name=f"{name}.b", rows=1, cols=size),
        ]
        return self.op("fc", x, params=params, keeps=1, size=size)


class Training:
    """A learner with an updater that adds gradients to the parameters, with their sign changed."""

    def __init__(self, program: Graph, loss: Value, *targets: Value) -> None:
        self.parameters = Parameters(program.params)
        self.learner = Learner(program, self.parameters)
        self._ends = targets, loss
        plan = self.learner.get_plan(*self._ends)
        rules = ParamRules(plan.trained, plan.tables, Momentum(learning_rate=1.0))
        self.updater = LocalUpdater(rules, self.parameters)
        self.updater.start()

    def step(self, feeds: Feeds) -> list[npt.NDArray[Any]]:
        return self.learner.train(self.learner.prepare(feeds, *self._ends), self.updater).values

    def find_grads(self, feeds: Feeds) -> dict[str, F32]:
        """Return the gradients of a step; the values are the same after it."""
        before = {name: self.parameters[name] for name in self.parameters}
        self.step(feeds)
        grads = {name: before[name] - self.parameters[name] for name in before}
        for name, values in before.items():
            self.parameters[name] = values
        return grads


def test_gradients_of_a_value_are_added_in_the_order_of_its_users() -> None:
    for factors, expected in (([1e8, -1e8, 1.0], 1.0), ([1.0, 1e8, -1e8], 0.0)):
        program = Builder()
        w = program.op("scale", program.parameter("w", 1, 1), scale=1.0, bias=0.0)
        used = [program.op("scale", w, scale=factor, bias=0.0) for factor in factors]
        loss = program.op("sum", program.op("concat", *used, axis=1), **ALL)
        training = Training(program, loss)
        training.parameters["w"] = [[0.0]]
        training.step({})
        assert training.parameters["w"] == -expected


def make_classifier() -> tuple[Builder, Value, Value]:
    program = Builder()
    x, label = program.data("x", 4), program.data("label", 1, kind="id")
    words = program.data("words", 2, kind="id")
    rows = program.op("reshape", program.look_up(words), shape=(-1, 6))
    hidden = program.op("tanh", program.connect(program.op("concat", x, rows, axis=1), "h", 20))
    shares = program.op("softmax", program.connect(hidden, "s", 3))
    return program, program.op("mean", program.op("cross_entropy", shares, label), **ALL), shares


def make_feeds(samples: int = 5) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {
        "x": rng.standard_normal((samples, 4)).astype(np.float32),
        "words": rng.integers(0, 7, (samples, 2)),
        "label": rng.integers(0, 3, (samples, 1)),
    }


def test_a_fetch_changes_no_bit_of_a_training() -> None:
    program, loss, shares = make_classifier()
    alone, fetching = Training(program, loss), Training(program, loss, *reversed([*program]))
    for _ in range(3):
        alone.step(make_feeds())
        fetching.step(make_feeds())
    for name in program.params:
        assert alone.parameters[name].tobytes() == fetching.parameters[name].tobytes()
    found = fetching.learner.compute(fetching.learner.prepare(make_feeds(), [shares]))
    assert found.values[0].sum(axis=1) == pytest.approx(np.ones(5))


def check_gradients(program: Builder, loss: Value, feeds: Mapping[str, Any]) -> None:
    """Compare the gradients of all parameters with finite differences."""
    training = Training(program, loss, loss)
    grads = training.find_grads(feeds)
    for name, grad in grads.items():
        values = training.parameters[name]
        for place in np.ndindex(*values.shape):
            costs = []
            for shift in (1e-2, -1e-2):
                moved = values.copy()
                moved[place] += shift
                training.parameters[name] = moved
                costs.append(
                    float(training.learner.compute(training.learner.prepare(feeds, [loss])).values[0])
                )
            training.parameters[name] = values
            assert grad[place] == pytest.approx((costs[0] - costs[1]) / 2e-2, rel=2e-2, abs=2e-3), (
                name,
                place,
            )


def test_gradients_of_a_program_equal_finite_differences() -> None:
    program, loss, _ = make_classifier()
    check_gradients(program, loss, make_feeds())


def test_results_that_the_way_back_reads_are_not_overwritten() -> None:
    program = Builder()
    shares = program.op("sigmoid", program.parameter("w", 2, 3))
    check_gradients(program, program.op("sum", program.op("scale", shares, scale=3.0, bias=1.0), **ALL), {})


@pytest.mark.parametrize("by", ["sum", "average", "max", "first", "last"])
@pytest.mark.parametrize("lengths", [[1], [0, 1, 0], [2, 0, 3, 1]])
def test_sequences_of_any_length_are_looked_up_and_pooled(by: str, lengths: list[int]) -> None:
    program = Builder()
    words = program.data("words", kind="id", is_sequence=True)
    items = program.op("tanh", program.connect(program.look_up(words), "fc", 2))
    pooled = program.op("relu", program.op("pool", items, by=by))
    loss = program.op("sum", program.op("multiply", pooled, pooled), **ALL)
    assert (items.is_sequence, pooled.is_sequence) == (True, False)
    ids = np.random.default_rng(1).integers(0, 7, sum(lengths))
    check_gradients(program, loss, {"words": Sequences(ids, np.cumsum([0, *lengths]))})


def test_ids_may_come_from_operations_and_tables_be_shared() -> None:
    program = Builder()
    first, second = program.data("a", 1, kind="id"), program.data("b", 2, kind="id")
    joined = program.look_up(program.op("concat", first, second, axis=1))
    alone = program.look_up(program.op("reshape", second, shape=(-1, 2)))
    total = program.op("add", program.op("sum", joined, **ALL), program.op("sum", alone, **ALL))
    training = Training(program, total)
    grads = training.find_grads({"a": np.array([[1], [2]]), "b": np.array([[1, 1], [3, 0]])})
    np.testing.assert_allclose(grads["table"], np.outer([2, 5, 1, 2, 0, 0, 0], np.ones(3)), atol=1e-6)


def test_rows_that_the_loss_does_not_read_are_not_updated() -> None:
    program = Builder()
    read, shown = (program.look_up(program.data(name, kind="id")) for name in "ab")
    training = Training(program, program.op("sum", read, **ALL), shown)
    grads = training.find_grads({"a": np.array([4]), "b": np.array([2])})
    np.testing.assert_array_equal(np.flatnonzero(grads["table"][:, 0]), [4])


def test_a_batch_may_be_prepared_before_the_one_before_it_is_computed() -> None:
    program = Builder()
    ids = program.op("concat", program.data("a", 1, kind="id"), program.data("b", 1, kind="id"), axis=1)
    rows = program.look_up(ids)
    learner = Learner(program, Parameters(program.params))
    feeds = [{"a": np.array([[i]]), "b": np.array([[i + 1]])} for i in range(2)]
    batches = [learner.prepare(one, [rows, ids]) for one in feeds]
    for one, batch in zip(feeds, batches, strict=True):
        found, expected = learner.compute(batch), learner.compute(learner.prepare(one, [rows, ids]))
        for mine, own in zip(found.values, expected.values, strict=True):
            np.testing.assert_array_equal(mine, own)


def test_metrics_count_over_all_steps() -> None:
    program = Builder()
    shares, label = program.data("shares", 2), program.data("label", 1, kind="id")
    counts = program.op("auc_counts", shares, label, of_last=0, thresholds=10)
    auc = program.op("auc", counts)
    learner = Learner(program, Parameters())

    def step(share: float, label: int) -> float:
        feeds = {"shares": np.array([[1 - share, share]], np.float32), "label": np.array([[label]])}
        return float(learner.compute(learner.prepare(feeds, [auc])).values[0])

    assert [step(0.8, 1), step(0.3, 0), step(0.9, 0)] == [0.0, 1.0, 0.5]
    assert learner.counts[counts.name].sum() == 3
    with pytest.raises(ValueError, match=r"shares .* has values beyond 0 to 1"):
        step(1.5, 1)


def test_values_in_a_graph_are_not_overwritten_while_somebody_reads_them() -> None:
    program = Builder()
    x = program.data("x", 3)
    scaled = program.op("scale", x, scale=2.0, bias=0.0)
    clipped = program.op("relu", scaled)
    twice = program.op("tanh", clipped)
    total = program.op("add", clipped, twice)
    learner = Learner(program, Parameters())
    feeds = {"x": np.array([[-1.0, 0.0, 2.0]], np.float32)}
    found = learner.compute(learner.prepare(feeds, [total, scaled])).values
    np.testing.assert_allclose(found[0], [[0, 0, 4 + np.tanh(4)]], rtol=1e-6)
    np.testing.assert_array_equal(found[1], [[-2, 0, 4]])
    np.testing.assert_array_equal(feeds["x"], [[-1, 0, 2]])


@pytest.mark.parametrize(
    ("feeds", "text"),
    [
        ({"x": None}, r"x: expected an array of numbers, shape \[-1, 4\]; the feed has nothing"),
        ({"x": np.ones((5, 3), np.float32)}, r"x: .* the feed has an array of float32, shape \[5, 3\]"),
        (
            {"x": np.ones((5, 4), bool), "words": np.ones((5, 2))},
            r"words: expected .* whole numbers.*; the feed has an array of float64, shape \[5, 2\]",
        ),
        (
            {"x": [1.0] * 4},
            r"x: expected an array .* \[-1, 4\]; the feed has an array of float64, shape \[4\]",
        ),
        ({"label": np.ones((4, 1), np.int64)}, "label has 4 samples, expected 5"),
        ({"words": np.full((5, 2), 7)}, "words has the id 7, expected 0 to 6"),
        ({"words": np.full((5, 2), -1)}, "words has the id -1, expected 0 to 6"),
        ({"label": np.full((5, 1), 3)}, r"cross_entropy.*: label has the label 3, expected 0 to 2"),
        ({"word": np.ones(3)}, "no value 'word'; did you mean words"),
    ],
)
def test_a_feed_that_does_not_fit_is_named(feeds: dict[str, Any], text: str) -> None:
    program, loss, _ = make_classifier()
    learner = Learner(program, Parameters(program.params))
    given = {name: array for name, array in {**make_feeds(), **feeds}.items() if array is not None}
    with pytest.raises((ValueError, KeyError), match=text):
        learner.compute(learner.prepare(given, [loss]))


def test_operations_refuse_inputs_that_do_not_fit() -> None:
    program = Builder()
    x, ids = program.data("x", 3), program.data("ids", 1, kind="id")
    words = program.data("words", 3, is_sequence=True)
    for op, inputs, attrs, text in (
        ("relu", [ids], {}, "it: input ids has id values, expected float; `cast`"),
        ("add", [x], {}, "it: 1 inputs, expected 2"),
        ("concat", [x, ids], {"axis": 1}, r"x \[-1, 3\] and ids \[-1, 1\] can't be joined"),
        ("concat", [x, x], {"axis": 0}, r"x \[-1, 3\] can't be joined at axis 0"),
        ("reshape", [x], {"shape": (-1, 2)}, r"input x \[-1, 3\] can't have the shape \[-1, 2\]"),
        ("sum", [x], {"axis": 2, "keepdim": False}, r"axis=2: x \[-1, 3\] has the axes 0 to 1"),
        ("add", [x, words], {}, "input words is a sequence, x is not"),
        ("pool", [x], {"by": "sum"}, r"input x \[-1, 3\] is not a sequence"),
        ("scale", [x], {"scale": 1.0}, r"attributes \['scale'\], expected \['bias', 'scale'\]"),
        ("matmul", [x, x], {"transpose": (False, True)}, r"x \[-1, 3\] .* can't be multiplied"),
    ):
        with pytest.raises(ValueError, match=text):
            make_value(op, inputs, name="it", attrs=attrs)


def test_a_table_of_lookups_is_no_weight() -> None:
    program, table = Builder(), ParamConfig(name="table", rows=7, cols=3)
    rows = program.look_up(program.data("ids", kind="id"), table)
    product = program.op("fc", program.data("x", 7), params=[table], keeps=1, size=3)
    loss = program.op("sum", program.op("add", product, rows), **ALL)
    with pytest.raises(ValueError, match="parameter table: the table of lookups can't be the weight"):
        Learner(program, Parameters()).get_plan([loss])
