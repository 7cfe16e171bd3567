"""Layers: names, shapes, parameters shared by name, and errors that say what is wrong."""

from __future__ import annotations

import math

import pytest

import pslaunch.runtime as paddle
from pslaunch.runtime.v2.building import list_data, make_program
from support.models import make_vector, make_word, ngram_cost

pytestmark = pytest.mark.asan


def test_parameters_in_the_order_of_layers() -> None:
    parameters = paddle.parameters.create(ngram_cost(words=50, emb=8, hidden=16))
    assert parameters.names() == ["_proj", "_hidden.w0", "_hidden.wbias", "_predict.w0", "_predict.wbias"]
    shapes = [parameters.get_shape(name) for name in parameters.names()]
    assert shapes == [(50, 8), (32, 16), (1, 16), (16, 50), (1, 50)]


def test_layers_have_the_names_of_v2() -> None:
    fc = paddle.layer.fc(input=[make_vector("a"), make_vector("b")], size=3)
    names = [config.name for config in fc.params]
    assert names == [f"_{fc.name}.w0", f"_{fc.name}.w1", f"_{fc.name}.wbias"]
    assert fc.name.startswith("__fc_layer_")
    assert fc.act == "tanh"
    assert len(paddle.layer.fc(input=make_vector(), size=3, bias_attr=False).params) == 1


def test_data_layers_are_in_the_order_of_their_definition() -> None:
    assert [data.name for data in list_data(make_program([ngram_cost()]))] == ["w0", "w1", "w2", "w3", "w4"]
    label, late, early = make_word("label", 5), make_word("late"), make_word("early")
    both = [paddle.layer.embedding(input=one, size=2) for one in (early, late)]
    guess = paddle.layer.fc(input=paddle.layer.concat(input=both), size=5, act=paddle.activation.Softmax())
    cost = paddle.layer.classification_cost(input=guess, label=label)
    assert [data.name for data in list_data(make_program([cost]))] == ["label", "late", "early"]


def test_invalid_attributes_of_a_table_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the limit is 2\*\*64 - 1, of any ids"):
        paddle.layer.embedding(input=make_word(size=2**64), size=2)
    with pytest.raises(ValueError, match=r"has a row for any id; set .* sparse_update=True"):
        paddle.layer.embedding(input=make_word(size=2**64 - 1), size=2)


def test_softmax_is_not_dropped() -> None:
    half = paddle.attr.Extra(drop_rate=0.5)
    with pytest.raises(ValueError, match="Softmax"):
        paddle.layer.fc(input=make_vector(), size=3, act=paddle.activation.Softmax(), layer_attr=half)


def test_first_values_follow_the_attributes() -> None:
    fc = paddle.layer.fc(input=make_vector(size=16), size=3, bias_attr=paddle.attr.Param(learning_rate=2))
    weight, bias = fc.params
    assert (weight.kind, weight.mean, weight.std) == ("normal", 0.0, 1 / math.sqrt(16))
    assert (bias.mean, bias.std, bias.learning_rate) == (0.0, 0.0, 2.0)
    uniform = paddle.attr.Param(initial_min=-1.0, initial_max=3.0)
    (table,) = paddle.layer.embedding(input=make_word(), size=2, param_attr=uniform).params
    assert (table.kind, table.mean, table.std) == ("uniform", 1.0, 2.0)


def test_wrong_inputs_are_named() -> None:
    with pytest.raises(ValueError, match="input w is not a vector"):
        paddle.layer.fc(input=make_word(), size=3)
    with pytest.raises(ValueError, match="input x is not a data layer of integer_value"):
        paddle.layer.embedding(input=make_vector(), size=3)
    scores = paddle.layer.fc(input=make_vector(), size=10, act=paddle.activation.Softmax())
    with pytest.raises(ValueError, match=r"label l must be integer_value\(10\)"):
        paddle.layer.classification_cost(input=scores, label=make_word("l", 11))
    plain = paddle.layer.fc(input=make_vector(), size=10, act=paddle.activation.Linear())
    with pytest.raises(ValueError, match="has activation linear, expected Softmax"):
        paddle.layer.classification_cost(input=plain, label=make_word())
    for wrong in ("sigmoid", paddle.activation.Base()):
        with pytest.raises(TypeError, match="is not an activation"):
            paddle.layer.fc(input=make_vector(), size=3, act=wrong)
    with pytest.raises(ValueError, match="sparse_update is only for embeddings and sparse vectors"):
        paddle.layer.fc(input=make_vector(), size=3, param_attr=paddle.attr.Param(sparse_update=True))


def test_unknown_layer_is_an_error() -> None:
    with pytest.raises(ValueError, match="l1_rate"):
        paddle.attr.Param(l1_rate=-0.1)
    for momentum in (-0.3, 1.7):
        with pytest.raises(ValueError, match="momentum"):
            paddle.attr.Param(momentum=momentum)
    with pytest.raises(ValueError, match="learning_rate"):
        paddle.attr.Param(learning_rate=-1.0)
    with pytest.raises(ValueError, match=r"drop_rate=1\.5"):
        paddle.attr.Extra(drop_rate=1.5)
    with pytest.raises(ValueError, match="initial_min must be below"):
        paddle.attr.Param(initial_min=1.0, initial_max=1.0)
    assert paddle.attr.ParamAttr is paddle.attr.Param
    assert paddle.attr.ExtraAttr is paddle.attr.Extra
