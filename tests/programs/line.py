"""A straight line learned by the bundled runtime: a short job for a fresh install."""

import numpy as np

import pslaunch.runtime as paddle

paddle.init()
x = paddle.layer.data("x", paddle.data_type.dense_vector(1))
y = paddle.layer.data("y", paddle.data_type.dense_vector(1))
guess = paddle.layer.fc(x, 1, act=paddle.activation.Linear())
cost = paddle.layer.square_error_cost(guess, y)
parameters = paddle.parameters.create(cost)
optimizer = paddle.optimizer.Momentum(momentum=0.0, learning_rate=0.002)
trainer = paddle.trainer.SGD(cost, parameters, optimizer, is_local=False)


def read():
    for i in np.linspace(-1, 1, 64):
        yield [i], [3 * i + 1]


costs = []


def note(event):
    if isinstance(event, paddle.event.EndIteration):
        costs.append(event.cost)


trainer.train(paddle.batch(read, 16), num_passes=20, event_handler=note)
assert costs[-1] < 0.1 * costs[0], (costs[0], costs[-1])
print(f"the cost fell from {costs[0]:.3f} to {costs[-1]:.3f}")
