"""Trains a 5-gram language model, alone or as one trainer of a cluster job; all that differs is outside.

Network and optimizer are those of PaddlePaddle's v2 cluster example. Its batches of 32 suit networks
of its time; here they are larger and the learning rate with them, so that a laptop is done in a minute.
"""

# pslaunch: needs word_dict.pickle: python {folder}/prepare.py, then --job_workspace {folder}/ws train.py

from __future__ import annotations

import math
import pickle
from pathlib import Path

import my_lib

import pslaunch.runtime as paddle

EMBEDDING = 32
HIDDEN = 256
DROP = 0.5
BATCH = 256
PASSES = 8
LEARNING_RATE = 3e-2
CONTEXT = ("firstw", "secondw", "thirdw", "fourthw")
NEXT = "fifthw"


def load_word_dict() -> dict[str, int]:
    """Ids of the words, as prepare.py wrote them."""
    found: dict[str, int] = pickle.loads(Path("word_dict.pickle").read_bytes())
    return found


def build_network(words: int) -> paddle.layer.Layer:
    """The cost of guessing the next word from the four before it, with a dictionary of `words`."""

    def make_word(name: str) -> paddle.layer.Layer:
        return paddle.layer.data(name=name, type=paddle.data_type.integer_value(words))

    table = paddle.attr.Param(name="_proj", initial_std=0.001, learning_rate=1, l2_rate=0, sparse_update=True)
    embedded = [
        paddle.layer.embedding(input=make_word(name), size=EMBEDDING, param_attr=table) for name in CONTEXT
    ]
    hidden = paddle.layer.fc(
        input=paddle.layer.concat(input=embedded),
        size=HIDDEN,
        act=paddle.activation.Sigmoid(),
        layer_attr=paddle.attr.Extra(drop_rate=DROP),
        bias_attr=paddle.attr.Param(name="hidden_bias", learning_rate=2),
        param_attr=paddle.attr.Param(
            name="hidden", initial_std=1.0 / math.sqrt(EMBEDDING * 8), learning_rate=1
        ),
    )
    predicted = paddle.layer.fc(
        input=hidden,
        size=words,
        act=paddle.activation.Softmax(),
        bias_attr=paddle.attr.Param(name="next_bias", learning_rate=2),
        param_attr=paddle.attr.Param(name="next", learning_rate=1),
    )
    return paddle.layer.classification_cost(input=predicted, label=make_word(NEXT))


def main() -> None:
    """Train on this trainer's files; the test text shows after each pass what was learned."""
    paddle.init()
    cost = build_network(len(load_word_dict()))
    trainer = paddle.trainer.SGD(
        cost,
        paddle.parameters.create(cost),
        paddle.optimizer.AdaGrad(
            learning_rate=LEARNING_RATE, regularization=paddle.optimizer.L2Regularization(8e-4)
        ),
        is_local=my_lib.is_alone(),
    )

    def handle_event(event: object) -> None:
        if isinstance(event, paddle.event.EndPass):
            result = trainer.test(paddle.batch(my_lib.make_reader("test"), BATCH))
            print(
                f"pass {event.pass_id}: perplexity of its part of the test text {math.exp(result.cost):.1f}",
                flush=True,
            )

    trainer.train(
        paddle.batch(my_lib.make_reader("train"), BATCH), num_passes=PASSES, event_handler=handle_event
    )


if __name__ == "__main__":
    main()
