"""Understand sentiment, of PaddlePaddle's book: praise or not, by convolutions over the words of a review."""

from __future__ import annotations

import itertools
import os
from typing import Any

import pslaunch.runtime as paddle
from pslaunch.runtime.dataset import imdb

PASSES = int(os.environ.get("PASSES", "5"))


def convolution_net(input_dim: int, class_dim: int = 2, emb_dim: int = 64, hid_dim: int = 64) -> Any:
    """The cost, and the probabilities of the classes."""
    words = paddle.data_type.integer_value_sequence(input_dim)
    emb = paddle.layer.embedding(input=paddle.layer.data("word", words), size=emb_dim)
    conv_3 = paddle.networks.sequence_conv_pool(input=emb, context_len=3, hidden_size=hid_dim)
    conv_4 = paddle.networks.sequence_conv_pool(input=emb, context_len=4, hidden_size=hid_dim)
    output = paddle.layer.fc(input=[conv_3, conv_4], size=class_dim, act=paddle.activation.Softmax())
    label = paddle.layer.data("label", paddle.data_type.integer_value(2))
    paddle.evaluator.auc(name="auc", input=output, label=label)
    return paddle.layer.classification_cost(input=output, label=label), output


def main() -> None:
    """Train, show the metrics of each pass, and the classes of some reviews."""
    paddle.init(use_gpu=False)
    word_dict = imdb.word_dict()
    cost, output = convolution_net(len(word_dict))
    parameters = paddle.parameters.create(cost)
    trainer = paddle.trainer.SGD(
        cost=cost,
        parameters=parameters,
        update_equation=paddle.optimizer.Adam(
            learning_rate=2e-3,
            regularization=paddle.optimizer.L2Regularization(rate=8e-4),
            model_average=paddle.optimizer.ModelAverage(average_window=0.5),
        ),
        is_local=not os.environ.get("PADDLE_INIT_PSERVERS"),
    )
    feeding = {"word": 0, "label": 1}

    def event_handler(event: object) -> None:
        if isinstance(event, paddle.event.EndPass):
            result = trainer.test(reader=paddle.batch(imdb.test(word_dict), 100), feeding=feeding)
            print(f"Test {event.pass_id}, Cost {result.cost:.3f}, {result.metrics}", flush=True)

    reader = paddle.batch(paddle.reader.shuffle(imdb.train(word_dict), buf_size=1000), 50)
    trainer.train(reader, num_passes=PASSES, event_handler=event_handler, feeding=feeding)
    reviews = list(itertools.islice(imdb.test(word_dict)(), 10))
    found = paddle.infer(output, parameters, [(words,) for words, _ in reviews], field="id")
    print(f"labels {[label for _, label in reviews]}, found {found.tolist()}")


if __name__ == "__main__":
    main()
