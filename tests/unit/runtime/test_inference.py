"""infer(): a trained parameters.tar has a road to predictions."""

from __future__ import annotations

import io

import numpy as np
import pytest

import pslaunch.runtime as paddle
from support.models import make_vector, ngram_cost, ngrams

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.mark.parametrize("threads", [1, 3])
def test_a_saved_training_predicts_as_the_trainer_measured(threads: int) -> None:
    paddle.init(trainer_count=threads)
    cost = ngram_cost(drop_rate=0.3)
    parameters = paddle.parameters.create(cost)
    trainer = paddle.trainer.SGD(cost, parameters, paddle.optimizer.AdaGrad(learning_rate=0.1))
    trainer.train(paddle.batch(ngrams(400), 16), 10)
    file = io.BytesIO()
    parameters.to_tar(file)
    file.seek(0)
    loaded = paddle.parameters.Parameters.from_tar(file)
    samples = list(ngrams(400)())
    found = paddle.infer(output_layer=cost.inputs[0], parameters=loaded, input=[s[:4] for s in samples])
    assert (found.shape, found.dtype) == ((400, 50), np.float32)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-5)
    probability = found[np.arange(400), [s[4] for s in samples]]
    measured = trainer.test(paddle.batch(ngrams(400), 64))
    assert -np.log(probability).mean() == pytest.approx(measured.cost, rel=1e-4)
    wrong = (probability < found.max(axis=1)).mean()
    assert wrong == pytest.approx(measured.metrics["classification_error_evaluator"], abs=0.01)
    assert wrong < 0.9  # it has learned something


def test_values_are_those_of_numpy() -> None:
    x = make_vector("x", 3)
    y = paddle.layer.fc(input=x, size=2, name="y", act=paddle.activation.Tanh())
    parameters = paddle.parameters.create(y)
    given = [[1.0, 2.0, 3.0], [0.5, 0.0, -1.0]]
    expected = np.tanh(np.array(given, np.float32) @ parameters["_y.w0"] + parameters["_y.wbias"])
    first = paddle.infer(y, parameters, [(row,) for row in given])
    np.testing.assert_allclose(first, expected, rtol=1e-6)
    named = paddle.infer(y, parameters, [("passed over", row) for row in given], {"x": 1})
    np.testing.assert_array_equal(named, first)
    np.testing.assert_array_equal(paddle.infer(y, parameters, {"x": np.array(given, np.float32)}), first)


@pytest.mark.parametrize("threads", [1, 3])
def test_several_layers_have_the_values_of_each(threads: int) -> None:
    paddle.init(trainer_count=threads)
    cost = ngram_cost()
    predict, parameters = cost.inputs[0], paddle.parameters.create(cost)
    samples = list(ngrams(7)())
    together = paddle.infer([cost, predict, predict.inputs[0]], parameters, samples)
    assert isinstance(together, list) and [one.shape for one in together] == [(7, 1), (7, 50), (7, 16)]
    np.testing.assert_allclose(together[0], paddle.infer(cost, parameters, samples), rtol=1e-5)
    for layer, found in zip((predict, predict.inputs[0]), together[1:], strict=True):
        np.testing.assert_array_equal(found, paddle.infer([layer], parameters, [s[:4] for s in samples]))


def test_fields_are_values_and_the_places_of_the_highest() -> None:
    cost = ngram_cost()
    predict, parameters = cost.inputs[0], paddle.parameters.create(cost)
    samples = [sample[:4] for sample in ngrams(6)()]
    ids = paddle.infer(predict, parameters, samples, field="id")
    values = paddle.infer(predict, parameters, samples)
    np.testing.assert_array_equal(ids, values.argmax(axis=1))
    hidden = predict.inputs[0]
    found = paddle.infer([predict, hidden], parameters, samples, field=["prob", "id"])
    assert [one.shape for one in found] == [(6, 50), (6, 16), (6,), (6,)]
    np.testing.assert_array_equal(found[2], ids)


def test_wrong_inputs_are_named() -> None:
    cost = ngram_cost()
    predict, parameters = cost.inputs[0], paddle.parameters.create(cost)
    sample = (1, 2, 3, 4)
    with pytest.raises(ValueError, match="input has no samples"):
        paddle.infer(predict, parameters, [])
    with pytest.raises(TypeError, match=r"output_layer: .*'cost'\], expected a layer"):
        paddle.infer([predict, "cost"], parameters, [sample])
    with pytest.raises(TypeError, match=r"output_layer: \[\], expected a layer"):
        paddle.infer([], parameters, [sample])
    with pytest.raises(ValueError, match="w4 is an input"):
        paddle.infer(cost.inputs[1], parameters, [sample])
    with pytest.raises(ValueError, match="field='ids', expected value, prob or id"):
        paddle.infer(predict, parameters, [sample], field="ids")
    with pytest.raises(
        ValueError, match=r"infer: parameter _proj has the shape \(50, 8\), the network needs \(60, 8\)"
    ):
        paddle.infer(ngram_cost(words=60).inputs[0], parameters, [sample])
    with pytest.raises(ValueError, match="data w3: sample 0 of the batch has the id 50"):
        paddle.infer(predict, parameters, [(1, 2, 3, 50)])
