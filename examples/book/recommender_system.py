"""Recommender system, of PaddlePaddle's book: ratings from the cosine of a user's and a film's features."""

from __future__ import annotations

import os
from typing import Any

import pslaunch.runtime as paddle
from pslaunch.runtime.dataset import movielens

PASSES = int(os.environ.get("PASSES", "10"))
FEEDING = ["user_id", "gender_id", "age_id", "job_id", "movie_id", "category_id", "movie_title", "score"]


def embed(name: str, count: int, size: int) -> Any:
    """An id, its row of a table, and a hidden layer."""
    data = paddle.layer.data(name=name, type=paddle.data_type.integer_value(count))
    return paddle.layer.fc(input=paddle.layer.embedding(input=data, size=size), size=size)


def get_usr_combined_features() -> Any:
    """The features of a user."""
    parts = [
        embed("user_id", movielens.max_user_id() + 1, 32),
        embed("gender_id", 2, 16),
        embed("age_id", len(movielens.age_table), 16),
        embed("job_id", movielens.max_job_id() + 1, 16),
    ]
    return paddle.layer.fc(input=parts, size=200, act=paddle.activation.Tanh())


def get_mov_combined_features() -> Any:
    """The features of a film: its number, its categories, and a convolution over its title."""
    mov_fc = embed("movie_id", movielens.max_movie_id() + 1, 32)
    kinds = paddle.data_type.sparse_binary_vector(len(movielens.movie_categories()))
    categories = paddle.layer.fc(input=paddle.layer.data(name="category_id", type=kinds), size=32)
    words = paddle.data_type.integer_value_sequence(len(movielens.get_movie_title_dict()))
    title = paddle.layer.embedding(input=paddle.layer.data(name="movie_title", type=words), size=32)
    title_conv = paddle.networks.sequence_conv_pool(input=title, hidden_size=32, context_len=3)
    parts = [mov_fc, categories, title_conv]
    return paddle.layer.fc(input=parts, size=200, act=paddle.activation.Tanh())


def main() -> None:
    """Train, show the cost of each pass, and predict a rating."""
    paddle.init(use_gpu=False)
    user, film = get_usr_combined_features(), get_mov_combined_features()
    inference = paddle.layer.cos_sim(a=user, b=film, size=1, scale=5)
    score = paddle.layer.data(name="score", type=paddle.data_type.dense_vector(1))
    cost = paddle.layer.square_error_cost(input=inference, label=score)
    parameters = paddle.parameters.create(cost)
    trainer = paddle.trainer.SGD(
        cost=cost,
        parameters=parameters,
        update_equation=paddle.optimizer.Adam(learning_rate=1e-3),
        is_local=not os.environ.get("PADDLE_INIT_PSERVERS"),
    )

    def event_handler(event: object) -> None:
        if isinstance(event, paddle.event.EndPass):
            result = trainer.test(reader=paddle.batch(movielens.test(), 256), feeding=FEEDING)
            print(f"Test {event.pass_id}, Cost {result.cost:.3f}", flush=True)

    reader = paddle.batch(paddle.reader.shuffle(movielens.train(), buf_size=8192), 256)
    trainer.train(reader, num_passes=PASSES, event_handler=event_handler, feeding=FEEDING)
    feature = movielens.user_info()[234].value() + movielens.movie_info()[45].value()
    (found,) = paddle.infer(inference, parameters, [feature], FEEDING[:-1])
    print(f"user 234 gives film 45 {(found[0] + 5) / 2:.2f} of 5")


if __name__ == "__main__":
    main()
