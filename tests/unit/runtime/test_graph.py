"""Programs: order, names, parameters shared by name, and errors that say what is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pslaunch.runtime.engine.graph import BATCH, FREE, Graph, Value, sort_values
from pslaunch.runtime.engine.param_config import ParamConfig

TABLE = ParamConfig(name="table", rows=10, cols=4)


def make_data(name: str) -> Value:
    return Value(name=name, op="data", shape=(BATCH, 4))


def make_value(name: str, *inputs: Value, params: tuple[ParamConfig, ...] = ()) -> Value:
    return Value(name=name, op="add", shape=(BATCH, 4), inputs=inputs, params=params)


def test_values_come_after_their_inputs_and_once() -> None:
    x, y = make_data("x"), make_data("y")
    first = make_value("first", y, x)
    second = make_value("second", x, first)
    third = make_value("third", second, first)
    assert sort_values([third, x]) == [x, y, first, second, third]
    assert sort_values([first]) == [y, x, first]


def test_a_chain_of_any_length_is_sorted() -> None:
    value = make_data("x")
    for i in range(5000):
        value = make_value(f"v{i}", value)
    assert len(Graph(sort_values([value]))) == 5001


def test_parameters_are_in_the_order_of_the_values() -> None:
    bias = replace(TABLE, name="bias", rows=1)
    first, second = make_value("a", params=(TABLE, bias)), make_value("b", params=(TABLE,))
    assert list(Graph([first, second]).params) == ["table", "bias"]


def test_one_name_one_parameter() -> None:
    program = Graph([make_value("a", params=(TABLE,))])
    with pytest.raises(ValueError, match=r"parameter table: b needs \(9, 4\), .* \(10, 4\)"):
        program.add(make_value("b", params=(replace(TABLE, rows=9),)))
    with pytest.raises(ValueError, match="parameter table: b gives it other attributes"):
        program.add(make_value("b", params=(replace(TABLE, learning_rate=2.0),)))
    with pytest.raises(ValueError, match=r"parameter new: b needs \(9, 4\)"):
        new = replace(TABLE, name="new")
        program.add(make_value("b", params=(new, replace(new, rows=9))))
    assert len(program) == 1 and list(program.params) == ["table"]


def test_names_are_unique() -> None:
    program = Graph([make_data("clicks")])
    with pytest.raises(ValueError, match="two values have the name clicks"):
        program.add(make_data("clicks"))
    with pytest.raises(KeyError, match="no value 'click'; did you mean clicks"):
        program.get("click")
    assert program.get("clicks").op == "data"


def test_an_input_of_another_program_is_named() -> None:
    stranger = make_data("x")
    program = Graph([make_data("x")])
    assert stranger not in program
    with pytest.raises(ValueError, match="total: its input x is in another program"):
        program.add(make_value("total", stranger))


def test_only_the_batch_and_data_have_free_sizes() -> None:
    x = Value(name="x", op="data", shape=(BATCH, FREE, 3))
    assert Value(name="y", op="abs", inputs=(x,), shape=x.shape).size == 0
    with pytest.raises(ValueError, match=r"y: shape \[-1, -1\]; only sizes of data may be free"):
        Value(name="y", op="fc", inputs=(make_data("x"),), shape=(BATCH, -1))
    with pytest.raises(ValueError, match=r"x: of a sequence only the batch is free, not \[-1, -1\]"):
        Value(name="x", op="data", shape=(BATCH, FREE), is_sequence=True)
    with pytest.raises(ValueError, match=r"only the batch is free, not \[4\]"):
        Value(name="x", op="data", shape=(4,), is_sequence=True)
    assert (make_data("x").size, make_data("x").has_batch) == (4, True)
    one = Value(name="x", op="mean", shape=(1,))
    assert (one.size, one.has_batch) == (1, False)


def test_equal_values_are_two() -> None:
    assert make_data("x") != make_data("x")
